// SPDX-License-Identifier: Apache-2.0
// High precision -> fp8, and the largest magnitude of what was cast, in one pass over memory.
//
//   y = x * scale             f32 product (one rounding); with CastSpec::vendor also rounded to x's type, as the
//                             vendor's op does
//   y = clamp(y, -max, max)   infinities saturate too
//   code = RNE(y)             NaN stays NaN (sign | 0x7F), -0 stays -0, subnormals exact; sign = sign(x) ^ sign(scale)
//   amax = max |x|            of the unscaled input, f32; NaN if any x is NaN, inf if any is infinite
#pragma once

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

/// Size of a grid of blocks along one dimension: ceil(size / block), 0 for size 0. size >= 0, block >= 1.
constexpr std::int64_t blocks_of(std::int64_t size, std::int64_t block) {
  return size == 0 ? 0 : (size - 1) / block + 1;
}

/// The part of a matrix that one scale covers, in elements; 0: all of that dimension.
struct ScaleLayout {
  std::int64_t rows = 0, cols = 0;
  /// The matrix begins with this row of its first block: a part of a weight.
  std::int64_t first_row = 0;

  static constexpr ScaleLayout per_tensor() { return {}; }
  static constexpr ScaleLayout per_row() { return {1, 0}; }
  static constexpr ScaleLayout per_column() { return {0, 1}; }
  static constexpr ScaleLayout blocks(std::int64_t rows, std::int64_t cols) { return {rows, cols}; }

  constexpr bool one() const { return rows == 0 && cols == 0; }
  constexpr bool has_blocks() const { return rows > 0 && cols > 0; }
  /// A row has its own scales, each of its elements one or all the same: cast_to_fp8 and decode_from_fp8 take these.
  constexpr bool along_rows() const { return rows >= 0 && rows <= 1 && cols >= 0 && cols <= 1; }
  /// along_rows(): where the scale of element (row, col) of a matrix of `width` columns lies.
  constexpr std::int64_t at(std::int64_t row, std::int64_t col, std::int64_t width) const {
    return row * rows * (cols == 0 ? 1 : width) + col * cols;
  }
  /// The scales of a matrix: a dense grid of so many rows and columns.
  struct Grid {
    std::int64_t rows = 1, cols = 1;
    constexpr std::int64_t size() const { return rows * cols; }
  };
  constexpr Grid grid(std::int64_t height, std::int64_t width) const {
    return {rows == 0 ? 1 : blocks_of(height, rows), cols == 0 ? 1 : blocks_of(width, cols)};
  }
  /// Any layout: the place in that grid of the scale of element (row, col) of a matrix of `width` columns.
  constexpr std::int64_t in_grid(std::int64_t row, std::int64_t col, std::int64_t width) const {
    return (rows == 0 ? 0 : row / rows * grid(0, width).cols) + (cols == 0 ? 0 : col / cols);
  }
  bool operator==(const ScaleLayout&) const = default;
};

/// The source of the scales.
enum class ScaleRule : std::uint8_t {
  given,
  amax_over_max,  ///< scale_inv = amax / max at the call: activations, checkpoints
  max_over_amax,  ///< scale = max / amax: blocks of training recipes
  e8m0,           ///< OCP MX: powers of two as E8M0, blocks of 1 x 32 or 32 x 1
};

/// The description of a cast, for every caller: fp8_tensor/cast.h casts tensors by it, CastArgs adds a matrix in
/// memory.
struct CastSpec {
  Format format = Format::E4M3;
  std::optional<float> max = {};  ///< the magnitude at which it saturates, fp8_max(format, dialect); none: ocp's
  ScaleLayout layout = {};
  ScaleRule rule = ScaleRule::given;
  float scale = 1.0f, scale_inv = 1.0f;  ///< given, one: multipliers into and out of fp8
  const float* scales = nullptr;         ///< given: a multiplier for each row, column or block, in the place of `scale`
  bool power_of_two = false;             ///< blocks: scales are rounded to powers of two
  float amax_epsilon = 0.0f;             ///< max_over_amax: the least amax, >= 0 and finite
  /// given: the arithmetic of hpu::cast_to_fp8_v2, which rounds `scale` (not `scales`) and the product to x's type (no
  /// effect for F32). Otherwise x * scale is an f32 product that is rounded once, to fp8.
  bool vendor = false;
  /// Stochastic rounding: bits from (seed, element index), the same on any thread count. None: to nearest even.
  std::optional<std::uint64_t> stochastic = {};
  /// Stochastic: products smaller than the format's smallest number become 0 (signed). Otherwise they too are that
  /// number or 0, with the right probability, so that sums of many stay unbiased.
  bool flush_subnormal = false;
  float* amax = nullptr;  ///< given: gets max |x|
  /// For tensors (fp8_tensor/cast.h). given, x of two dimensions: the codes lie column by column, as a product reads
  /// them that sums along the rows (codes.t() is contiguous).
  bool transpose = false;

  float saturation() const { return max.value_or(fp8_max(format, Dialect::ocp)); }
  /// Two casts of one x whose codes are equal, however they lie.
  bool same_codes(const CastSpec& other) const;
  /// Two casts of one x that are known to be equal.
  bool same_result(const CastSpec& other) const {
    return scales == nullptr && !stochastic && transpose == other.transpose && same_codes(other);
  }
};

