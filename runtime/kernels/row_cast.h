// SPDX-License-Identifier: Apache-2.0
// What a kernel that makes a matrix row by row may write beside it: the row's fp8 codes, cast while the row is still in
// the core's first cache. Bit for bit what a cast of the whole matrix (cast.h) gives afterwards:
//
//   one scale, given    cast_to_fp8(y, scale)
//   scale_inv           cast_rows_dynamic(y): one per row, of its amax
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

struct RowCast {
  std::uint8_t* codes = nullptr;  ///< [rows, n]; nullptr: no cast is wanted, and nothing else is read
  Format format = Format::E4M3;
  float max = 448.0f;          ///< saturation, fp8_max(format, dialect)
  float scale = 1.0f;          ///< multiplier, where scale_inv is nullptr
  bool round_product = false;  ///< CastArgs; where scale_inv is nullptr
  float* scale_inv = nullptr;  ///< [rows], written
};

/// Casts row `row` of y, which lies at `y`: n elements of `type`. Without checks.
void cast_row(const RowCast& cast, FloatType type, const void* y, std::int64_t row, std::int64_t n);

}  // namespace fp8::kernels
