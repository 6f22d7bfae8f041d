// SPDX-License-Identifier: Apache-2.0
// fp8 codes with the scales that give them meaning: what casts return, and what products and decodes take.
//
//   value(r, c) = codes[r, c] * scale_inv of the block that (r, c) lies in
//
//   layout          one scale for     scales                                       made for
//   per_tensor()    all               scale_inv                                    static and per-tensor scales
//   per_row()       a row             grid [..., 1]                                tokens, output channels
//   per_column()    a column          grid [..., 1, C]                             the right operand of a product
//   blocks(r, c)    r x c elements    grid [ceil(R / r), ceil(C / c)]              groups of a token (1 x c), weights
//                                                                                  (128 x 128), MX (1 x 32, E8M0)
//
// codes [..., C] are seen as a matrix [R, C]: all dimensions but the last are rows. Per row and in groups the grid
// keeps the dimensions of the codes, with the number of groups as the last.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fp8/runtime/kernels/format.h"

namespace fp8::runtime {

/// What of a matrix one scale covers, in elements; 0: all of that dimension.
struct ScaleLayout {
  std::int64_t rows = 0, cols = 0;
  /// The codes begin with this row of their first block: a part of a weight.
  std::int64_t first_row = 0;

  static constexpr ScaleLayout per_tensor() { return {}; }
  static constexpr ScaleLayout per_row() { return {1, 0}; }
  static constexpr ScaleLayout per_column() { return {0, 1}; }
  static constexpr ScaleLayout blocks(std::int64_t rows, std::int64_t cols) { return {rows, cols}; }

  bool one() const { return rows == 0 && cols == 0; }
  bool has_blocks() const { return rows > 0 && cols > 0; }
  bool operator==(const ScaleLayout&) const = default;
};

struct Fp8Tensor {
  at::Tensor codes;        ///< float8_e4m3fn or float8_e5m2
  float scale_inv = 1.0f;  ///< of the layout per_tensor(): a number, so that the common case allocates nothing
  at::Tensor grid = {};    ///< of the others: f32, or float8_e8m0fnu; on any device, all of which are host memory
  ScaleLayout layout = {};
  bool power_of_two = false;  ///< every scale is: values are exact in bf16
  /// Whose reading of E4M3 the codes need. What is cast here has no code that two dialects read differently, whatever
  /// it saturates at: only codes that come from elsewhere (a loaded weight) say gaudi2.
  kernels::Dialect dialect = kernels::Dialect::ocp;
  bool again = false;  ///< a model's weight: products will read these codes again and again (device/block.h)
};

}  // namespace fp8::runtime
