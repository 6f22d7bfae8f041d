// SPDX-License-Identifier: Apache-2.0
// The product of Fp8Tensors. Products of codes are exact and summed in f32; kernels/gemm.h has the numbers.
//
//   scales of a, b                       how
//   one, or one per row of the result    codes, then scales, bias and one rounding          hpu::fp8_gemm_v2
//     or column
//   blocks                               group by group of K, then bias and one rounding    fp8::block_linear
//
// Groups are those that b's scales make of K; a has the same, one scale per row, or one. Operands that are transposed,
// as in backward passes, are turned, codes and scales. What has no such groups (blocks of a but not of b, groups of
// two widths, a part of a weight that begins within a block and is transposed) is the product of the dequantized
// values, in bf16 where all scales are powers of two and the result is bf16, else in f32.
//
// The same operands give the same bits, whoever asks: a layer in inference or one in training.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

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

}  // namespace fp8::runtime
