// SPDX-License-Identifier: Apache-2.0
// What a decoder layer computes between its products, in one pass each, in the order of roundings of transformers'
// modules. round() is the rounding to the tensors' dtype, bf16 or none (f32); all else runs in f32:
//
//   rms_norm   y[i]     = round(weight[i] * round(x[i] * r)),          r = 1 / sqrt(sum(x^2) / n + eps)
//     wide     y[i]     = round((offset + weight[i]) * (x[i] * r))     as Gemma, whose checkpoints hold weight - 1
//   rotary     y[i]     = round(round(x[i] * cos[i]) - round(x[i + h] * sin[i]))          i < h = width / 2
//              y[i + h] = round(round(x[i + h] * cos[i + h]) + round(x[i] * sin[i + h]))
//
// The same bits on every level: sum(x^2) runs in 32 sums, sum j over i = j, j + 32, ... in that order, which are added
// as s[j] += s[j + 16], s[j + 8], ... s[j + 1]; its relative error is at most (n / 32 + 7) * 2^-24.
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

struct RmsNormArgs {
  FloatType type = FloatType::BF16;  ///< of all arrays: BF16 or F32
  std::int64_t rows = 0, n = 0;
  const void* x = nullptr;  ///< [rows, n], rows x_stride >= n elements apart
  std::int64_t x_stride = 0;
  const void* weight = nullptr;  ///< [n]
  float eps = 0;
  bool wide = false;
  float offset = 0;   ///< wide alone
  void* y = nullptr;  ///< [rows, n], contiguous
};

struct RotaryArgs {
  FloatType type = FloatType::BF16;                    ///< of all arrays: BF16 or F32
  std::int64_t batch = 0, length = 0, heads = 0;       ///< length: positions
  std::int64_t width = 0;                              ///< of a head; even
  const void* x = nullptr;                             ///< [batch, length, heads, width], the last contiguous
  std::int64_t x_batch = 0, x_length = 0, x_head = 0;  ///< its strides, in elements
  const void* cos = nullptr;                           ///< [length, width], contiguous, as sin
  const void* sin = nullptr;
  std::int64_t angle_batch = 0;  ///< elements from the angles of one of the batch to the next one's; 0: the same
  void* y = nullptr;             ///< [batch, heads, length, width], contiguous
};

/// Both run on the threads of the pool with the SIMD level in force. y overlaps no other array. They throw
/// std::invalid_argument naming what is wrong with types, sizes, strides and pointers.
void rms_norm(const RmsNormArgs& args);
void rotary(const RotaryArgs& args);

}  // namespace fp8::kernels