/// One cast of a matrix [rows, cols]; rows of x are row_stride elements apart, what is written is dense.
struct CastArgs : CastSpec {
  const void* x = nullptr;          ///< [rows, cols], elements contiguous within a row
  FloatType type = FloatType::F32;  ///< type of x
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_stride = 0;    ///< in elements, >= cols
  std::uint8_t* codes = nullptr;  ///< [rows, cols]; nullptr where only the transpose is wanted
  /// [cols, rows]: the codes' transpose, written while they are in the cache. nullptr: not wanted. cast_to_fp8 and
  /// cast_to_fp8_twice only.
  std::uint8_t* transposed = nullptr;
  float* grid = nullptr;         ///< amax_over_max, max_over_amax: gets the scale_inv of each row or block
  std::uint8_t* e8m0 = nullptr;  ///< the rule e8m0: gets those of the blocks
};

/// The cast of a dense f32 matrix with one scale (null: 1), to nearest.
inline CastArgs dense_cast(const float* x, std::int64_t rows, std::int64_t cols, std::uint8_t* codes, Format format,
                           float max, const float* scale = nullptr) {
  CastArgs args;
  args.x = x;
  args.rows = rows;
  args.cols = args.row_stride = cols;
  args.codes = codes;
  args.format = format;
  args.max = max;
  if (scale != nullptr) args.scale = *scale;
  return args;
}

/// The cast that rule and layout ask for: one of those below.
void cast(const CastArgs& args);

/// Given scales. Runs on all threads of the pool, with the SIMD level in force; the result depends on neither. The
/// layout is along_rows(), max a value of the format, no size negative, no needed pointer null; else
/// std::invalid_argument. amax of nothing is 0.
void cast_to_fp8(const CastArgs& args);

/// Both casts of one x (type, rows, cols and row_stride are equal, else std::invalid_argument) in one pass over memory:
/// the second reads from the cache. Bit for bit what two calls of cast_to_fp8 give.
void cast_to_fp8_twice(const CastArgs& first, const CastArgs& second);

/// Per row: amax[r] = max |x[r, :]|, then scale_inv[r] = f32(amax / max), scale[r] = f32(1 / scale_inv[r]) and the cast
/// with it, while the row is in cache. A row of zeros gets scale 1 and zero codes; scale_inv is at least 2^-126
/// otherwise, so that scale is finite. A row with a NaN gets a NaN scale_inv and NaN codes. What is for given scales is
/// not read. scale_inv: [rows]. Dynamic per-token activations and per-channel weights use this.
void cast_rows_dynamic(const CastArgs& args, float* scale_inv);

/// For kernels that make a matrix row by row: the codes of row `row` of y, n elements of `type` at `y`, cast while the
/// row is still in the core's first cache. The result is that of a cast of the whole matrix afterwards, to the bit:
/// cast_to_fp8 with one given scale, or cast_rows_dynamic where args.grid is set. Reads of args what these do but for x
/// and its sizes. Without checks.
void cast_row(const CastArgs& args, FloatType type, const void* y, std::int64_t row, std::int64_t n);

/// max |x| over n contiguous elements (NaN if any is NaN, 0 for n = 0). These three throw like cast_to_fp8.
float amax(const void* x, FloatType type, std::int64_t n);

/// Per row of [rows, cols]: out[r] = max |x[r, :]|.
void amax_rows(const void* x, FloatType type, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
               float* out);

/// Per column: out[c] = max over r of |x[r, c]|.
void amax_cols(const void* x, FloatType type, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
               float* out);

// fp8 -> high precision: y = round(f32(code) * scale_inv). All 256 codes are exact in f32; the product is an f32
// product, and bf16 and f16 outputs are that product rounded to nearest even once more, as readers of fp8 checkpoints
// do. NaN stays NaN with the code's sign.

/// One decode of a dense matrix of codes [rows, cols] into y [rows, cols].
struct DecodeArgs {
  const std::uint8_t* codes = nullptr;
  std::int64_t rows = 0, cols = 0;
  Format format = Format::E4M3;
  void* y = nullptr;
  FloatType type = FloatType::F32;  ///< type of y
  /// Multipliers on the way out, as `layout` has them; nullptr means 1.
  ScaleLayout layout = {};
  const float* scale_inv = nullptr;
  const std::uint8_t* e8m0 = nullptr;  ///< decode_blocks: those of the blocks as E8M0, instead
  /// The reading of E4M3: gaudi2 takes 0x78 for infinity and what lies above for NaN, the others for 256 to 448.
  Dialect dialect = Dialect::ocp;
};

/// Runs on all threads of the pool, with the SIMD level in force; the result depends on neither. Throws
/// std::invalid_argument for negative sizes, null pointers that are needed, and layouts that are not along_rows().
void decode_from_fp8(const DecodeArgs& args);

/// The value of each of the 256 codes as `dialect` reads them (ocp, gaudi3: E4M3 0x7F/0xFF NaN; gaudi2: 0x78 infinity,
/// above NaN).
const float* decode_table(Format format, Dialect dialect = Dialect::ocp);

/// True if any of the n codes is NaN or infinite when read by `dialect` (ocp and gaudi3 have no E4M3 infinity). Throws
/// std::invalid_argument for negative n or null codes.
bool has_nan_code(const std::uint8_t* codes, std::int64_t n, Format format, Dialect dialect);

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
// So infinities saturate and a NaN stays one (recipes/scaling.h has the same rule); an MX block with a NaN is
// NaN all over, one with an infinity decodes to that infinity and zeros.

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
