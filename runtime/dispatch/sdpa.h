// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace fp8::runtime {

/// Attention as the CPU would do it (upstream takes the slow math path for HPU): asks the CPU which fused kernel fits and calls
/// that one, differentiable through the fallback; else the composite. q, k, v: [..., L, E]. Bit equal to the CPU.
at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                                        std::optional<double> scale, bool enable_gqa);

}  // namespace fp8::runtime
