// SPDX-License-Identifier: Apache-2.0
// Between transpose.cpp and transpose_simd.cpp: squares of bytes, each of whose rows and columns is a cache line.
#pragma once
#include <cstdint>

namespace fp8::kernels {

inline constexpr std::int64_t kTransposeTile = 64;

/// `tiles` squares below each other, whose transposes lie beside each other.
struct TransposeRun {
  const std::uint8_t* in = nullptr;  ///< rows in_stride apart
  std::int64_t in_stride = 0;
  std::uint8_t* out = nullptr;  ///< rows out_stride apart
  std::int64_t out_stride = 0;
  std::int64_t tiles = 0;
  bool stream = false;  ///< store around the caches: each row of each square of `out` begins on a cache line
};

using TransposeKernel = void (*)(const TransposeRun& run);

TransposeKernel transpose_kernel_in_force();

}  // namespace fp8::kernels
