// SPDX-License-Identifier: Apache-2.0
// Numbers of any bits: NaN of all payloads, subnormals, infinities.
#pragma once
#include <ATen/ATen.h>

namespace fp8::test {

/// f32, or a type of 16 bits.
inline at::Tensor any_bits(at::IntArrayRef sizes, at::ScalarType type) {
  return type == at::kFloat
             ? at::randint(std::numeric_limits<int>::min(), std::numeric_limits<int>::max(), sizes, at::kInt).view(type)
             : at::randint(-32768, 32768, sizes, at::kShort).view(type);
}

}  // namespace fp8::test
