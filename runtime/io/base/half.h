// SPDX-License-Identifier: Apache-2.0
// IEEE binary16 to float, exact. s eeeee mmmmmmmmmm, bias 15; e = 31 is Inf or NaN, e = 0 is m * 2^-24. No torch here.
#pragma once
#include <bit>
#include <cstdint>

namespace fp8::io {

inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const std::uint32_t biased = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | biased << 23 | mantissa << 13);
}

}  // namespace fp8::io
