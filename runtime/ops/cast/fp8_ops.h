// SPDX-License-Identifier: Apache-2.0
// The fp8 operators as C++ functions. They go through the dispatcher, so traces and profilers see them by name, and
// through the operators' checks (edge.h). Where the weight's scale is no optional argument, the weight may be a
// converted one: the caller answers for the scale.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace fp8::runtime::ops {

/// hpu::cast_to_fp8_v2 without amax: x * scale in x's arithmetic, RNE to `dtype`, saturating as the device does.
at::Tensor call_cast_to_fp8(const at::Tensor& x, const at::Tensor& scale, at::ScalarType dtype,
                            at::OptionalIntArrayRef scale_shape = std::nullopt);

/// hpu::cast_to_fp8_v2 as training calls it: {codes, amax}, amax = max |x| (f32, 0-dim) with is_amax, else of shape
/// [0].
std::tuple<at::Tensor, at::Tensor> call_cast_to_fp8_v2(const at::Tensor& x, const std::optional<at::Tensor>& scale,
                                                       bool stochastic_rounding, bool is_amax, at::ScalarType dtype);

/// hpu::cast_to_fp8_hybrid: {e5m2, e4m3, amax} of an f32 or bf16 x, read once; stochastic_rounding concerns e5m2 alone.
std::tuple<at::Tensor, at::Tensor, at::Tensor> call_cast_to_fp8_hybrid(const at::Tensor& x,
                                                                       const std::optional<at::Tensor>& scale_152,
                                                                       const std::optional<at::Tensor>& scale_143,
                                                                       bool stochastic_rounding, bool is_amax);

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

/// hpu::fp8_gemm_v2 in full, for the products of a backward pass: op(a) . op(b) * a_scale_inv * b_scale_inv + bias (+ d
/// with accumulate); trans_* transposes the last two dimensions. Operands may be of different fp8 dtypes.
at::Tensor call_fp8_gemm_v2(const at::Tensor& a, bool trans_a, const at::Tensor& b, bool trans_b,
                            const std::optional<at::Tensor>& d, at::ScalarType out_dtype,
                            const std::optional<at::Tensor>& a_scale_inv, const std::optional<at::Tensor>& b_scale_inv,
                            const std::optional<at::Tensor>& bias = std::nullopt, bool accumulate = false);

/// hpu::conv2d_fp8.
at::Tensor call_conv2d_fp8(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                           at::ScalarType out_dtype, const at::Tensor& x_scale_inv, const at::Tensor& w_scale_inv);

/// fp8::weight_only_linear.
at::Tensor call_weight_only_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& w_scale_inv,
                                   const std::optional<at::Tensor>& bias);

/// fp8::block_linear: x with x_scale_inv per group of block_cols columns (codes), or in high precision without; weight:
/// rows from first_row on of one with weight_scale_inv [grid rows, groups].
at::Tensor call_block_linear(const at::Tensor& x, const std::optional<at::Tensor>& x_scale_inv,
                             const at::Tensor& weight, const at::Tensor& weight_scale_inv, int64_t block_rows,
                             int64_t block_cols, int64_t first_row, const std::optional<at::Tensor>& bias,
                             at::ScalarType out_dtype);

}  // namespace fp8::runtime::ops
