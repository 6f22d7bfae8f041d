// SPDX-License-Identifier: Apache-2.0
// fp8 -> high precision: y = round(f32(code) * scale_inv). All 256 codes are exact in f32; the product is an f32
// product, and bf16 and f16 outputs are that product rounded to nearest even once more, as readers of fp8 checkpoints
// do. NaN stays NaN with the code's sign.
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/cast.h"

namespace fp8::kernels {

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
  const std::uint8_t* e8m0 = nullptr;  ///< decode_blocks (block_cast.h): those of the blocks as E8M0, instead
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

}  // namespace fp8::kernels
