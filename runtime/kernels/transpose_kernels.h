// SPDX-License-Identifier: Apache-2.0
// Between transpose.cpp, the casts that write transposed codes, and transpose_simd.cpp: squares of bytes, each of whose
// rows and columns is a cache line.
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

/// Whether the transpose of `rows` rows, dense at `out`, is stored around the caches (TransposeRun::stream): a large
/// one whose rows are whole lines.
bool streams_transpose(const std::uint8_t* out, std::int64_t rows, std::int64_t cols);

/// rows x cols bytes at run.in, of any sizes; run.tiles is not used. On the calling thread, without checks.
void transpose_block(TransposeKernel kernel, TransposeRun run, std::int64_t rows, std::int64_t cols);

}  // namespace fp8::kernels
