// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/kernels/gemm_special.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fp8/runtime/kernels/decode.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/scratch.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kPanelBytes = std::int64_t{8} << 20;
constexpr std::int64_t kRowPrefetch = 512;  // ahead in each of 16 rows

// n channels from `first` on, which lie packed.
GemmArgs part_of(const GemmArgs& args, std::int64_t first, std::int64_t n, const std::uint8_t* packed) {
  GemmArgs part = args;
  part.n = n;
  part.w = packed, part.w_layout = Layout::packed;
  part.y = static_cast<std::uint8_t*>(args.y) + first * size_of(args.y_type);
  if (args.bias) part.bias = static_cast<const std::uint8_t*>(args.bias) + first * size_of(args.bias_type);
  if (args.blocks.cols > 0) {
    const std::int64_t row = args.blocks.first_row + first, groups = (args.k + args.blocks.cols - 1) / args.blocks.cols;
    part.w_scale_inv += row / args.blocks.rows * groups;
    part.blocks.first_row = row % args.blocks.rows;
  } else if (args.w_scale_inv) {
    part.w_scale_inv += first * args.w_scale_stride;
  }
  return part;
}

}  // namespace

void for_panels(const GemmArgs& args, const GemmKernels& kernels, const std::function<void(const GemmArgs&)>& run) {
  const std::int64_t block_bytes = packed_bytes(kBlockChannels, args.k);
  const std::int64_t blocks = (args.n + kBlockChannels - 1) / kBlockChannels,
                     most = std::clamp<std::int64_t>(kPanelBytes / block_bytes, 1, blocks);
  thread_local Scratch scratch;
  std::uint8_t* packed = scratch.get(most * block_bytes);
  for (std::int64_t block = 0; block < blocks; block += most) {
    const std::int64_t first = block * kBlockChannels, n = std::min(most * kBlockChannels, args.n - first);
    const auto pack = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const std::int64_t row = b * kBlockChannels;
        kernels.pack_lines(args.w + (first + row) * args.k, args.k,
                           static_cast<int>(std::min<std::int64_t>(kBlockChannels, n - row)), args.k, kRowPrefetch,
                           packed + b * block_bytes);
      }
    };
    parallel_for((n + kBlockChannels - 1) / kBlockChannels, 1, std::ref(pack));
    run(part_of(args, first, n, packed));
  }
}

namespace {

/// Where element (n, k) of the weight is.
std::int64_t weight_at(const GemmArgs& args, std::int64_t n, std::int64_t k) {
  if (args.w_layout == Layout::row_major) return n * args.k + k;
  const std::int64_t padded_k = (args.k + 3) / 4 * 4;
  return n / 16 * 16 * padded_k + k / 4 * 64 + n % 16 / 4 * 16 + k % 4 / 2 * 8 + n % 4 * 2 + k % 2;
}

float activation(const GemmArgs& args, std::int64_t row, std::int64_t k) {
  const std::int64_t at = row * args.a_stride + k;
  switch (args.a_type) {
    case Storage::F32:
      return static_cast<const float*>(args.a)[at];
    case Storage::BF16:
      return bf16_to_f32(static_cast<const std::uint16_t*>(args.a)[at]);
    case Storage::F16:
      return f16_to_f32(static_cast<const std::uint16_t*>(args.a)[at]);
    case Storage::E4M3:
      return decode_table(Format::E4M3, args.dialect)[static_cast<const std::uint8_t*>(args.a)[at]];
    case Storage::E5M2:
      break;
  }
  return decode_table(Format::E5M2)[static_cast<const std::uint8_t*>(args.a)[at]];
}

void store(const GemmArgs& args, std::int64_t row, std::int64_t channel, float value) {
  const std::int64_t at = row * args.y_stride + channel;
  if (args.y_type == FloatType::F32) static_cast<float*>(args.y)[at] = value;
  if (args.y_type == FloatType::BF16) static_cast<std::uint16_t*>(args.y)[at] = f32_to_bf16(value);
  if (args.y_type == FloatType::F16) static_cast<std::uint16_t*>(args.y)[at] = f32_to_f16(value);
}

bool has_them(const std::uint8_t* codes, std::int64_t n) {
  return has_nan_code(codes, n, Format::E4M3, Dialect::gaudi2);
}

std::vector<std::int64_t> rows_with_them(const GemmArgs& args) {
  std::vector<std::int64_t> rows;
  if (args.a_type != Storage::E4M3 || args.k == 0) return rows;
  const auto* codes = static_cast<const std::uint8_t*>(args.a);
  const bool dense = args.m == 1 || args.a_stride == args.k;
  if (dense && !has_them(codes, args.m * args.k)) return rows;
  for (std::int64_t m = 0; m < args.m; ++m)
    if (has_them(codes + m * args.a_stride, args.k)) rows.push_back(m);
  return rows;
}

std::vector<std::int64_t> channels_with_them(const GemmArgs& args) {
  std::vector<std::int64_t> channels;
  if (args.w_format != Format::E4M3 || args.k == 0) return channels;
  const bool packed = args.w_layout == Layout::packed;
  if (!has_them(args.w, packed ? packed_bytes(args.n, args.k) : args.n * args.k)) return channels;
  for (std::int64_t n = 0; n < args.n; ++n) {
    bool found = false;
    for (std::int64_t k = 0; k < args.k && !found; ++k) found = (args.w[weight_at(args, n, k)] & 0x7F) >= 0x78;
    if (found) channels.push_back(n);
  }
  return channels;
}

}  // namespace

