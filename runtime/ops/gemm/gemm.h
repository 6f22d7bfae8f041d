// SPDX-License-Identifier: Apache-2.0
// hpu::fp8_gemm_v2 and conv2d_fp8.
//
//   fp8_gemm_v2   out = op(A) . op(B) * A_scale_inv * B_scale_inv (+ bias) (+ D)
//                 op(X) = X^T on the last two dims if trans_X
//   conv2d_fp8    out = conv2d(input, weight) * scale_input * scale_weight (+ bias)
//
// The *_scale_inv are dequantization multipliers: our scale_inv. bias and D are unscaled. Products are exact, sums f32.
#pragma once

#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime::ops {

struct GemmOptions {
  bool trans_a = false, trans_b = false;
  at::ScalarType out_dtype = at::kBFloat16;  ///< f32, bf16 or f16
  Scale a_scale_inv;                         ///< one value, or [M, 1] per row
  Scale b_scale_inv;                         ///< one value, [N] / [1, N] per column of the output, or [M, 1] per row
  bool accumulate = false;                   ///< add D, which must be given then
};

/// A: [..., M, K] (or [K]), B: [..., K, N] (or [K]) after op(); batch dimensions broadcast as in matmul. bias:
/// broadcasts to [N].
at::Tensor fp8_gemm(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& d,
                    const std::optional<at::Tensor>& bias, const GemmOptions& options);
at::Tensor fp8_gemm_meta(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& d,
                         const std::optional<at::Tensor>& bias, const GemmOptions& options);

struct ConvOptions {
  std::vector<std::int64_t> stride, padding, dilation;  ///< one value stands for both
  std::int64_t groups = 1;
  at::ScalarType out_dtype = at::kBFloat16;
  Scale scale_input, scale_weight;  ///< one value each; scale_weight also one per output channel
};

/// input: [B, C_in, H, W] fp8, weight: [C_out, C_in / groups, R, S] fp8, bias: [C_out].
at::Tensor conv2d_fp8(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                      ConvOptions options);
at::Tensor conv2d_fp8_meta(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           ConvOptions options);

// hpu::fp8_gemm, the deprecated form of fp8_gemm_v2 (gemm/gemm.h): D is always given and read only if `accumulate`;
// the result goes to `out`.

/// out: out_dtype, of the product's sizes.
at::Tensor& fp8_gemm_v1(const at::Tensor& a, bool trans_a, const at::Tensor& b, bool trans_b, const at::Tensor& d,
                        at::ScalarType out_dtype, const std::optional<at::Tensor>& a_scale_inv,
                        const std::optional<at::Tensor>& b_scale_inv, const std::optional<at::Tensor>& bias,
                        bool accumulate, at::Tensor& out);
/// The checks alone.
at::Tensor& fp8_gemm_v1_meta(const at::Tensor& a, bool trans_a, const at::Tensor& b, bool trans_b, const at::Tensor& d,
                             at::ScalarType out_dtype, const std::optional<at::Tensor>& a_scale_inv,
                             const std::optional<at::Tensor>& b_scale_inv, const std::optional<at::Tensor>& bias,
                             bool accumulate, at::Tensor& out);

// fp8::weight_only_linear, an operator of ours: high precision activations with an fp8 weight, decoded in registers.
//
//   y = (x . w^T) * scale_inv (+ bias)      f32 activations stay exact; products of bf16 ones are exact; sums f32

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
