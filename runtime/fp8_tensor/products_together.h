// SPDX-License-Identifier: Apache-2.0
// Products that share their left operand, as one of the kernel (kernels/gemm.h, gemm_together): q, k and v, gate and
// up. Weights stay where and as they lie: each is read with its own order, scales and dialect.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "fp8/runtime/fp8_tensor/fp8_tensor.h"

namespace fp8::runtime {

/// matmul(x, false, w, true, out) (product.h) of each w [N, K], to the bit. Empty where one kernel can't give them:
/// blocks of other columns than each other's or x's, only some of which are said to have powers of two as scales, codes
/// or scales that aren't contiguous, weights that share their memory. Not traced.
std::vector<at::Tensor> products_together(const Fp8Tensor& x, at::ArrayRef<Fp8Tensor> weights, at::ScalarType out);
/// linear(x, w, out) of each w.
std::vector<at::Tensor> products_together(const at::Tensor& x, at::ArrayRef<Fp8Tensor> weights, at::ScalarType out);

}  // namespace fp8::runtime
