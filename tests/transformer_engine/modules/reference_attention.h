// SPDX-License-Identifier: Apache-2.0
// What the tests of MultiheadAttention and TransformerLayer share: their words in torch's functions, and a small layer.
#pragma once
#include "fp8/transformer_engine/modules/multihead_attention.h"
#include "transformer_engine/modules/module_checks.h"

namespace fp8::test {

/// A parameter of a module by its name; undefined if it has none of it.
inline at::Tensor parameter(torch::nn::Module& m, const std::string& name) {
  const auto all = m.named_parameters();
  const auto* found = all.find(name);
  return found != nullptr ? *found : at::Tensor();
}

inline at::Tensor norm(torch::nn::Module& m, const std::string& weight, const std::string& bias, const at::Tensor& x) {
  const at::Tensor w = parameter(m, weight), b = parameter(m, bias);
  return b.defined() ? torch::layer_norm(x, w.sizes(), w, b, 1e-5) : torch::rms_norm(x, w.sizes(), w, 1e-5);
}

inline at::Tensor product(torch::nn::Module& m, const std::string& name, const at::Tensor& x) {
  return torch::linear(x, parameter(m, name + ".weight"), parameter(m, name + ".bias"));
}

/// The module's words in torch's functions, for "sbhd" and masks "causal", "no_mask". normal: gets the input behind its
/// norm.
inline at::Tensor reference_attention(te::MultiheadAttention& m, const at::Tensor& x, const at::Tensor& encoder = {},
                                      at::Tensor* normal = nullptr) {
  const auto& o = m->options();
  const std::int64_t heads = o.num_attention_heads, groups = o.num_gqa_groups, depth = o.kv_channels,
                     each = heads / groups, s = x.size(0), b = x.size(1);
  const bool cross = encoder.defined();
  at::Tensor h = x;
  if (o.input_layernorm) {
    const std::string at = !o.fuse_qkv_params && !cross ? "layernorm."
                           : cross                      ? "layernorm_query.layer_norm_"
                                                        : "layernorm_qkv.layer_norm_";
    h = norm(*m, at + "weight", at + "bias", x);
  }
  if (normal != nullptr) *normal = h;
  at::Tensor q, k, v;
  if (o.fuse_qkv_params && !cross) {
    const at::Tensor all = product(*m, o.input_layernorm ? "layernorm_qkv" : "qkv", h);
    if (o.qkv_weight_interleaved) {
      const at::Tensor g = all.reshape({s, b, groups, each + 2, depth});
      q = g.slice(3, 0, each).reshape({s, b, heads, depth});
      k = g.select(3, each);
      v = g.select(3, each + 1);
    } else {
      q = all.slice(2, 0, heads * depth).reshape({s, b, heads, depth});
      k = all.slice(2, heads * depth, (heads + groups) * depth).reshape({s, b, groups, depth});
      v = all.slice(2, (heads + groups) * depth).reshape({s, b, groups, depth});
    }
  } else {
    const at::Tensor source = cross ? encoder : h;
    const std::int64_t keys = source.size(0);
    q = product(*m, cross && o.input_layernorm ? "layernorm_query" : "query_layer", h).unflatten(2, {heads, depth});
    if (o.fuse_qkv_params) {
      const at::Tensor both = product(*m, "key_value", source);
      const at::Tensor pairs = o.qkv_weight_interleaved ? both.reshape({keys, b, groups, 2, depth})
                                                        : both.reshape({keys, b, 2, groups, depth}).transpose(2, 3);
      k = pairs.select(3, 0);
      v = pairs.select(3, 1);
    } else {
      k = product(*m, "key_layer", source).unflatten(2, {groups, depth});
      v = product(*m, "value_layer", source).unflatten(2, {groups, depth});
    }
  }
  const auto t = [](const at::Tensor& a) { return a.permute({1, 2, 0, 3}); };
  const at::Tensor y = torch::scaled_dot_product_attention(t(q), t(k), t(v), std::nullopt, 0.0,
                                                           o.attn_mask_type == "causal", std::nullopt, groups != heads);
  return product(*m, "proj", y.permute({2, 0, 1, 3}).reshape({s, b, heads * depth}));
}

inline te::TransformerLayerOptions small_layer() {
  te::TransformerLayerOptions o{.hidden_size = 32, .ffn_hidden_size = 48, .num_attention_heads = 4};
  o.hidden_dropout = o.attention_dropout = 0;
  return o;
}

}  // namespace fp8::test
