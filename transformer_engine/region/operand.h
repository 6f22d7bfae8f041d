// SPDX-License-Identifier: Apache-2.0
// A matrix as fp8 products take it. Every operand is used twice: along its columns by one product and along its rows by
// another, and a scale must be constant along what is summed only as far as its block reaches.
//
//   y  [M, N] = x [M, K] . w [N, K]^T      x, w along columns (K)
//   dx [M, K] = g [M, N] . w [N, K]        g along columns (N), w along rows
//   dw [N, K] = g^T . x                    g, x along rows (M)
#pragma once
#include <ATen/core/Tensor.h>

namespace fp8::te {

/// codes [rows, cols] fp8 with one scale_inv, or with a grid of them (one per block).
struct Operand {
  at::Tensor codes;
  float scale_inv = 1.0f;
  at::Tensor grid;  ///< undefined: one scale_inv. F32 or E8M0 [ceil(rows / block_rows), ceil(cols / block_cols)]
  std::int64_t block_rows = 0, block_cols = 0;
  bool power_of_two = false;  ///< every scale is: values are exact in bf16
};

struct OperandPair {
  Operand columns, rows;
};

}  // namespace fp8::te
