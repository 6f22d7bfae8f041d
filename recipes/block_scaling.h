// SPDX-License-Identifier: Apache-2.0
// Block scaling: current scaling of each block of a matrix, f32 scales or powers of two.
//
//   dimension 1    1 x block     one scale for 128 neighbours along the product's inner dimension
//   dimension 2    block x block one scale for a square
//
// Partial blocks at the edges have the amax of what is there. In each of the three products at most one operand may
// have square blocks:  y = x w^T     dx = g w     dw = g^T x
#pragma once

#include "fp8/recipes/scaling.h"

namespace fp8::recipes {

struct BlockScaling {
  RecipeFormat fp8_format = RecipeFormat::E4M3;
  int x_block_scaling_dim = 1, w_block_scaling_dim = 2, grad_block_scaling_dim = 1;
  bool power_of_two_scale = true;
  int block = 128;            ///< a power of two, 16 to 1024
  float amax_epsilon = 0.0f;  ///< lower bound of amax, finite and >= 0

  bool operator==(const BlockScaling&) const = default;
};

/// fp8_format: E4M3, HYBRID; dimensions: 1, 2, and no two of them 2; block and amax_epsilon as above.
std::optional<FieldProblem> find_problem(const BlockScaling& recipe);

/// Throws std::invalid_argument naming field, found and allowed values.
void validate(const BlockScaling& recipe);

RecipeScaling scaling_of(const BlockScaling& recipe);

/// The scale of a block with largest magnitude `amax`: current_scale()'s rule with this recipe's power_of_two_scale and
/// amax_epsilon. A block of zeros has scale 1.
float block_scale(float amax, float fp8_max, const BlockScaling& recipe,
                  float dtype_max = std::numeric_limits<float>::max());

// MXFP8 (OCP Microscaling): blocks of 32 neighbours along the product's inner dimension share one power of two, stored
// as E8M0, an exponent alone:
//
//   E8M0   eeeeeeee   bias 127   code c is 2^(c - 127)   0x00 2^-127 ... 0xFE 2^127   0xFF NaN   no zero, no infinity
//
//   v    = f32(amax * f32(1 / fp8_max))
//   code = 127 + the smallest e in -127 .. 127 with 2^e >= v; NaN 0xFF, infinity 0xFE, 0 0x00
//
// The block's values are multiplied with 2^(127 - code) and then saturate; since the exponent is rounded up, they do so
// only where v itself was rounded down to a power of two, and lose a step of f32.

struct MXFP8 {
  RecipeFormat fp8_format = RecipeFormat::E4M3;
  int block = 32;

  bool operator==(const MXFP8&) const = default;
};

/// fp8_format: E4M3, HYBRID; block: 32.
std::optional<FieldProblem> find_problem(const MXFP8& recipe);

/// Throws std::invalid_argument naming field, found and allowed values.
void validate(const MXFP8& recipe);

RecipeScaling scaling_of(const MXFP8& recipe);

/// The code of a block's scale_inv; amax 0 or more, infinite or NaN. The kernels' casts use this very function.
std::uint8_t e8m0_from_amax(float amax, float fp8_max);

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
