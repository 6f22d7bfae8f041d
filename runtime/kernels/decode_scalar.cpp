// SPDX-License-Identifier: Apache-2.0
// The decode one code at a time, from a table of 256 values built out of the formats' definitions.
//
//   E4M3  is f16 with the exponent bias 7 instead of 15:   value = f16(s 0eeee mmm0000000) * 2^8, except S.1111.111 =
//   NaN E5M2  is the upper half of an f16
#include <array>

#include "fp8/runtime/kernels/decode.h"
#include "fp8/runtime/kernels/decode_kernels.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::kernels {
namespace {

float value_of(std::uint32_t code, Format format) {
  if (format == Format::E5M2) return f16_to_f32(static_cast<std::uint16_t>(code << 8));
  const std::uint32_t sign = (code & 0x80) << 8;
  if ((code & 0x7F) == 0x7F) return f16_to_f32(static_cast<std::uint16_t>(sign | 0x7E00));
  return f16_to_f32(static_cast<std::uint16_t>(sign | ((code & 0x7F) << 7))) * 256.0f;
}

std::array<float, 256> table_of(Format format) {
  std::array<float, 256> table;
  for (std::uint32_t code = 0; code < 256; ++code) table[code] = value_of(code, format);
  return table;
}

template <FloatType T, Format F>
void decode_span(const DecodeSpan& span) {
  const float* table = decode_table(F);
  for (std::int64_t i = 0; i < span.n; ++i) {
    const float y = table[span.codes[i]] * span.scales[span.per_element ? i : 0];
    if (T == FloatType::F32) static_cast<float*>(span.y)[i] = y;
    if (T == FloatType::BF16) static_cast<std::uint16_t*>(span.y)[i] = f32_to_bf16(y);
    if (T == FloatType::F16) static_cast<std::uint16_t*>(span.y)[i] = f32_to_f16(y);
  }
}

}  // namespace

const float* decode_table(Format format) {
  static const std::array<float, 256> e4m3 = table_of(Format::E4M3), e5m2 = table_of(Format::E5M2);
  return format == Format::E4M3 ? e4m3.data() : e5m2.data();
}

extern const DecodeKernels kDecodeScalar = {{
    {decode_span<FloatType::F32, Format::E4M3>, decode_span<FloatType::F32, Format::E5M2>},
    {decode_span<FloatType::BF16, Format::E4M3>, decode_span<FloatType::BF16, Format::E5M2>},
    {decode_span<FloatType::F16, Format::E4M3>, decode_span<FloatType::F16, Format::E5M2>},
}};

}  // namespace fp8::kernels
