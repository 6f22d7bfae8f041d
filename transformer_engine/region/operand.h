// SPDX-License-Identifier: Apache-2.0
// A matrix as fp8 products take it. Every operand is used twice: along its columns by one product and along its rows by
// another, and a scale must be constant along what is summed only as far as its block reaches.
//
//   y  [M, N] = x [M, K] . w [N, K]^T      x, w along columns (K)
//   dx [M, K] = g [M, N] . w [N, K]        g along columns (N), w along rows
//   dw [N, K] = g^T . x                    g, x along rows (M)
#pragma once
#include "fp8/runtime/fp8_tensor/fp8_tensor.h"

namespace fp8::te {

/// [rows, cols], twice; the two share codes where one cast serves both.
struct OperandPair {
  runtime::Fp8Tensor columns, rows;
};

}  // namespace fp8::te
