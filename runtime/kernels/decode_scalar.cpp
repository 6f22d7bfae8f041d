// SPDX-License-Identifier: Apache-2.0
// The decode one code at a time, from a table of 256 values built out of the formats' definitions.
//
//   E4M3   f16 with the exponent bias 7 instead of 15: value = f16(s 0eeee mmm0000000) * 2^8, except
//            ocp, gaudi3   S.1111.111 = NaN
//            gaudi2        S.1111.000 = infinity, all other S.1111.mmm = NaN
//   E5M2   the upper half of an f16
#include <array>

#include "fp8/runtime/kernels/cast_kernels.h"
#include "fp8/runtime/kernels/decode.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::kernels {
namespace {

float value_of(std::uint32_t code, Format format, Dialect dialect) {
  if (format == Format::E5M2) return f16_to_f32(static_cast<std::uint16_t>(code << 8));
  const std::uint32_t sign = (code & 0x80) << 8;
  const bool ieee = dialect == Dialect::gaudi2;
  if (ieee && (code & 0x7F) == 0x78) return f16_to_f32(static_cast<std::uint16_t>(sign | 0x7C00));
  if ((code & 0x7F) > (ieee ? 0x78u : 0x7Eu)) return f16_to_f32(static_cast<std::uint16_t>(sign | 0x7E00));
  return f16_to_f32(static_cast<std::uint16_t>(sign | ((code & 0x7F) << 7))) * 256.0f;
}

std::array<float, 256> table_of(Format format, Dialect dialect = Dialect::ocp) {
  std::array<float, 256> table;
  for (std::uint32_t code = 0; code < 256; ++code) table[code] = value_of(code, format, dialect);
  return table;
}

template <FloatType T>
void decode_values(const DecodeSpan& span, const float* table) {
  for (std::int64_t i = 0; i < span.n; ++i) {
    const float y = table[span.codes[i]] * span.scales[span.per_element ? i : 0];
    if (T == FloatType::F32) static_cast<float*>(span.y)[i] = y;
    if (T == FloatType::BF16) static_cast<std::uint16_t*>(span.y)[i] = f32_to_bf16(y);
    if (T == FloatType::F16) static_cast<std::uint16_t*>(span.y)[i] = f32_to_f16(y);
  }
}

template <FloatType T, Format F>
void decode_span(const DecodeSpan& span) {
  decode_values<T>(span, decode_table(F));
}

}  // namespace

const float* decode_table(Format format, Dialect dialect) {
  static const std::array<float, 256> e4m3 = table_of(Format::E4M3), e5m2 = table_of(Format::E5M2),
                                      ieee = table_of(Format::E4M3, Dialect::gaudi2);
  if (format == Format::E5M2) return e5m2.data();
  return dialect == Dialect::gaudi2 ? ieee.data() : e4m3.data();
}

void decode_by_table(const DecodeSpan& span, FloatType type, const float* table) {
  switch (type) {
    case FloatType::F32:
      return decode_values<FloatType::F32>(span, table);
    case FloatType::BF16:
      return decode_values<FloatType::BF16>(span, table);
    case FloatType::F16:
      return decode_values<FloatType::F16>(span, table);
  }
}

extern const DecodeKernels kDecodeScalar = {{
    {decode_span<FloatType::F32, Format::E4M3>, decode_span<FloatType::F32, Format::E5M2>},
    {decode_span<FloatType::BF16, Format::E4M3>, decode_span<FloatType::BF16, Format::E5M2>},
    {decode_span<FloatType::F16, Format::E4M3>, decode_span<FloatType::F16, Format::E5M2>},
}};

}  // namespace fp8::kernels
