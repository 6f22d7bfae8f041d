// SPDX-License-Identifier: Apache-2.0
// Operations of a decoder layer between its products, in one pass each, in the order of roundings of transformers'
// modules. round() is the rounding to the tensors' dtype, bf16 or none (f32); all else runs in f32:
//
//   rms_norm   y[i]     = round(weight[i] * round(x[i] * r)),          r = 1 / sqrt(sum(x^2) / n + eps)
//     wide     y[i]     = round((offset + weight[i]) * (x[i] * r))     as Gemma, whose checkpoints hold weight - 1
//   rotary     y[i]     = round(round(x[i] * cos[i]) - round(x[i + h] * sin[i]))          i < h = width / 2
//              y[i + h] = round(round(x[i + h] * cos[i + h]) + round(x[i] * sin[i + h]))
//   layer_norm y[i]     = round(((x[i] - mean) * r) * weight[i] + bias[i])
//                         mean = sum(x) / n,  r = 1 / sqrt(sum((x - mean)^2) / n + eps)
//   silu_mul   y[i]     = round(round(gate[i] / (1 + e^-gate[i])) * up[i])             e^x of attention.h
//
// Every level gives the same bits: a sum runs in 32 sums, sum j over i = j, j + 32, ... in that order, which are added
// as s[j] += s[j + 16], s[j + 8], ... s[j + 1]; the relative error of sums of squares is at most (n / 32 + 7) * 2^-24.
#pragma once

#include "fp8/runtime/kernels/cast.h"

namespace fp8::kernels {

struct RmsNormArgs {
  FloatType type = FloatType::BF16;  ///< of all arrays: BF16 or F32
  std::int64_t rows = 0, n = 0;
  const void* x = nullptr;  ///< [rows, n], rows x_stride >= n elements apart
  std::int64_t x_stride = 0;
  const void* weight = nullptr;  ///< [n]
  float eps = 0;
  bool wide = false;
  float offset = 0;    ///< wide alone
  void* y = nullptr;   ///< [rows, n], contiguous
  CastArgs cast = {};  ///< of y, as cast_row takes it; codes nullptr: none
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

struct LayerNormArgs {
  FloatType type = FloatType::BF16;  ///< of all arrays: BF16 or F32
  std::int64_t rows = 0, n = 0;
  const void* x = nullptr;  ///< [rows, n], rows x_stride >= n elements apart
  std::int64_t x_stride = 0;
  const void* weight = nullptr;  ///< [n] or nullptr: 1
  const void* bias = nullptr;    ///< [n] or nullptr: 0
  float eps = 0;
  void* y = nullptr;   ///< [rows, n], contiguous
  CastArgs cast = {};  ///< of y, as cast_row takes it; codes nullptr: none
};

struct SiluMulArgs {
  FloatType type = FloatType::BF16;  ///< of all arrays: BF16 or F32
  std::int64_t rows = 0, n = 0;
  const void* gate = nullptr;  ///< [rows, n], rows gate_stride >= n elements apart, as up's
  std::int64_t gate_stride = 0;
  const void* up = nullptr;
  std::int64_t up_stride = 0;
  void* y = nullptr;   ///< [rows, n], contiguous
  CastArgs cast = {};  ///< of y, as cast_row takes it; codes nullptr: none
};

/// All run on the threads of the pool with the SIMD level in force. y and what `cast` writes overlap no other array.
/// They throw std::invalid_argument naming what is wrong with types, sizes, strides, pointers and the cast's max.
void rms_norm(const RmsNormArgs& args);
void rotary(const RotaryArgs& args);
void layer_norm(const LayerNormArgs& args);
void silu_mul(const SiluMulArgs& args);

}  // namespace fp8::kernels
