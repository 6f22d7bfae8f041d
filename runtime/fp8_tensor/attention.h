// SPDX-License-Identifier: Apache-2.0
// Attention of high precision queries to keys and values that are codes, as a key-value cache holds them. Of few rows
// (kernels/attention.h) the codes are read once, where they lie; of more they are dequantized first. The same bits as
// scaled_dot_product_attention of the dequantized ones.
#pragma once
#include <ATen/core/Tensor.h>

#include "fp8/runtime/fp8_tensor/fp8_tensor.h"

namespace fp8::runtime {

/// softmax(scale q k^T + mask) v in q's dtype. q: [B, H, L, E] of bf16, f16 or f32; k, v: codes [B, H, S, E] with one
/// scale each; mask: bool (true: seen) or added to the scores, broadcastable to [B, H, L, S], or undefined. No
/// gradient. Throws c10::Error for scales of another layout.
at::Tensor attention(const at::Tensor& q, const Fp8Tensor& k, const Fp8Tensor& v, const at::Tensor& mask, double scale);

}  // namespace fp8::runtime
