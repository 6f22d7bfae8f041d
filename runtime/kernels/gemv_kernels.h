// SPDX-License-Identifier: Apache-2.0
// Between gemv.cpp and gemv_simd.cpp: rows of the weight against activations that are f32 already, in the order in
// which the sums of gemv.h take them.
//
//   x   [m][blocks][2][16]   block b: elements 32b, 32b + 2, ... 32b + 30, then 32b + 1, ... 32b + 31; 0 beyond k
#pragma once
#include <cstdint>

namespace fp8::kernels {

inline constexpr std::int64_t kGemvBlock = 32;

struct GemvRange {
  const float* x = nullptr;
  int m = 0;  ///< 1 or 2
  std::int64_t k = 0;
  const std::uint16_t* w = nullptr;  ///< row `first` of the weight
  std::int64_t w_stride = 0;
  std::int64_t rows = 0;
  float* sums = nullptr;  ///< [m][rows], sums_stride apart
  std::int64_t sums_stride = 0;
};

using GemvKernel = void (*)(const GemvRange& range);

GemvKernel gemv_kernel_in_force();

}  // namespace fp8::kernels
