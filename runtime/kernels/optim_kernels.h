// SPDX-License-Identifier: Apache-2.0
// Between optim.cpp, which knows tensors, types and threads, and optim_simd.cpp: loops over f32 arrays that are in
// cache.
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/optim.h"

namespace fp8::kernels {

struct OptimKernels {
  /// y = a * y
  void (*scale)(float* y, std::int64_t n, float a);
  /// y = a * y + b * x
  void (*scale_add)(float* y, const float* x, std::int64_t n, float a, float b);
  /// v = a * v + (b * g) * g
  void (*scale_add_square)(float* v, const float* g, std::int64_t n, float a, float b);
  /// The three lines of AdamFactors: [w and g are bf16][m and v are bf16]. Converting in registers instead of by chunks
  /// keeps memory and arithmetic busy at the same time.
  void (*adam[2][2])(void* w, const void* g, void* m, void* v, std::int64_t n, const AdamFactors& f);
  /// step = (m / correction1) / (sqrt(v / correction2) + eps) + weight_decay * w
  void (*lamb)(float* step, const float* m, const float* v, const float* w, std::int64_t n, const LambTensor& f);
  /// Sum of squares in f64: element i goes to sum i % 16; those are added pairwise.
  double (*sum_of_squares)(const float* x, std::int64_t n);
  /// bf16 <-> f32, to nearest even.
  void (*widen)(const std::uint16_t* x, float* y, std::int64_t n);
  void (*narrow)(const float* x, std::uint16_t* y, std::int64_t n);
};

/// Those of the level in force.
const OptimKernels& optim_kernels_in_force();

}  // namespace fp8::kernels
