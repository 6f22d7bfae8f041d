// SPDX-License-Identifier: Apache-2.0
// FusedAttention of attention.h.
#include <cmath>
#include <ostream>
#include <utility>

#include "fp8/runtime/ops/attention/attention_ops.h"
#include "fp8/transformer_engine/modules/attention.h"
#include "fp8/transformer_engine/products/fp8_attention.h"
#include "fp8/transformer_engine/region/recomputation.h"

namespace fp8::te {

FusedAttentionImpl::FusedAttentionImpl(FusedAttentionOptions options) : options_(std::move(options)) {
  TORCH_CHECK(options_.attention_dropout >= 0 && options_.attention_dropout <= 1,
              "[te::FusedAttention] attention_dropout: found ", options_.attention_dropout, ", allowed: 0 to 1");
  TORCH_CHECK(!options_.scale.has_value() || std::isfinite(*options_.scale), "[te::FusedAttention] scale: found ",
              *options_.scale, ", allowed: finite numbers");
  reset();
}

void FusedAttentionImpl::reset() { state_ = std::make_shared<Fp8State>(options_.name, 4, 2); }

at::Tensor FusedAttentionImpl::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                       const at::Tensor& attention_mask, bool is_causal,
                                       const std::string& softmax_mode) {
  TORCH_CHECK(softmax_mode == "none" || softmax_mode == "None" || softmax_mode == "fast",
              "[te::FusedAttention] softmax_mode: found \"", softmax_mode, "\", allowed: \"none\", \"fast\"");
  TORCH_CHECK(q.defined() && k.defined() && v.defined(), "[te::FusedAttention] '", options_.name, "': ",
              !q.defined()   ? "q"
              : !k.defined() ? "k"
                             : "v",
              ": found none, allowed: [batch, heads, length, depth]");
  const double p = is_training() ? options_.attention_dropout : 0.0;
  const ProductRun run(*state_);
  if (!is_fp8_enabled() || state_->keeps_high_precision()) {
    record_attention(q, k, v, state_);
    runtime::ops::FusedSdpaOptions o;
    if (attention_mask.defined()) o.mask = attention_mask;
    o.dropout_p = p;
    o.is_causal = is_causal;
    o.scale = options_.scale;
    o.softmax_mode = softmax_mode;
    o.recompute = options_.enable_recompute;
    return runtime::ops::fused_sdpa(q, k, v, o);
  }
  const std::int64_t depth = q.dim() > 0 ? q.size(-1) : 0;
  Fp8AttentionOptions o;
  o.p = p;
  o.scale = options_.scale.value_or(depth > 0 ? 1.0 / std::sqrt(static_cast<double>(depth)) : 1.0);
  o.is_causal = is_causal;
  o.recompute = options_.enable_recompute;
  o.softmax_mode = softmax_mode;
  o.training = is_training();
  return fp8_attention(q, k, v, attention_mask, state_, o);
}

void FusedAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "fp8::te::FusedAttention(attention_dropout=" << options_.attention_dropout
         << ", enable_recompute=" << (options_.enable_recompute ? "true" : "false") << ")";
}

}  // namespace fp8::te
