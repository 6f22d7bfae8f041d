// SPDX-License-Identifier: Apache-2.0
// High precision -> fp8, and the largest magnitude of what was cast, in one pass over memory.
//
//   y = x * scale             f32 product (one rounding); with round_product also rounded to x's type, as the vendor's
//                             op does
//   y = clamp(y, -max, max)   infinities saturate too
//   code = RNE(y)             NaN stays NaN (sign | 0x7F), -0 stays -0, subnormals exact; sign = sign(x) ^ sign(scale)
//   amax = max |x|            of the unscaled input, f32; NaN if any x is NaN, inf if any is infinite
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

/// One cast of a matrix [rows, cols]; rows of x are row_stride elements apart, codes are written densely.
struct CastArgs {
  const void* x = nullptr;          ///< [rows, cols], elements contiguous within a row
  FloatType type = FloatType::F32;  ///< type of x
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_stride = 0;    ///< in elements, >= cols
  std::uint8_t* codes = nullptr;  ///< [rows, cols]; nullptr where only the transpose is wanted
  /// [cols, rows], dense: the codes' transpose, written while they are in the cache. nullptr: not wanted.
  /// cast_to_fp8 and cast_to_fp8_twice only.
  std::uint8_t* transposed = nullptr;
  Format format = Format::E4M3;
  float max = 448.0f;  ///< saturation, fp8_max(format, dialect)
  /// Multiplier of element (r, c): scale[r * scale_row_stride + c * scale_col_stride]. (0, 0) per tensor, (1, 0) per
  /// row (a weight's output channel, an activation's token), (0, 1) per column. nullptr means 1.
  const float* scale = nullptr;
  std::int64_t scale_row_stride = 0, scale_col_stride = 0;
  bool round_product = false;  ///< round x * scale to x's type before the cast (no effect for F32)
  bool stochastic = false;     ///< stochastic rounding: bits from (seed, element index), the same on any thread count
  std::uint64_t seed = 0;
  /// Stochastic: products smaller than the format's smallest number become 0 (signed). Otherwise they too are that
  /// number or 0, with the right probability, so that sums of many stay unbiased.
  bool flush_subnormal = false;
  float* amax = nullptr;  ///< optional, one value
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
  args.scale = scale;
  return args;
}

/// Runs on all threads of the pool, with the SIMD level in force; the result depends on neither. scale_col_stride is 0
/// or 1, max a value of the format, no size negative, no needed pointer null; else std::invalid_argument. amax of
/// nothing is 0.
void cast_to_fp8(const CastArgs& args);

/// Both casts of one x (type, rows, cols and row_stride are equal, else std::invalid_argument) in one pass over memory:
/// the second reads from the cache. Bit for bit what two calls of cast_to_fp8 give.
void cast_to_fp8_twice(const CastArgs& first, const CastArgs& second);

/// Per row: amax[r] = max |x[r, :]|, then scale_inv[r] = f32(amax / args.max), scale[r] = f32(1 / scale_inv[r]) and the
/// cast with it, while the row is in cache. A row of zeros gets scale 1 and zero codes; scale_inv is at least 2^-126
/// otherwise, so that scale is finite. A row with a NaN gets a NaN scale_inv and NaN codes. args.scale and args.amax
/// are not read. scale_inv: [rows]. Dynamic per-token activations and per-channel weights use this.
void cast_rows_dynamic(const CastArgs& args, float* scale_inv);

/// max |x| over n contiguous elements (NaN if any is NaN, 0 for n = 0). These three throw like cast_to_fp8.
float amax(const void* x, FloatType type, std::int64_t n);

/// Per row of [rows, cols]: out[r] = max |x[r, :]|.
void amax_rows(const void* x, FloatType type, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
               float* out);

/// Per column: out[c] = max over r of |x[r, c]|.
void amax_cols(const void* x, FloatType type, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
               float* out);

}  // namespace fp8::kernels
