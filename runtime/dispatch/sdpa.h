// SPDX-License-Identifier: Apache-2.0
// Which attention kernel scaled_dot_product_attention takes on hpu: the one the CPU would take. Without an answer of
// our own the fallback would ask about aliases that need no gradient, and the composite would pick a kernel that has
// none for the mask.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace fp8::runtime {

/// at::SDPBackend as a number, asked of the CPU for aliases that need a gradient where the arguments do. q, k, v: [...,
/// L, E].
int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa);

}  // namespace fp8::runtime
