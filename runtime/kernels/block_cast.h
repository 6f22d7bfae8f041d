// SPDX-License-Identifier: Apache-2.0
// High precision -> fp8 with one scale per block of a matrix, and back. The matrix [rows, cols] is cut into blocks of
// layout.rows x layout.cols, those at the right and lower edge as if padded with zeros; their scales are a dense grid
// [ceil(rows / layout.rows), ceil(cols / layout.cols)].
//
//   cast_blocks
//     max_over_amax   amax = max(max |x| of the block, amax_epsilon)
//                 scale = f32(max / amax), infinite: the largest number of x's type;
//                 power_of_two: then its exponent alone
//                 amax 0, infinite or NaN: scale 1
//                 code = RNE(clamp(f32(x * scale)))              scale_inv = f32(1 / scale)
//     amax_over_max   (checkpoints) scale_inv = max(f32(amax / max), 2^-126),
//                 amax 0: 1, infinite or NaN: itself, codes unspecified
//                 power_of_two: the smallest power of two >= that            scale = f32(1 / scale_inv)
//     given       scale as given, no amax
//   cast_mx       e = the smallest power of two >= f32(amax * f32(1 / max)), as E8M0 (OCP MX rev 1.0):
//                     2^(e - 127), e = 0..254; 0 for amax 0; 0xFE for inf; 0xFF is NaN
//                 code = RNE(clamp(f32(x * 2^(127 - e))))         0xFF: NaN codes
//   decode_*      y = round to y's type(f32(value of the code * scale_inv))
//
// So infinities saturate and a NaN stays one (recipes/tensor_scaling.h has the same rule); an MX block with a NaN is
// NaN all over, one with an infinity decodes to that infinity and zeros.
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/decode.h"

namespace fp8::kernels {

constexpr std::int64_t kMxBlock = 32;

struct BlockCastArgs : CastArgs {
  BlockCastArgs() { layout = ScaleLayout::blocks(1, 128), rule = ScaleRule::max_over_amax; }
};
struct MxCastArgs : CastArgs {
  MxCastArgs() { layout = ScaleLayout::blocks(1, kMxBlock), rule = ScaleRule::e8m0; }
};

/// By a rule other than e8m0; `given` takes args.scales, the grid. Runs on all threads of the pool, with the SIMD level
/// in force; the result depends on neither. One thread works on one block, so blocks are meant to be of thousands of
/// elements, not of millions (cast_to_fp8 has those). Of the fields for given scales of one value or a row, it reads
/// none. Throws std::invalid_argument naming the field for sizes that are negative (blocks: not positive), missing
/// pointers, a max that is no value of the format, another amax_epsilon.
void cast_blocks(const CastArgs& args);
/// As cast_blocks, with blocks of 1 x 32, along a row, or 32 x 1, down a column.
void cast_mx(const CastArgs& args);
/// As cast_blocks, without the cast: args.grid gets the amax of each block, NaN where a block has one.
void amax_blocks(const CastArgs& args);

struct BlockDecodeArgs : DecodeArgs {
  BlockDecodeArgs() { layout = ScaleLayout::blocks(1, 128); }
};

/// scale_inv or e8m0 of args is given. Runs and throws as cast_blocks; reads E4M3 as ocp does.
void decode_blocks(const DecodeArgs& args);

/// The scale of cast_blocks from the amax of a block of x's type (amax >= 0 or NaN).
float block_scale(float amax, FloatType type, float max, float amax_epsilon, bool power_of_two);
/// The scale_inv of amax_over_max.
float block_scale_inv(float amax, float max, bool power_of_two);
/// The E8M0 exponent of cast_mx from the amax of a block.
std::uint8_t e8m0_from_amax(float amax, float max);
/// 2^(e - 127), subnormal for e = 0; NaN for 0xFF.
float e8m0_value(std::uint8_t e);

}  // namespace fp8::kernels
