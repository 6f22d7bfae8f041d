// SPDX-License-Identifier: Apache-2.0
// Integers in the order of their floats: -inf < -1 < -0 < 0 < 1 < inf < NaN. So a maximum has the same bits in every
// order, and a NaN is not lost.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace fp8::runtime::distributed {

inline std::int32_t to_ordered(float value) {
  if (std::isnan(value)) return 0x7FC00000;
  const auto bits = std::bit_cast<std::int32_t>(value);
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}
inline float from_ordered(std::int32_t bits) { return std::bit_cast<float>(bits < 0 ? bits ^ 0x7FFFFFFF : bits); }

}  // namespace fp8::runtime::distributed
