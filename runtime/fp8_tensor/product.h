// SPDX-License-Identifier: Apache-2.0
// The product of Fp8Tensors. Products of codes are exact and summed in f32; kernels/gemm.h has the numbers.
//
//   scales of a, b                       how
//   one, or one per row of the result    codes, then scales, bias and one rounding          hpu::fp8_gemm_v2
//     or column
//   blocks                               group by group of K, then bias and one rounding    fp8::block_linear
//
// Groups are those that b's scales make of K; a has the same, one scale per row, or one. Transposed operands, as in
// backward passes, are read as views, codes and scales. What has no such groups (blocks of a but not of b, groups of
// two widths, a part of a weight that begins within a block and is transposed) is the product of the dequantized
// values, in bf16 where all scales are powers of two and the result is bf16, else in f32.
//
// Equal operands give equal bits in inference and in training.
#pragma once

#include "fp8/runtime/fp8_tensor/fp8_tensor.h"

namespace fp8::runtime {

/// op(a) . op(b) in `out` (f32, bf16 or f16) + bias [N]; op transposes the last two dimensions. a: [..., M, K] or [K],
/// b: [..., K, N] or [K] after op(); batch dimensions broadcast as in at::matmul. Scales: one each, or per row of op(a)
/// and per column of op(b) (of two dimensions), or blocks. Throws c10::Error for what does not fit.
at::Tensor matmul(const Fp8Tensor& a, bool transpose_a, const Fp8Tensor& b, bool transpose_b, at::ScalarType out,
                  const std::optional<at::Tensor>& bias = {});

/// x . w^T + bias of x [..., K] in high precision, unrounded, with w [N, K].
at::Tensor linear(const at::Tensor& x, const Fp8Tensor& w, at::ScalarType out,
                  const std::optional<at::Tensor>& bias = {});

// Products that share their left operand, as one of the kernel (kernels/gemm.h, gemm_together): q, k and v, gate and
// up. Weights stay where and as they lie: each is read with its own order, scales and dialect.

/// matmul(x, false, w, true, out) of each w [N, K], to the bit. Empty where one kernel can't give them:
/// blocks of other columns than each other's or x's, only some of which are said to have powers of two as scales, codes
/// or scales that aren't contiguous, weights that share their memory. Not traced.
std::vector<at::Tensor> products_together(const Fp8Tensor& x, at::ArrayRef<Fp8Tensor> weights, at::ScalarType out);
/// linear(x, w, out) of each w.
std::vector<at::Tensor> products_together(const at::Tensor& x, at::ArrayRef<Fp8Tensor> weights, at::ScalarType out);

// Attention of high precision queries to keys and values that are codes, as a key-value cache holds them. Of few rows
// (kernels/attention.h) the codes are read once, where they lie; of more they are dequantized first. The same bits as
// scaled_dot_product_attention of the dequantized ones.

/// softmax(scale q k^T + mask) v in q's dtype. q: [B, H, L, E] of bf16, f16 or f32; k, v: codes [B, H, S, E] with one
/// scale each; mask: bool (true: seen) or added to the scores, broadcastable to [B, H, L, S], or undefined. No
/// gradient. Throws c10::Error for scales of another layout.
at::Tensor attention(const at::Tensor& q, const Fp8Tensor& k, const Fp8Tensor& v, const at::Tensor& mask, double scale);

}  // namespace fp8::runtime
