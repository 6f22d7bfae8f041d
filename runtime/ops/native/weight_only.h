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

}  // namespace fp8::runtime::ops
