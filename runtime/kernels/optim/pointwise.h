// SPDX-License-Identifier: Apache-2.0
// Pointwise operations that IEEE 754 defines to the bit, on arrays so small that a call costs more than its work: one
// thread, one pass. f32, or bf16 computed in f32 and rounded once, to nearest even:
//
//   add  a + b     sub  a - b     mul  a * b     div  a / b     neg  -a     abs  |a|     relu  a < 0 ? 0 : a
//
// A NaN's sign and payload are the one thing that IEEE 754 leaves open, and each library's own: where a result is NaN,
// the kernel says so, and the caller computes otherwise.
#pragma once

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

enum class Pointwise : std::uint8_t { add, sub, mul, div, neg, abs, relu };

struct PointwiseArgs {
  Pointwise op = Pointwise::add;
  FloatType type = FloatType::F32;  ///< of all arrays: F32 or BF16
  std::int64_t n = 0;
  const void* a = nullptr;  ///< [n]
  const void* b = nullptr;  ///< [n], of the first four; null: `number` in the place of each element
  float number = 0;
  void* y = nullptr;  ///< [n]; a or b themselves, or apart from both
};

/// False where a result is NaN; then y, where it is a or b, is as it was, and undefined else. With the SIMD level in
/// force, the same bits on each. Throws std::invalid_argument naming what is wrong with type, n and pointers.
bool pointwise(const PointwiseArgs& args);

/// y[i] = x[i], exactly; of NaN the upper bits.
void widen(const std::uint16_t* x, float* y, std::int64_t n);
/// y[i] = x[i] to nearest even. False where one is NaN; y is undefined then.
bool narrow(const float* x, std::uint16_t* y, std::int64_t n);

}  // namespace fp8::kernels
