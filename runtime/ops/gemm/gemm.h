// SPDX-License-Identifier: Apache-2.0
// hpu::fp8_gemm_v2 and conv2d_fp8.
//
//   fp8_gemm_v2   out = op(A) . op(B) * A_scale_inv * B_scale_inv (+ bias) (+ D)
//                 op(X) = X^T on the last two dims if trans_X
//   conv2d_fp8    out = conv2d(input, weight) * scale_input * scale_weight (+ bias)
//
// The *_scale_inv are dequantization multipliers: our scale_inv. bias and D are unscaled. Products are exact, sums f32.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

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

}  // namespace fp8::runtime::ops