NonFiniteOutputs::NonFiniteOutputs(const GemmArgs& args)
    : args_(args), rows_(rows_with_them(args)), channels_(channels_with_them(args)) {
  const auto count = [](std::size_t lines, std::int64_t length) { return lines * static_cast<std::size_t>(length); };
  of_rows_.resize(count(rows_.size(), args.n));
  of_channels_.resize(count(channels_.size(), args.m));
  const std::int64_t grain = std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(args.k, 1));
  parallel_for(static_cast<std::int64_t>(of_rows_.size()), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      of_rows_[static_cast<std::size_t>(i)] = output(rows_[static_cast<std::size_t>(i / args.n)], i % args.n);
  });
  const auto across = static_cast<std::int64_t>(channels_.size());
  parallel_for(static_cast<std::int64_t>(of_channels_.size()), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      of_channels_[static_cast<std::size_t>(i)] = output(i / across, channels_[static_cast<std::size_t>(i % across)]);
  });
}

float NonFiniteOutputs::output(std::int64_t row, std::int64_t channel) const {
  const float* values = decode_table(args_.w_format, args_.dialect);
  const bool grouped = args_.blocks.cols > 0;
  const std::int64_t group = grouped ? args_.blocks.cols : args_.k, groups = (args_.k + group - 1) / group;
  float total = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    float sum = 0;
    for (std::int64_t k = g * group; k < std::min(args_.k, (g + 1) * group); ++k)
      sum += activation(args_, row, k) * values[args_.w[weight_at(args_, channel, k)]];
    const std::int64_t a_at = grouped ? row * groups + g : row * args_.a_scale_stride,
                       w_at = grouped ? (args_.blocks.first_row + channel) / args_.blocks.rows * groups + g
                                      : channel * args_.w_scale_stride;
    total += sum * ((args_.a_scale_inv ? args_.a_scale_inv[a_at] : 1.0f) *
                    (args_.w_scale_inv ? args_.w_scale_inv[w_at] : 1.0f));
  }
  if (args_.bias) total += load_element(args_.bias, args_.bias_type, channel);
  if (args_.accumulate) total += load_element(args_.y, args_.y_type, row * args_.y_stride + channel);
  return std::isnan(total) ? std::numeric_limits<float>::quiet_NaN() : total;
}

void NonFiniteOutputs::write() const {
  for (std::size_t i = 0; i < of_rows_.size(); ++i) {
    const auto n = static_cast<std::size_t>(args_.n);
    store(args_, rows_[i / n], static_cast<std::int64_t>(i % n), of_rows_[i]);
  }
  for (std::size_t i = 0; i < of_channels_.size(); ++i)
    store(args_, static_cast<std::int64_t>(i / channels_.size()), channels_[i % channels_.size()], of_channels_[i]);
}

}  // namespace fp8::kernels
