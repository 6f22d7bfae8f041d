// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>
#include <ostream>

#include "fp8/runtime/ops/attention_ops.h"
#include "fp8/transformer_engine/fp8_attention.h"

namespace fp8::te {

FusedAttentionImpl::FusedAttentionImpl(FusedAttentionOptions options) : options_(std::move(options)) {
  TORCH_CHECK(options_.attention_dropout >= 0 && options_.attention_dropout <= 1, "[te::FusedAttention] attention_dropout: found ",
              options_.attention_dropout, ", allowed: 0 to 1");
  TORCH_CHECK(!options_.scale.has_value() || std::isfinite(*options_.scale), "[te::FusedAttention] scale: found ", *options_.scale,
              ", allowed: finite numbers");
  reset();
}

void FusedAttentionImpl::reset() { state_ = std::make_shared<Fp8State>(options_.name, 4, 2); }

at::Tensor FusedAttentionImpl::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& attention_mask,
                                       bool is_causal, const std::string& softmax_mode) {
  TORCH_CHECK(softmax_mode == "none" || softmax_mode == "None" || softmax_mode == "fast", "[te::FusedAttention] softmax_mode: found \"",
              softmax_mode, "\", allowed: \"none\", \"fast\"");
  const double p = is_training() ? options_.attention_dropout : 0.0;
  if (!is_fp8_enabled()) {
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

// --- DotProductAttention
namespace {

constexpr const char* kMaskTypes[] = {
    "no_mask", "causal", "causal_bottom_right", "padding", "padding_causal", "padding_causal_bottom_right", "arbitrary"};

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

void check_attn_mask_type(const char* module, const char* argument, const std::string& type) {
  std::string allowed;
  for (const char* known : kMaskTypes) {
    if (type == known) return;
    allowed += (allowed.empty() ? "\"" : ", \"") + std::string(known) + "\"";
  }
  TORCH_CHECK(false, "[", module, "] ", argument, ": found \"", type, "\", allowed: ", allowed);
}

void check_qkv_format(const char* module, const char* argument, const std::string& format) {
  TORCH_CHECK(format == "sbhd" || format == "bshd", "[", module, "] ", argument, ": found \"", format, "\", allowed: \"sbhd\", \"bshd\"",
              format == "thd" ? " (packed sequences are not built: pad them, with attn_mask_type \"padding\")" : "");
}

DotProductAttentionImpl::DotProductAttentionImpl(DotProductAttentionOptions options) : options_(std::move(options)) {
  auto& o = options_;
  constexpr const char* name = "te::DotProductAttention";
  TORCH_CHECK(o.num_attention_heads >= 1 && o.kv_channels >= 1, "[", name, "] num_attention_heads, kv_channels: found ",
              o.num_attention_heads, ", ", o.kv_channels, ", allowed: integers >= 1");
  if (o.num_gqa_groups == 0) o.num_gqa_groups = o.num_attention_heads;
  TORCH_CHECK(o.num_gqa_groups >= 1 && o.num_attention_heads % o.num_gqa_groups == 0, "[", name, "] num_gqa_groups: found ",
              o.num_gqa_groups, ", allowed: divisors of num_attention_heads = ", o.num_attention_heads);
  TORCH_CHECK(o.attention_dropout >= 0 && o.attention_dropout <= 1, "[", name, "] attention_dropout: found ", o.attention_dropout,
              ", allowed: 0 to 1");
  TORCH_CHECK(!o.softmax_scale.has_value() || std::isfinite(*o.softmax_scale), "[", name, "] softmax_scale: found ", *o.softmax_scale,
              ", allowed: finite numbers");
  check_qkv_format(name, "qkv_format", o.qkv_format);
  check_attn_mask_type(name, "attn_mask_type", o.attn_mask_type);
  TORCH_CHECK(o.window_size.first >= -1 && o.window_size.second >= -1, "[", name, "] window_size: found (", o.window_size.first, ", ",
              o.window_size.second, "), allowed: integers >= -1 (-1: no limit)");
  reset();
}

void DotProductAttentionImpl::reset() {
  if (!options_.fp8_dpa) return;
  fused_attention = register_module("fused_attention", FusedAttention(FusedAttentionOptions{.scale = options_.softmax_scale,
                                                                                            .attention_dropout = options_.attention_dropout,
                                                                                            .enable_recompute = true,
                                                                                            .name = options_.name}));
}

/// The keys that each query sees, bool, broadcasting to the scores [B, H, L, S]; undefined where is_causal or nothing says it all.
at::Tensor DotProductAttentionImpl::visible_keys(const at::Tensor& attention_mask, at::IntArrayRef scores, at::Device device,
                                                 bool* is_causal) const {
  const std::string& type = options_.attn_mask_type;
  const bool causal = has(type, "causal"), bottom_right = has(type, "bottom_right"), padding = has(type, "padding"),
             arbitrary = type == "arbitrary";
  const std::int64_t queries = scores[2], keys = scores[3];
  TORCH_CHECK(attention_mask.defined() == (padding || arbitrary), "[te::DotProductAttention] attention_mask: found ",
              attention_mask.defined() ? "one" : "none", ", allowed with attn_mask_type \"", type,
              "\": ", padding || arbitrary ? "a mask of dtype Bool" : "none");
  at::Tensor visible;
  if (attention_mask.defined()) {
    const at::IntArrayRef sizes = attention_mask.sizes();
    const std::vector<std::int64_t> whole = padding ? std::vector<std::int64_t>{scores[0], 1, 1, keys} : scores.vec();
    bool fits = sizes.size() == 4;
    for (std::size_t i = 0; fits && i < 4; ++i) fits = sizes[i] == whole[i] || (arbitrary && sizes[i] == 1);
    TORCH_CHECK(attention_mask.scalar_type() == at::kBool && fits, "[te::DotProductAttention] attention_mask: found sizes ", sizes,
                " of dtype ", attention_mask.scalar_type(), ", allowed with attn_mask_type \"", type, "\": sizes ", at::IntArrayRef(whole),
                arbitrary ? " (or 1)" : "", " of dtype Bool (true: masked out)");
    visible = attention_mask.logical_not();
  }
  const std::int64_t offset = causal && !bottom_right ? 0 : keys - queries;
  const std::int64_t before = options_.window_size.first;
  std::int64_t after = options_.window_size.second;
  if (causal) after = 0;
  if (causal && before < 0 && offset == 0 && !visible.defined()) {
    *is_causal = true;
    return {};
  }
  if (before < 0 && after < 0) return visible;
  const auto indices = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor distance = at::arange(keys, indices).unsqueeze(0) - at::arange(queries, indices).unsqueeze(1) - offset;
  at::Tensor inside;
  if (before >= 0) inside = distance.ge(-before);
  if (after >= 0) inside = inside.defined() ? inside.logical_and(distance.le(after)) : distance.le(after);
  return visible.defined() ? visible.logical_and(inside) : inside;
}

at::Tensor DotProductAttentionImpl::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                            const at::Tensor& attention_mask) {
  const auto& o = options_;
  const auto check = [&](const char* what, const at::Tensor& t, std::int64_t heads) {
    TORCH_CHECK(t.dim() == 4 && t.size(2) == heads && t.size(3) == o.kv_channels, "[te::DotProductAttention] ", what, ": found sizes ",
                t.sizes(), ", allowed: ", o.qkv_format == "sbhd" ? "[length, batch, " : "[batch, length, ", heads, ", ", o.kv_channels,
                "]");
  };
  check("query", q, o.num_attention_heads);
  check("key", k, o.num_gqa_groups);
  check("value", v, o.num_gqa_groups);
  const int batch = o.qkv_format == "sbhd" ? 1 : 0, length = 1 - batch;
  TORCH_CHECK(k.sizes() == v.sizes() && k.size(batch) == q.size(batch), "[te::DotProductAttention] key, value: found sizes ", k.sizes(),
              " and ", v.sizes(), ", allowed: equal sizes with the query's batch of ", q.size(batch));
  const auto heads_first = [&](const at::Tensor& t) { return batch == 1 ? t.permute({1, 2, 0, 3}) : t.transpose(1, 2); };
  bool is_causal = false;
  const at::Tensor visible =
      visible_keys(attention_mask, {q.size(batch), o.num_attention_heads, q.size(length), k.size(length)}, q.device(), &is_causal);
  at::Tensor out;  // [B, H, L, D]
  if (fused_attention && is_fp8_enabled()) {
    out = fused_attention->forward(heads_first(q), heads_first(k), heads_first(v), visible, is_causal);
  } else {
    const std::optional<at::Tensor> mask = visible.defined() ? std::optional<at::Tensor>(visible) : std::nullopt;
    out = at::scaled_dot_product_attention(heads_first(q), heads_first(k), heads_first(v), mask, is_training() ? o.attention_dropout : 0.0,
                                           is_causal, o.softmax_scale, o.num_gqa_groups != o.num_attention_heads);
  }
  return (batch == 1 ? out.permute({2, 0, 1, 3}) : out.transpose(1, 2)).flatten(2, 3);
}

void DotProductAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "fp8::te::DotProductAttention(num_attention_heads=" << options_.num_attention_heads << ", kv_channels=" << options_.kv_channels
         << ", num_gqa_groups=" << options_.num_gqa_groups << ", qkv_format=" << options_.qkv_format
         << ", attn_mask_type=" << options_.attn_mask_type << (options_.fp8_dpa ? ", fp8_dpa=true" : "") << ")";
}

}  // namespace fp8::te
