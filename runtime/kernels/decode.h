// SPDX-License-Identifier: Apache-2.0
// fp8 -> high precision: y = round(f32(code) * scale_inv), one rounding to the output type. All 256 codes exact.
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

/// One decode of a dense matrix of codes [rows, cols] into y [rows, cols].
struct DecodeArgs {
  const std::uint8_t* codes = nullptr;
  std::int64_t rows = 0, cols = 0;
  Format format = Format::E4M3;
  void* y = nullptr;
  FloatType type = FloatType::F32;   ///< type of y
  /// Multiplier on the way out of element (r, c): scale_inv[r * row_stride + c * col_stride]; nullptr means 1.
  const float* scale_inv = nullptr;
  std::int64_t scale_row_stride = 0, scale_col_stride = 0;
};

void decode_from_fp8(const DecodeArgs& args);

/// The value of each of the 256 codes (OCP reading; E4M3 0x7F/0xFF NaN).
const float* decode_table(Format format);

/// True if any of the n codes is NaN (E5M2: or infinite) when read by `dialect`.
bool has_nan_code(const std::uint8_t* codes, std::int64_t n, Format format, Dialect dialect);

}  // namespace fp8::kernels
