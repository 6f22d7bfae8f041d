// SPDX-License-Identifier: Apache-2.0
// Scales that are powers of two, folded into the values that they scale, so that products sum on over all of K
// (GemmArgs::power_of_two_scales).
//
//   largest   of the scales of a row: stays outside, as the scale of that row's outputs
//   steps     largest / scale = 2^steps: a value of the group is a code's value / 2^steps
//   fold      what is taken from the bits of a finite bf16 other than 0, by a subtraction that saturates at 0: steps in
//             the place of the exponent, and a 1 for the mark that CodeTables::bf16_low_marked gives such values
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/gemm_kernels.h"

namespace fp8::kernels {

inline constexpr std::uint16_t kFoldToZero = 0xFFFF;

/// NaN before infinity before finite ones, all of which are taken for positive.
inline float largest_scale(const float* scales, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = bits_of(scales[i]) & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
  return float_of(largest);
}

/// Exponents from that of 2^-127 on.
inline std::uint16_t fold_of(float scale, float largest) {
  const auto exponent = [](float x) { return static_cast<int>(bits_of(x) >> 23 & 0xFF); };
  const int steps = exponent(largest) - exponent(scale);
  return scale == 0.0f || steps > kMostFoldSteps ? kFoldToZero : static_cast<std::uint16_t>(steps << 7 | 1);
}

/// A bf16 without mark.
inline std::uint16_t folded(std::uint16_t bf16, std::uint16_t fold) {
  const int magnitude = bf16 & 0x7FFF;
  if (magnitude == 0 || magnitude >= 0x7F80) return bf16;
  return fold == kFoldToZero ? 0 : static_cast<std::uint16_t>(bf16 - (fold & ~1));
}

}  // namespace fp8::kernels
