// SPDX-License-Identifier: Apache-2.0
// Between gemv.cpp and gemv_simd.cpp: rows of the weight against the activations, which stay bf16: as f32, those of
// more than 2048 columns would not stay in the first cache beside the weight that passes through it.
#pragma once
#include <cstdint>

namespace fp8::kernels {

inline constexpr std::int64_t kGemvBlock = 32;

struct GemvRange {
  const std::uint16_t* a = nullptr;  ///< [m][k], rows a_stride apart
  std::int64_t a_stride = 0;
  int m = 0;  ///< 1 or 2
  std::int64_t k = 0;
  const std::uint16_t* w = nullptr;  ///< row `first` of the weight
  std::int64_t w_stride = 0;
  std::int64_t rows = 0;
  float* sums = nullptr;  ///< [m][rows], sums_stride apart
  std::int64_t sums_stride = 0;
  /// Rows of four places are read in turns: an Emerald Rapids then reads 1.3 to 1.6 times as fast, a Zen 4 at half its
  /// speed. The bits are the same.
  bool streams = false;
};

using GemvKernel = void (*)(const GemvRange& range);

GemvKernel gemv_kernel_in_force();

}  // namespace fp8::kernels
