// SPDX-License-Identifier: Apache-2.0
// fp8::weight_only_linear, an operator of ours: high precision activations with an fp8 weight, decoded in registers.
//
//   y = (x . w^T) * scale_inv (+ bias)      f32 activations stay exact; products of bf16 ones are exact; sums f32
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace fp8::runtime::ops {

/// x: [..., K] f32, bf16 or f16; weight: [N, K] fp8; scale_inv: f32, one value or [N]; bias: [N]. Returns [..., N] in
/// x's dtype.
at::Tensor weight_only_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scale_inv,
                              const std::optional<at::Tensor>& bias);

/// y[..., N] = sum over k of x[..., k] * weight[N, k] * their scales + bias, with a scale per block of the weight and,
/// for codes, one per group of block_cols neighbours in a row of x (numbers: kernels/gemm.h). x: high precision, or fp8
/// with x_scale_inv [..., G] f32; weight [N, K] fp8: rows from first_row on of one whose scales weight_scale_inv [grid
/// rows, G] f32 are, G = ceil(K / block_cols). out_dtype: f32, bf16 or f16.
at::Tensor block_linear(const at::Tensor& x, const std::optional<at::Tensor>& x_scale_inv, const at::Tensor& weight,
                        const at::Tensor& weight_scale_inv, std::int64_t block_rows, std::int64_t block_cols,
                        std::int64_t first_row, const std::optional<at::Tensor>& bias, at::ScalarType out_dtype);

}  // namespace fp8::runtime::ops
