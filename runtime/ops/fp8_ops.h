// SPDX-License-Identifier: Apache-2.0
// The fp8 operators as C++ functions. They go through the dispatcher, so traces and profilers see them by name.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace fp8::runtime::ops {

/// hpu::cast_to_fp8_v2 without amax: x * scale in x's arithmetic, RNE to `dtype`, saturating as the device does.
at::Tensor call_cast_to_fp8(const at::Tensor& x, const at::Tensor& scale, at::ScalarType dtype,
                            at::OptionalIntArrayRef scale_shape = std::nullopt);

/// hpu::cast_from_fp8.
at::Tensor call_cast_from_fp8(const at::Tensor& x, const at::Tensor& scale_inv, at::ScalarType out_dtype,
                              at::OptionalIntArrayRef scale_shape = std::nullopt);

/// hpu::fp8_gemm_v2 of x [..., K] with a weight [N, K]: x . w^T * x_scale_inv * w_scale_inv + bias.
at::Tensor call_fp8_gemm(const at::Tensor& x, const at::Tensor& weight, at::ScalarType out_dtype,
                         const at::Tensor& x_scale_inv, const at::Tensor& w_scale_inv,
                         const std::optional<at::Tensor>& bias);

/// hpu::fp8_gemm_v2 of a [..., M, K] and b [..., K, N], batched as at::matmul; scales of one value, none is 1.
at::Tensor call_fp8_matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType out_dtype,
                           const std::optional<at::Tensor>& a_scale_inv, const std::optional<at::Tensor>& b_scale_inv);

/// hpu::conv2d_fp8.
at::Tensor call_conv2d_fp8(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                           at::ScalarType out_dtype, const at::Tensor& x_scale_inv, const at::Tensor& w_scale_inv);

/// fp8::weight_only_linear.
at::Tensor call_weight_only_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& w_scale_inv,
                                   const std::optional<at::Tensor>& bias);

}  // namespace fp8::runtime::ops
