// SPDX-License-Identifier: Apache-2.0
// Between pointwise.cpp and pointwise_simd.cpp. Arrays are of T, f32 or the bits of bf16.
#pragma once
#include <cstdint>

namespace fp8::kernels {

/// The one operation in its forms; each returns whether no result is NaN. b: [n], or one number.
template <class T>
struct PointwiseKernel {
  bool (*arrays)(const T* a, const T* b, T* y, std::int64_t n);
  bool (*number)(const T* a, float b, T* y, std::int64_t n);
  bool (*check_arrays)(const T* a, const T* b, T* y, std::int64_t n);  ///< the same, and nothing is written
  bool (*check_number)(const T* a, float b, T* y, std::int64_t n);
};

/// One row for each Pointwise.
template <class T>
struct PointwiseKernels {
  PointwiseKernel<T> of[7];
};

/// Between f32 and bf16; narrow returns whether nothing is NaN.
struct ConvertKernels {
  void (*widen)(const std::uint16_t* x, float* y, std::int64_t n);
  bool (*narrow)(const float* x, std::uint16_t* y, std::int64_t n);
};

/// Of the level in force.
template <class T>
const PointwiseKernels<T>& pointwise_kernels_in_force();
const ConvertKernels& convert_kernels_in_force();

}  // namespace fp8::kernels
