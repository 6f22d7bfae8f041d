// SPDX-License-Identifier: Apache-2.0
// gemm with no SIMD level: the same steps in plain C++, for machines without AVX2 and as something to compare with.
// A sum takes one f32 rounding per product (the product itself, and its sum, are formed in f64), like a fused
// multiply-add.

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/gemm/gemm_groups-inl.h"

namespace fp8::kernels {
namespace {

constexpr int kRangeLines = 64;
constexpr std::int64_t kPanelBytes = kRangeLines * kLineK * kBlockChannels * 4;

constexpr int in_line(int channel, int k) { return channel / 4 * 16 + k / 2 * 8 + channel % 4 * 2 + k % 2; }

void pack_lines(const std::uint8_t* w, std::int64_t row_stride, int rows, std::int64_t k, std::int64_t,
                std::uint8_t* lines) {
  for (std::int64_t k0 = 0; k0 < k; k0 += kLineK, lines += kLineBytes)
    for (int c = 0; c < kBlockChannels; ++c)
      for (int j = 0; j < kLineK; ++j)
        lines[in_line(c, j)] = c < rows && k0 + j < k ? w[c * row_stride + k0 + j] : std::uint8_t{0};
}

void multiply_whole(const MultiplyArgs& args) {
  const int rows = args.plan.tile_rows;
  const std::int64_t range_k = args.range_lines * kLineK;
  float* panel = static_cast<float*>(args.panel);  // [k][channel]
  for (int block = 0; block < args.blocks; ++block) {
    const std::uint8_t* line = args.lines + block * args.block_stride;
    for (std::int64_t k = 0; k < range_k; ++k)
      for (int c = 0; c < kBlockChannels; ++c)
        panel[k * kBlockChannels + c] =
            args.tables->value[line[k / kLineK * kLineBytes + in_line(c, static_cast<int>(k % kLineK))]];
    for (std::int64_t t = 0; t < args.tiles; ++t) {
      const float* x = static_cast<const float*>(args.x) + t * (args.x_tile_stride / 4);
      for (int r = 0; r < rows; ++r) {
        float* acc = args.acc + ((t * rows + r) * args.blocks + block) * kBlockChannels;
        float sum[kBlockChannels];
        for (int c = 0; c < kBlockChannels; ++c) sum[c] = args.first ? 0.0f : acc[c];
        for (std::int64_t k = 0; k < range_k; ++k)
          for (int c = 0; c < kBlockChannels; ++c)
            sum[c] = static_cast<float>(static_cast<double>(x[k * rows + r]) *
                                            static_cast<double>(panel[k * kBlockChannels + c]) +
                                        static_cast<double>(sum[c]));
        for (int c = 0; c < kBlockChannels; ++c) acc[c] = sum[c];
      }
    }
  }
}

void finish(const FinishArgs& args) {
  for (std::int64_t r = 0; r < args.rows; ++r)
    for (int c = 0; c < args.channels; ++c) {
      const float scale = args.a_scale_inv[r * args.a_scale_stride] * args.w_scale_inv[c * args.w_scale_stride];
      float value = args.acc[r * args.blocks * kBlockChannels + c] * scale;
      if (args.bias) value += load_element(args.bias, args.bias_type, c);
      const std::int64_t at = r * args.y_stride + c;
      if (args.accumulate) value += load_element(args.y, args.y_type, at);
      if (args.y_type == FloatType::F32)
        static_cast<float*>(args.y)[at] = value;
      else
        static_cast<std::uint16_t*>(args.y)[at] =
            args.y_type == FloatType::BF16 ? f32_to_bf16(value) : f32_to_f16(value);
    }
}

void multiply(const MultiplyArgs& args) {
  args.group == nullptr ? multiply_whole(args) : multiply_groups(args, kBlockChannels, multiply_whole);
}

GemmPlan plan(std::int64_t m) {
  GemmPlan plan;
  plan.tile_rows = static_cast<int>(m < 16 ? m : 16);
  plan.range_lines = plan.packed_range_lines = kRangeLines;
  plan.panel = true;
  return plan;
}

CodeTables make_tables(Format format) {
  CodeTables tables{};
  const float* value = decode_table(format);
  for (int code = 0; code < 256; ++code) {
    tables.value[code] = value[code];
    tables.bf16[code] = static_cast<std::uint16_t>(bits_of(value[code]) >> 16);  // <= 3 mantissa bits: exact
  }
  for (int code = 0; code < 128; ++code) {
    tables.bf16_low[code] = static_cast<std::uint8_t>(tables.bf16[code] & 0xFF);
    tables.bf16_high[code] = static_cast<std::uint8_t>(tables.bf16[code] >> 8);
    const bool marked = std::isfinite(value[code]) && value[code] != 0.0f;
    tables.bf16_low_marked[code] = static_cast<std::uint8_t>(tables.bf16_low[code] | (marked ? 1 : 0));
  }
  return tables;
}

}  // namespace

const GemmKernels* gemm_kernels_scalar() {
  static constexpr GemmKernels kKernels{XLayout::F32, kBlockChannels, plan, kPanelBytes, pack_lines,
                                        multiply,     nullptr,        0,    finish};
  return &kKernels;
}

const CodeTables& code_tables(Format format) {
  static const CodeTables e4m3 = make_tables(Format::E4M3);
  static const CodeTables e5m2 = make_tables(Format::E5M2);
  return format == Format::E4M3 ? e4m3 : e5m2;
}

}  // namespace fp8::kernels
