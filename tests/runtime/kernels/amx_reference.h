// SPDX-License-Identifier: Apache-2.0
// tdpbf16ps as Intel's manual writes it, in scalar f32 arithmetic:
//
//   for each row m, column n:  even = odd = 0
//     for each pair k:  even += A[m][2k] * B[k][2n],  odd += A[m][2k+1] * B[k][2n+1]      one fused multiply-add each
//     C[m][n] = C[m][n] + (even + odd)
//
// All with DAZ (subnormal inputs are 0), FTZ (tiny results become 0) and rounding to nearest even. A result is tiny
// where rounding it to 24 bits with no smallest exponent leaves less than 2^-126.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace fp8::kernels::test {

inline float f32_of_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

inline float without_subnormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

inline float manual_fma(float a, float b, float c) {
  a = without_subnormal(a), b = without_subnormal(b), c = without_subnormal(c);
  const float y = std::fma(a, b, c);
  if (std::fabs(y) != 0x1p-126f) return without_subnormal(y);
  // From here up 24 bits round to 2^-126; only the first of these differences of c is not 0, and both are exact.
  const double least = 0x1p-126 - 0x1p-151, sign = y < 0 ? -1.0 : 1.0;
  const double above =
      std::fma(sign * static_cast<double>(a), static_cast<double>(b), sign * static_cast<double>(c) - least);
  return above < 0 ? std::copysign(0.0f, y) : y;
}

/// Sums of two f32 that are subnormal are exact.
inline float manual_add(float a, float b) { return without_subnormal(without_subnormal(a) + without_subnormal(b)); }

/// What one tdpbf16ps makes of c, from pairs of bf16 of a row of A and of a column of B (two each, as many).
inline float manual_dot(float c, std::span<const std::uint16_t> a, std::span<const std::uint16_t> b) {
  float even = 0, odd = 0;
  for (std::size_t k = 0; k + 1 < a.size(); k += 2) {
    even = manual_fma(f32_of_bf16(a[k]), f32_of_bf16(b[k]), even);
    odd = manual_fma(f32_of_bf16(a[k + 1]), f32_of_bf16(b[k + 1]), odd);
  }
  return manual_add(c, manual_add(even, odd));
}

/// The same bits, or two NaN.
inline bool same_float(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

}  // namespace fp8::kernels::test
