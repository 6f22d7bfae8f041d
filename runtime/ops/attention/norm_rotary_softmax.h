// SPDX-License-Identifier: Apache-2.0
// hpu::rms_norm, rms_norm_fast and their backwards.
//
//   r = 1 / sqrt(mean(x^2) + epsilon)       y = x * r * gamma                over the last dimension, of size N
//   dx = r * (g - x r * mean(g * x r))      dgamma = sum over rows of dy * x r        g = dy * gamma
//
// f32, sums in f64, one rounding. Results have x's dtype when all inputs share it, else f32. The fast forms give the
// same numbers; use_stages and bwd_mode (0 or 1) choose kernels on the device and nothing here.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime::ops {

/// data_in: [..., N], gamma: [N]; f32, bf16 or f16 each. Returns {y, r [..., 1]}.
std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& data_in, const at::Tensor& gamma, double epsilon);
std::tuple<at::Tensor, at::Tensor> rms_norm_meta(const at::Tensor& data_in, const at::Tensor& gamma, double epsilon);

/// grad_in: [..., N] (dy), inverse_rms: [..., 1]. Returns {dx, dgamma}.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad_in, const at::Tensor& data_in,
                                                     const at::Tensor& gamma, const at::Tensor& inverse_rms,
                                                     bool use_stages, int64_t bwd_mode);
std::tuple<at::Tensor, at::Tensor> rms_norm_backward_meta(const at::Tensor& grad_in, const at::Tensor& data_in,
                                                          const at::Tensor& gamma, const at::Tensor& inverse_rms,
                                                          bool use_stages, int64_t bwd_mode);

// hpu::rotary_pos_embedding and its backward. Note the order: sin before cos.
//
//   mode 0, BLOCKWISE   y = x * cos + rotate(x) * sin    rotate(x) = [-x2, x1], x1, x2 the halves of the last dimension
//   mode 1, PAIRWISE                                     rotate(x) = [-x1, x0, -x3, x2, ...]
//   backward            dx = dy * cos + rotate^T(dy * sin)
//
// f32 products and sum, one rounding to x's dtype.

/// input: [..., D], D even, f32, bf16 or f16. sin, cos: high precision, of equal sizes; columns [offset, offset + D) of
/// their last dimension are used (offset != 0 for BLOCKWISE only).
///  - without position_ids they broadcast to input (last dimension aside);
///  - with position_ids, int32 or int64 [B, T] (or [1, T], [T]) for an input [B, H, T, D] or [B, T, D], they are tables
///    [..., positions, D], leading sizes 1, and row position_ids[b, t] is used.
/// backward = true: input is the gradient of the output.
at::Tensor rotary_pos_embedding(const at::Tensor& input, const at::Tensor& sin, const at::Tensor& cos,
                                const std::optional<at::Tensor>& position_ids, int64_t offset, int64_t mode,
                                bool backward);
at::Tensor rotary_pos_embedding_meta(const at::Tensor& input, const at::Tensor& sin, const at::Tensor& cos,
                                     const std::optional<at::Tensor>& position_ids, int64_t offset, int64_t mode);

// hpu::softmax_fp8.
//
//   y = softmax(x * inv_attn_heads * input_scale + fused_add) * output_scale      over the last dimension
//
// f32 inside, one rounding: to bf16 without scales, else to E4M3 as the device saturates. A row of -inf gives zeros.

/// One element each, or none; both of input and output or none of them.
struct SoftmaxScales {
  Scale input, output, inv_attn_heads;
};

/// input: bf16, or E4M3 with scales. fused_add: bf16, of input's rank, first and last size equal to input's, the others
/// equal or 1; only with scales.
at::Tensor softmax_fp8(const at::Tensor& input, int64_t dim, const SoftmaxScales& scales,
                       const std::optional<at::Tensor>& fused_add);
at::Tensor softmax_fp8_meta(const at::Tensor& input, int64_t dim, const SoftmaxScales& scales,
                            const std::optional<at::Tensor>& fused_add);

}  // namespace fp8::runtime::ops
