// SPDX-License-Identifier: Apache-2.0
// Products of codes whose scales lie along rows and columns of the result: what matmul() (product.h) and
// hpu::fp8_gemm_v2 have in common. Not traced.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "fp8/runtime/kernels/gemm.h"

namespace fp8::runtime {

/// What the product looks like, 1-D operands as matrices of one row or column.
struct GemmShape {
  /// Throws c10::Error, with `op` in front, for dtypes that are not fp8 and inner dimensions that differ.
  GemmShape(const char* op, const at::Tensor& a, bool transpose_a, const at::Tensor& b, bool transpose_b);

  at::Tensor a, bt;  ///< [..., M, K] and [..., N, K], any strides
  std::int64_t m, n, k;
  std::vector<std::int64_t> batch;  ///< broadcast batch dimensions
  std::vector<std::int64_t> sizes;  ///< of the result

  /// M in all batches.
  std::int64_t all_rows() const;
};

/// What becomes of the sums: y = sum * rows * columns + bias + add, rounded once.
struct GemmTerms {
  std::span<const float> rows, columns;  ///< factors: none, one, or all_rows() and N of them
  at::Tensor bias, add;                  ///< [N] and the result's sizes; undefined: none
  kernels::Dialect dialect = kernels::Dialect::ocp;
  bool again = false;  ///< of b: Fp8Tensor::again
};

at::Tensor gemm(const GemmShape& shape, at::ScalarType out, const GemmTerms& terms);

/// For whoever fills kernels::GemmArgs. bias: contiguous, or undefined. Throws c10::Error for other sizes and dtypes.
void set_bias(kernels::GemmArgs& args, const at::Tensor& bias, const char* op);

}  // namespace fp8::runtime
