// SPDX-License-Identifier: Apache-2.0
// NVFP4 emulated on the host: what a matrix loses in this format, before one has the hardware. Forward rules only:
// round to nearest, no Hadamard transform of inputs and gradients, no stochastic rounding; it is no Recipe and no
// kernel.
//
//   E2M1   s ee m   bias 1   0  0.5  1  1.5  2  3  4  6        two codes per byte, the first element in the low nibble
//
//   s_enc    = f32(448 * 6 / amax of the matrix)             FLT_MAX where infinite, 1 for a matrix of zeros
//   s_block  = E4M3(f32(f32(amax of the block / 6) * s_enc)) one per 16 neighbours of a row, or per 16 x 16 (weights)
//   m        = f32(value of s_block * f32(1 / s_enc))        what a block's codes are multiplied with on the way out
//   code     = E2M1(f32(x * min(f32(1 / m), FLT_MAX)))       to nearest, ties to even, beyond 6 to 6
#pragma once
#include <cstdint>
#include <vector>

namespace fp8::recipes {

constexpr int kNVFP4Block = 16;
constexpr float kE2M1Max = 6.0f;

struct NVFP4Matrix {
  std::int64_t rows = 0, cols = 0;
  bool square_blocks = false;              ///< 16 x 16, else 1 x 16
  std::vector<std::uint8_t> codes;         ///< [rows, ceil(cols / 2)], unused nibbles 0
  std::vector<std::uint8_t> block_scales;  ///< E4M3 codes, [rows or ceil(rows / 16), ceil(cols / 16)]
  float scale_inv = 1.0f;                  ///< f32(1 / s_enc)
};

/// x: [rows, cols] dense. Blocks at the edges have what is there. A block with a NaN or an infinity gets a NaN scale,
/// and is not counted in the matrix's amax. Throws std::invalid_argument for negative sizes, or nullptr where there are
/// elements.
NVFP4Matrix nvfp4_quantize(const float* x, std::int64_t rows, std::int64_t cols, bool square_blocks = false);

/// [rows, cols] dense; within +-FLT_MAX, NaN for blocks that had no finite amax. Throws std::invalid_argument if the
/// vectors' sizes don't fit.
std::vector<float> nvfp4_dequantize(const NVFP4Matrix& matrix);

/// The code of x, 0 to 15; NaN becomes 0.
std::uint8_t e2m1_from_float(float x);

/// The value of the lower four bits.
float e2m1_to_float(std::uint8_t code);

}  // namespace fp8::recipes
