// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/sdpa.h"

#include <ATen/ops/_fused_sdp_choice.h>

#include "fp8/runtime/device/block.h"

namespace fp8::runtime {
namespace {

at::Tensor alias_with_grad(const at::Tensor& t) {
  at::Tensor alias = cpu_alias(t);
  if (t.requires_grad() && !alias.is_inference()) alias.set_requires_grad(true);
  return alias;
}

}  // namespace

int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  const auto mask = attn_mask.has_value() && attn_mask->defined()
                        ? std::optional<at::Tensor>(alias_with_grad(*attn_mask))
                        : std::nullopt;
  return at::_fused_sdp_choice(alias_with_grad(query), alias_with_grad(key), alias_with_grad(value), mask, dropout_p,
                               is_causal, scale, enable_gqa);
}

}  // namespace fp8::runtime
