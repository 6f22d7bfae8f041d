// SPDX-License-Identifier: Apache-2.0
// hpu::rotary_pos_embedding and its backward. Note the order: sin before cos.
//
//   mode 0, BLOCKWISE   y = x * cos + rotate(x) * sin    rotate(x) = [-x2, x1], x1, x2 the halves of the last dimension
//   mode 1, PAIRWISE                                     rotate(x) = [-x1, x0, -x3, x2, ...]
//   backward            dx = dy * cos + rotate^T(dy * sin)
//
// f32 products and sum, one rounding to x's dtype.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace fp8::runtime::ops {

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

}  // namespace fp8::runtime::ops
