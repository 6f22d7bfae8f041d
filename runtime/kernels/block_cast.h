// SPDX-License-Identifier: Apache-2.0
// High precision -> fp8 with one scale per block of a matrix, and back. The matrix [rows, cols] is cut into tiles of
// block_rows x block_cols, those at the right and lower edge as if padded with zeros; their scales are a dense grid
// [ceil(rows / block_rows), ceil(cols / block_cols)].
//
//   cast_blocks   amax = max(max |x| of the block, amax_epsilon)
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

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

/// Where the scales of cast_blocks come from.
enum class BlockRule : std::uint8_t { max_over_amax, amax_over_max, given };

struct BlockCastArgs {
  const void* x = nullptr;          ///< [rows, cols], elements contiguous within a row
  FloatType type = FloatType::F32;  ///< type of x
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_stride = 0;    ///< in elements, >= cols
  std::uint8_t* codes = nullptr;  ///< [rows, cols] dense
  Format format = Format::E4M3;
  float max = 448.0f;  ///< saturation and target of the scale, fp8_max(format, dialect)
  std::int64_t block_rows = 1, block_cols = 128;
  BlockRule rule = BlockRule::max_over_amax;
  bool power_of_two = false;
  float amax_epsilon = 0.0f;     ///< >= 0, finite; max_over_amax only
  float* scale_inv = nullptr;    ///< the grid, dense; not written with `given`, may be null then
  const float* scale = nullptr;  ///< `given` only: the grid
  bool stochastic = false;       ///< bits from (seed, r * cols + c), as cast_to_fp8
  std::uint64_t seed = 0;
};

/// Runs on all threads of the pool, with the SIMD level in force; the result depends on neither. One thread works on
/// one block, so blocks are meant to be of thousands of elements, not of millions (cast_to_fp8 has those). Throws
/// std::invalid_argument naming the field for sizes that are negative (blocks: not positive), missing pointers, a max
/// that is no value of the format, another amax_epsilon.
void cast_blocks(const BlockCastArgs& args);

struct BlockAmaxArgs {
  const void* x = nullptr;  ///< as in BlockCastArgs
  FloatType type = FloatType::F32;
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_stride = 0;
  std::int64_t block_rows = 1, block_cols = 128;
  float* amax = nullptr;  ///< the grid, dense; NaN where a block has one
};

/// As cast_blocks, without the cast.
void amax_blocks(const BlockAmaxArgs& args);

constexpr std::int64_t kMxBlock = 32;

struct MxCastArgs {
  const void* x = nullptr;  ///< as in BlockCastArgs
  FloatType type = FloatType::F32;
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_stride = 0;
  std::uint8_t* codes = nullptr;
  Format format = Format::E4M3;
  float max = 448.0f;
  bool columnwise = false;       ///< false: blocks of 1 x 32, along a row; true: 32 x 1, down a column
  std::uint8_t* e8m0 = nullptr;  ///< [rows, ceil(cols / 32)], or [ceil(rows / 32), cols], dense
  bool stochastic = false;
  std::uint64_t seed = 0;
};

/// As cast_blocks.
void cast_mx(const MxCastArgs& args);

struct BlockDecodeArgs {
  const std::uint8_t* codes = nullptr;  ///< [rows, cols] dense
  std::int64_t rows = 0, cols = 0;
  Format format = Format::E4M3;
  std::int64_t block_rows = 1, block_cols = 128;
  const float* scale_inv = nullptr;    ///< the grid; or
  const std::uint8_t* e8m0 = nullptr;  ///< the grid as E8M0; exactly one of the two
  void* y = nullptr;                   ///< [rows, cols] dense
  FloatType type = FloatType::F32;     ///< type of y
};

/// As cast_blocks.
void decode_blocks(const BlockDecodeArgs& args);

/// Size of the grid along one dimension: ceil(size / block), 0 for size 0. size >= 0, block >= 1.
constexpr std::int64_t blocks_of(std::int64_t size, std::int64_t block) {
  return size == 0 ? 0 : (size - 1) / block + 1;
}

/// The scale of cast_blocks from the amax of a block of x's type (amax >= 0 or NaN).
float block_scale(float amax, FloatType type, float max, float amax_epsilon, bool power_of_two);
/// The scale_inv of amax_over_max.
float block_scale_inv(float amax, float max, bool power_of_two);
/// The E8M0 exponent of cast_mx from the amax of a block.
std::uint8_t e8m0_from_amax(float amax, float max);
/// 2^(e - 127), subnormal for e = 0; NaN for 0xFF.
float e8m0_value(std::uint8_t e);

}  // namespace fp8::kernels
