// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/sdpa.h"

#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <limits>

#include "fp8/runtime/device/block.h"

namespace fp8::runtime {
namespace {

constexpr int64_t kFlash = 1;  // at::SDPBackend::flash_attention

at::Tensor alias_with_grad(const at::Tensor& t) {
  at::Tensor alias = cpu_alias(t);
  if (t.requires_grad() && !alias.is_inference()) alias.set_requires_grad(true);
  return alias;
}

/// A boolean mask (true: attend) as the additive one that the fused kernel takes.
std::optional<at::Tensor> additive(const std::optional<at::Tensor>& mask, at::ScalarType dtype) {
  if (!mask.has_value() || !mask->defined() || mask->scalar_type() != at::kBool) return mask;
  const auto options = mask->options().dtype(dtype);
  return at::where(*mask, at::zeros_like(*mask, options), at::full_like(*mask, -std::numeric_limits<double>::infinity(), options));
}

}  // namespace

at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                                        std::optional<double> scale, bool enable_gqa) {
  const auto mask = attn_mask.has_value() && attn_mask->defined() ? std::optional<at::Tensor>(alias_with_grad(*attn_mask)) : std::nullopt;
  const int64_t choice = at::_fused_sdp_choice(alias_with_grad(query), alias_with_grad(key), alias_with_grad(value), mask, dropout_p,
                                               is_causal, scale, enable_gqa);
  if (choice == kFlash) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal,
                                                                       additive(attn_mask, query.scalar_type()), scale));
  }
  return at::native::scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
}

}  // namespace fp8::runtime
