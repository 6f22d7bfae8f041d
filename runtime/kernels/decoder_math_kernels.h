// SPDX-License-Identifier: Apache-2.0
// Between decoder_math.cpp and decoder_math_simd.cpp: one row each. Arrays are of T, f32 or the bits of bf16.
#pragma once
#include <cstdint>

namespace fp8::kernels {

template <class T>
struct DecoderKernels {
  float (*sum_of_squares)(const T* x, std::int64_t n);
  /// y[i] = round(weight[i] * round(x[i] * factor))
  void (*scale_twice)(const T* x, float factor, const T* weight, T* y, std::int64_t n);
  /// y[i] = round((offset + weight[i]) * (x[i] * factor))
  void (*scale_wide)(const T* x, float factor, const T* weight, float offset, T* y, std::int64_t n);
  void (*rotate)(const T* x, const T* cos, const T* sin, T* y, std::int64_t half);
  float (*sum)(const T* x, std::int64_t n);
  /// Of (x - mean)^2.
  float (*sum_of_distances)(const T* x, float mean, std::int64_t n);
  /// y[i] = round(((x[i] - mean) * factor) * weight[i] + bias[i]), without those that are nullptr
  void (*center)(const T* x, float mean, float factor, const T* weight, const T* bias, T* y, std::int64_t n);
  void (*silu_mul)(const T* gate, const T* up, T* y, std::int64_t n);
};

/// Of the level in force.
template <class T>
const DecoderKernels<T>& decoder_kernels_in_force();

}  // namespace fp8::kernels
