// SPDX-License-Identifier: Apache-2.0
// Which attention kernel scaled_dot_product_attention takes on hpu: the one the CPU would take. Without an answer of
// our own the fallback would ask about aliases that need no gradient, and the composite would pick a kernel that has
// none for the mask. And that kernel for few rows of queries, as of one token over its cache, by our own.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "fp8/runtime/kernels/attention.h"

namespace fp8::runtime {

/// at::SDPBackend as a number, asked of the CPU for aliases that need a gradient where the arguments do. q, k, v: [...,
/// L, E].
int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa);

/// Whether kernels/attention.h is for so many rows over so many keys, of heads of this width and dtype.
bool takes_few_rows(at::ScalarType dtype, std::int64_t rows, std::int64_t keys, std::int64_t width);

/// What the kernel reads of t [B, H, L, E] by its alias; sizes of 1 that are expanded have stride 0.
kernels::HeadsOf<const void> heads_of(const at::Tensor& t, const at::Tensor& alias);

/// aten::_scaled_dot_product_flash_attention_for_cpu. Up to 16 rows of bf16, f16 or f32 over 64 keys or more, without
/// dropout, causality or gradient, take kernels/attention.h; all else unboxed.h.
std::tuple<at::Tensor, at::Tensor> flash_attention(c10::DispatchKeySet keys, const at::Tensor& query,
                                                   const at::Tensor& key, const at::Tensor& value, double dropout_p,
                                                   bool is_causal, const std::optional<at::Tensor>& attn_mask,
                                                   std::optional<double> scale);

}  // namespace fp8::runtime
