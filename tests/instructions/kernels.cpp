// SPDX-License-Identifier: Apache-2.0
// The main kernels, on 64 rows of 1000 elements (no multiple of any vector); products with a weight of 128 rows.

#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/kernels/attention/decoder_math.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "instructions/counted.h"

namespace {

using namespace fp8::kernels;

constexpr std::int64_t kRows = 64, kCols = 1000, kOutputs = 128;

std::vector<float> numbers(std::int64_t n) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 2003) / 1001 - 1;
  return x;
}
std::vector<std::uint16_t> bf16_numbers(std::int64_t n) {
  std::vector<std::uint16_t> x;
  for (const float value : numbers(n)) x.push_back(f32_to_bf16(value));
  return x;
}
std::vector<std::uint8_t> some_codes(std::int64_t n) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 31 % 0x7F);
  return codes;
}

/// What all cases read and write.
struct Data {
  std::vector<float> f32 = numbers(kRows * kCols);
  std::vector<std::uint16_t> bf16 = bf16_numbers(kRows * kCols), weight = bf16_numbers(kOutputs * kCols);
  std::vector<std::uint8_t> codes = some_codes(kRows * kCols), w = some_codes(kOutputs * kCols), packed;
  std::vector<float> scales = std::vector<float>(kRows * 8, 0.25f);
  std::vector<std::uint16_t> y = std::vector<std::uint16_t>(kRows * kCols);
  Data() : packed(static_cast<std::size_t>(packed_bytes(kOutputs, kCols))) {
    pack_weight(w.data(), kOutputs, kCols, packed.data());
  }
};
Data& data() {
  static Data all;
  return all;
}

CastArgs cast_args(const void* x, FloatType type) {
  CastArgs args;
  args.x = x, args.type = type;
  args.rows = kRows, args.cols = args.row_stride = kCols;
  args.codes = data().codes.data();
  args.scales = data().scales.data();
  return args;
}

void product(std::int64_t m, Storage type, Layout layout) {
  GemmArgs args;
  args.m = m, args.n = kOutputs, args.k = kCols;
  args.a = type == Storage::BF16 ? static_cast<const void*>(data().bf16.data()) : data().codes.data();
  args.a_type = type, args.a_stride = kCols;
  args.w = layout == Layout::packed ? data().packed.data() : data().w.data();
  args.w_layout = layout;
  args.y = data().y.data(), args.y_type = FloatType::BF16, args.y_stride = kOutputs;
  gemm(args);
}

}  // namespace

FP8_COUNTED(cast_f32_e4m3) { cast_to_fp8(cast_args(data().f32.data(), FloatType::F32)); }
FP8_COUNTED(cast_bf16_e4m3) { cast_to_fp8(cast_args(data().bf16.data(), FloatType::BF16)); }
FP8_COUNTED(cast_bf16_e5m2_stochastic) {
  CastArgs args = cast_args(data().bf16.data(), FloatType::BF16);
  args.format = Format::E5M2, args.max = 57344.0f, args.stochastic = 0;
  cast_to_fp8(args);
}
FP8_COUNTED(cast_bf16_rows_dynamic) {
  cast_rows_dynamic(cast_args(data().bf16.data(), FloatType::BF16), data().scales.data());
}
FP8_COUNTED(cast_bf16_blocks) {
  BlockCastArgs args;
  args.x = data().bf16.data(), args.type = FloatType::BF16;
  args.rows = kRows, args.cols = args.row_stride = kCols;
  args.codes = data().codes.data(), args.grid = data().scales.data();
  cast_blocks(args);
}
FP8_COUNTED(amax_bf16) { amax(data().bf16.data(), FloatType::BF16, kRows * kCols); }
FP8_COUNTED(decode_e4m3_bf16) {
  DecodeArgs args;
  args.codes = data().codes.data(), args.rows = kRows, args.cols = kCols;
  args.y = data().y.data(), args.type = FloatType::BF16;
  decode_from_fp8(args);
}
FP8_COUNTED(gemm_bf16_1_packed) { product(1, Storage::BF16, Layout::packed); }
FP8_COUNTED(gemm_bf16_1_rows) { product(1, Storage::BF16, Layout::row_major); }
FP8_COUNTED(gemm_e4m3_16_packed) { product(16, Storage::E4M3, Layout::packed); }
FP8_COUNTED(gemm_bf16_64_packed) { product(64, Storage::BF16, Layout::packed); }
FP8_COUNTED(gemv_bf16_1) {
  GemvArgs args;
  args.m = 1, args.n = kOutputs, args.k = kCols;
  args.a = data().bf16.data(), args.a_stride = kCols;
  args.w = data().weight.data(), args.w_stride = kCols;
  args.y = data().y.data(), args.y_stride = kOutputs;
  gemv(args);
}
FP8_COUNTED(attention_bf16) {
  constexpr std::int64_t kWidth = 64, kKeys = kOutputs * kCols / kWidth / 2;  // the keys' half, then the values'
  AttentionArgs args;
  args.batch = args.heads = 1, args.rows = 4, args.keys = kKeys, args.width = kWidth;
  args.q = {data().bf16.data(), 0, 0, kWidth};
  args.k = {data().weight.data(), 0, 0, kWidth}, args.v = {data().weight.data() + kKeys * kWidth, 0, 0, kWidth};
  args.y = {data().y.data(), 0, 0, kWidth};
  attention(args);
}
FP8_COUNTED(rms_norm_bf16) {
  RmsNormArgs args;
  args.rows = kRows, args.n = args.x_stride = kCols;
  args.x = data().bf16.data(), args.weight = data().weight.data(), args.y = data().y.data();
  rms_norm(args);
}
FP8_COUNTED(rotary_bf16) {
  RotaryArgs args;
  args.batch = 1, args.length = 8, args.heads = 8, args.width = kCols;
  args.x = data().bf16.data();
  args.x_head = kCols, args.x_length = args.x_batch = 8 * kCols;
  args.cos = args.sin = data().weight.data();
  args.y = data().y.data();
  rotary(args);
}

int main() {
  set_num_threads(1);
  fp8::test::run_counted_cases();
}
