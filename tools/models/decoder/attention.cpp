// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "fp8/runtime/fp8_tensor/product.h"
#include "fp8/runtime/modules/linear_together.h"

namespace fp8::models {
namespace {

/// [B, K, L, D] -> [B, K * repeats, L, D], each kv head repeated for its group of query heads.
at::Tensor repeat_kv(const at::Tensor& x, std::int64_t repeats) {
  if (repeats == 1) return x;
  const auto b = x.size(0), k = x.size(1), l = x.size(2), d = x.size(3);
  return x.unsqueeze(2).expand({b, k, repeats, l, d}).reshape({b, k * repeats, l, d});
}

/// The most negative finite value: what a masked score is set to.
double lowest_of(at::ScalarType dtype) {
  return dtype == at::kHalf       ? -65504.0
         : dtype == at::kBFloat16 ? -0x1.FEp127
                                  : static_cast<double>(std::numeric_limits<float>::lowest());
}

at::Tensor lower_triangle(const at::Tensor& q, const at::Tensor& k) {
  return at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).tril();
}

/// Elements 0, 2, 4, ... and then 1, 3, 5, ...: pairs of neighbours become pairs half a head apart. q and k change
/// alike, so that their products stay.
at::Tensor halves_of_pairs(const at::Tensor& x) { return x.unflatten(-1, {-1, 2}).transpose(-1, -2).flatten(-2); }

}  // namespace

DecoderAttentionImpl::DecoderAttentionImpl(const DecoderConfig& config, std::size_t layer)
    : torch::nn::Module(config.type + "Attention"),
      spec_(config.attend),
      heads_(config.shape.heads),
      kv_heads_(config.shape.kv_heads),
      scale_(config.attend.scale / (config.attend.by_layer ? static_cast<double>(layer + 1) : 1.0)),
      layer_(layer) {
  if (spec_.latent)
    add_latent_projections(config);
  else
    add_projections(config);
  const std::int64_t value = spec_.latent ? spec_.latent->value : spec_.head_dim;
  out_ = add_module(*this, config.names.out, make_linear(heads_ * value, config.shape.hidden, spec_.out_bias));
  // Layers without rotary embedding have no norm of length either.
  if (spec_.head_norm != HeadNorm::unit || config.kinds[layer].rope >= 0) add_head_norms(config);
  if (spec_.sinks) sinks_ = register_parameter("sinks", placeholder({heads_}));
  if (spec_.alibi_max > 0) slopes_ = alibi_slopes(heads_, spec_.alibi_max);
  if (config.distances) disentangled_ = DisentangledScores(config, *this, q_, k_);
  add_nodes(config);
}

void DecoderAttentionImpl::add_projections(const DecoderConfig& config) {
  const auto q = heads_ * spec_.head_dim, kv = kv_heads_ * spec_.head_dim, hidden = config.shape.hidden;
  const auto& names = config.names;
  if (spec_.layout != QkvLayout::separate) {
    qkv_ = add_module(*this, names.qkv, make_linear(hidden, q + 2 * kv, spec_.q_bias));
    return;
  }
  q_ = add_module(*this, names.q, make_linear(hidden, q, spec_.q_bias));
  k_ = add_module(*this, names.k, make_linear(hidden, kv, spec_.k_bias));
  v_ = add_module(*this, names.v, make_linear(hidden, kv, spec_.v_bias));
}

void DecoderAttentionImpl::add_latent_projections(const DecoderConfig& config) {
  const auto& latent = *spec_.latent;
  const auto hidden = config.shape.hidden, q = heads_ * (latent.nope + latent.rope);
  const std::string norm = config.type + "RMSNorm";
  if (latent.q_rank > 0) {
    q_a_ = register_module("q_a_proj", make_linear(hidden, latent.q_rank, spec_.q_bias));
    q_a_norm_ = register_module("q_a_layernorm", Norm(norm, std::vector{latent.q_rank}, spec_.norm));
    q_ = register_module("q_b_proj", make_linear(latent.q_rank, q, /*bias=*/false));
  } else {
    q_ = register_module("q_proj", make_linear(hidden, q, /*bias=*/false));
  }
  kv_a_ = register_module("kv_a_proj_with_mqa", make_linear(hidden, latent.kv_rank + latent.rope, spec_.k_bias));
  kv_a_norm_ = register_module("kv_a_layernorm", Norm(norm, std::vector{latent.kv_rank}, spec_.norm));
  kv_b_ =
      register_module("kv_b_proj", make_linear(latent.kv_rank, heads_ * (latent.nope + latent.value), /*bias=*/false));
}

void DecoderAttentionImpl::add_head_norms(const DecoderConfig& config) {
  const auto& names = config.names;
  const std::string type = norm_type(config.type, spec_.norm);
  const auto add = [&](const std::string& name, std::int64_t heads, Norm& norm, torch::nn::ModuleList& norms) {
    std::vector<std::int64_t> shape = {spec_.head_dim};
    if (spec_.head_norm == HeadNorm::whole) shape = {heads * spec_.head_dim};
    if (spec_.head_norm == HeadNorm::per_head) shape = {heads, spec_.head_dim};
    if (spec_.head_norm != HeadNorm::modules) {
      norm = register_module(name, Norm(type, shape, spec_.norm));
      return;
    }
    norms = torch::nn::ModuleList();
    for (std::int64_t i = 0; i < heads; ++i) norms->push_back(Norm(type, shape, spec_.norm));
    const auto holder = std::make_shared<torch::nn::Module>(config.type + "LayerNormPerHead");
    holder->register_module("norms", norms);
    register_module(name, holder);
  };
  if (spec_.head_norm == HeadNorm::none) return;
  if (spec_.head_norm == HeadNorm::unit) {
    q_norm_ = k_norm_ =
        register_module("qk_norm", Norm(config.type + "L2Norm", std::vector{spec_.head_dim}, spec_.norm));
    return;
  }
  add(names.q_norm, heads_, q_norm_, q_norms_);
  add(names.k_norm, kv_heads_, k_norm_, k_norms_);
}

void DecoderAttentionImpl::add_nodes(const DecoderConfig& config) {
  if (config.causal) {
    k_cache = register_module("k_cache", runtime::KVCache());
    v_cache = register_module("v_cache", runtime::KVCache());
  }
  if (config.attention == AttentionKind::fused && spec_.soft_cap == 0 && !spec_.sinks) {
    fused_ = register_module("fused_scaled_dot_product_attention", runtime::ModuleFusedSDPA());
  } else {
    matmul_qk_ = register_module("matmul_qk", runtime::Matmul());
    softmax_ = register_module("softmax", runtime::Softmax());
    matmul_av_ = register_module("matmul_av", runtime::Matmul());
  }
}

/// [B, L, heads * D] -> [B, heads, L, D].
at::Tensor DecoderAttentionImpl::split(const at::Tensor& y) const {
  const auto b = y.size(0), l = y.size(1);
  if (l == 1) return y.reshape({b, -1, l, spec_.head_dim});
  return y.reshape({b, l, -1, spec_.head_dim}).transpose(1, 2);
}

at::Tensor DecoderAttentionImpl::normed(const at::Tensor& heads, Norm& norm, torch::nn::ModuleList& norms) const {
  if (norms) {
    std::vector<at::Tensor> each;
    for (std::size_t i = 0; i < norms->size(); ++i)
      each.push_back(norms->ptr(i)->as<NormImpl>()->forward(heads.select(1, static_cast<std::int64_t>(i))));
    return at::stack(each, 1);
  }
  if (spec_.head_norm == HeadNorm::per_head) return norm->forward(heads.transpose(1, 2)).transpose(1, 2);
  return norm->forward(heads);
}

at::Tensor DecoderAttentionImpl::rotated(const at::Tensor& heads, const RotaryAngles& angles) const {
  const auto dims = angles.cos.size(-1), rest = heads.size(-1) - dims;
  if (rest == 0) return rotate(spec_.interleaved ? halves_of_pairs(heads) : heads, angles);
  const auto turning = heads.narrow(-1, 0, dims);
  return at::cat({rotate(spec_.interleaved ? halves_of_pairs(turning) : turning, angles), heads.narrow(-1, dims, rest)},
                 -1);
}

DecoderAttentionImpl::Heads DecoderAttentionImpl::project(const at::Tensor& x) {
  const auto d = spec_.head_dim, group = heads_ / kv_heads_;
  const auto held = [&](const at::Tensor& y) { return spec_.clip > 0 ? y.clamp(-spec_.clip, spec_.clip) : y; };
  if (spec_.layout == QkvLayout::separate) {
    const auto parts = runtime::linear_together(x, {q_, k_, v_});
    auto q = parts[0], k = parts[1];
    if (spec_.head_norm == HeadNorm::whole) q = q_norm_->forward(q), k = k_norm_->forward(k);
    return {split(held(q)), split(held(k)), split(held(parts[2]))};
  }
  const auto y = held(qkv_->forward(x));
  if (spec_.layout == QkvLayout::stacked) {
    const auto kv = kv_heads_ * d;
    return {split(y.narrow(-1, 0, heads_ * d)), split(y.narrow(-1, heads_ * d, kv)),
            split(y.narrow(-1, heads_ * d + kv, kv))};
  }
  const auto parts = y.view({y.size(0), y.size(1), kv_heads_, group + 2, d});
  const auto part = [&](std::int64_t first, std::int64_t count) {
    return parts.narrow(3, first, count).flatten(2, 3).transpose(1, 2);
  };
  return {part(0, group), part(group, 1), part(group + 1, 1)};
}

runtime::NextCast DecoderAttentionImpl::input_cast(const at::Tensor& like) const {
  if (spec_.latent) return runtime::input_cast(like, {spec_.latent->q_rank > 0 ? q_a_ : q_, kv_a_});
  if (spec_.layout == QkvLayout::separate) return runtime::input_cast(like, {q_, k_, v_});
  return runtime::input_cast(like, {qkv_});
}

at::Tensor DecoderAttentionImpl::forward_latent(const at::Tensor& x, const LayerInputs& inputs) {
  const auto& spec = *spec_.latent;
  const auto b = x.size(0), l = x.size(1);
  auto q = (spec.q_rank > 0 ? q_->forward(q_a_norm_->forward(q_a_->forward(x))) : q_->forward(x))
               .view({b, l, heads_, spec.nope + spec.rope})
               .transpose(1, 2);
  q = at::cat({q.narrow(-1, 0, spec.nope), rotated(q.narrow(-1, spec.nope, spec.rope), *inputs.angles)}, -1);
  const auto compressed = kv_a_->forward(x);
  const auto c = kv_a_norm_->forward(compressed.narrow(-1, 0, spec.kv_rank)).unsqueeze(1);
  const auto shared = compressed.narrow(-1, spec.kv_rank, spec.rope).unsqueeze(1);
  auto latent = at::cat({c, rotated(shared, *inputs.angles)}, -1);  // [B, 1, L, rank + rope]
  if (v_cache->slot()->handler != nullptr) v_cache->forward(c);
  if (inputs.cache != nullptr) {
    latent = inputs.cache->append(layer_, latent, k_cache);
    latent = latent.narrow(2, inputs.sight.first, latent.size(2) - inputs.sight.first);
  } else {
    latent = k_cache->forward(latent);
  }
  const bool few = 2 * l <= latent.size(2);
  const auto attended = few ? absorbed(q, latent, inputs.sight) : expanded(q, latent, inputs.sight);
  return out_->forward(attended.transpose(1, 2).reshape({b, l, heads_ * spec.value}));
}

/// q [B, A, L, nope + rope], latent [B, 1, S, rank + rope] -> [B, A, L, value], of the keys and values of all heads.
at::Tensor DecoderAttentionImpl::expanded(const at::Tensor& q, const at::Tensor& latent, const Sight& sight) {
  const auto& spec = *spec_.latent;
  const auto b = latent.size(0), columns = latent.size(2);
  const auto kv = kv_b_->forward(latent.select(1, 0).narrow(-1, 0, spec.kv_rank))
                      .view({b, columns, heads_, spec.nope + spec.value})
                      .transpose(1, 2);
  const auto rotated = latent.narrow(-1, spec.kv_rank, spec.rope).expand({b, heads_, columns, spec.rope});
  return attend(q, at::cat({kv.narrow(-1, 0, spec.nope), rotated}, -1), kv.narrow(-1, spec.nope, spec.value), sight, 1);
}

/// As expanded(), with W_k on the queries and W_v on what is attended: what grows with S is as wide as the latent
/// vector.
at::Tensor DecoderAttentionImpl::absorbed(const at::Tensor& q, const at::Tensor& latent, const Sight& sight) {
  const auto& spec = *spec_.latent;
  const auto b = q.size(0), l = q.size(2), columns = latent.size(2), width = latent.size(3);
  const auto weight = latent_weight().view({heads_, spec.nope + spec.value, spec.kv_rank});
  const auto of_latent = at::matmul(q.narrow(-1, 0, spec.nope), weight.narrow(1, 0, spec.nope));
  const auto queries = at::cat({of_latent, q.narrow(-1, spec.nope, spec.rope)}, -1);  // [B, A, L, rank + rope]
  const auto c = latent.narrow(-1, 0, spec.kv_rank);
  const auto attended =
      l == 1 ? attend(queries.view({b, 1, heads_, width}), latent, c, sight, heads_).view({b, heads_, 1, spec.kv_rank})
             : attend(queries, latent.expand({b, heads_, columns, width}), c.expand({b, heads_, columns, spec.kv_rank}),
                      sight, 1);
  return at::matmul(attended, weight.narrow(1, spec.nope, spec.value).transpose(1, 2));
}

/// The values of kv_b_proj: those of codes are kept, as engines keep them, or each token would ask for them again.
at::Tensor DecoderAttentionImpl::latent_weight() {
  const auto& weight = kv_b_->weight;
  const auto* tag = runtime::find_tag(weight);
  if (tag == nullptr || !c10::isFloat8Type(weight.scalar_type())) return weight;
  const std::shared_ptr<const void> handler = tag->handler;
  if (latent_handler_.lock() != handler) {
    latent_values_ = runtime::values_of_weight(weight).to(values_dtype(weight));
    latent_handler_ = handler;
  }
  return latent_values_;
}

at::Tensor DecoderAttentionImpl::forward(const at::Tensor& x, const LayerInputs& inputs) {
  if (spec_.latent) return forward_latent(x, inputs);
  const auto b = x.size(0), l = x.size(1);
  auto [q, k, v] = project(x);
  const bool norms = spec_.head_norm != HeadNorm::whole && (q_norm_ || q_norms_);
  const auto norm_heads = [&, &q = q, &k = k] { q = normed(q, q_norm_, q_norms_), k = normed(k, k_norm_, k_norms_); };
  if (norms && !spec_.norm_after_rotary) norm_heads();
  if (inputs.angles != nullptr) q = rotated(q, *inputs.angles), k = rotated(k, *inputs.angles);
  if (norms && spec_.norm_after_rotary) norm_heads();
  if (inputs.query_scale.defined()) q = (q * inputs.query_scale).to(q.scalar_type());
  if (const auto attended = over_codes(q, k, v, inputs); attended.defined()) return out_->forward(attended);
  if (inputs.cache != nullptr) {
    std::tie(k, v) = inputs.cache->append(layer_, k, v, k_cache, v_cache);
    if (const auto first = inputs.sight.first; first > 0)
      k = k.narrow(2, first, k.size(2) - first), v = v.narrow(2, first, v.size(2) - first);
  } else if (k_cache) {
    k = k_cache->forward(k);
    v = v_cache->forward(v);
  }
  Sight sight = inputs.sight;
  if (disentangled_) sight.mask = disentangled_.forward(q, k, *inputs.distances) * scale_;
  const auto group = heads_ / k.size(1), width = heads_ * v.size(3);
  if (l == 1) {  // the query heads of a kv head are rows of one product: its keys and values are not repeated
    const auto attended = attend(q.reshape({b, heads_ / group, group, q.size(3)}), k, v, sight, group);
    return out_->forward(attended.reshape({b, l, width}));
  }
  if (shares_heads(b, group, sight, inputs)) return out_->forward(attend_shared(q, k, v, sight));
  const auto attended = attend(q, repeat_kv(k, group), repeat_kv(v, group), sight, 1);
  return out_->forward(attended.transpose(1, 2).reshape({b, l, width}));
}

/// True if keys and values may stay as the cache has them, without a copy for each query head of a group.
bool DecoderAttentionImpl::shares_heads(std::int64_t batch, std::int64_t group, const Sight& sight,
                                        const LayerInputs& inputs) const {
  return group > 1 && inputs.cache != nullptr && fused_ && fused_->slot()->handler == nullptr && !slopes_.defined() &&
         (!sight.mask.defined() || sight.mask.dim() == 2 || (batch == 1 && sight.mask.size(1) == 1));
}

/// q [B, A, L, D], k and v [B, K, S, D] -> [B, L, A * D]. A group is a sequence of its own, whose query heads see one
/// head of keys and values with a stride of 0.
at::Tensor DecoderAttentionImpl::attend_shared(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                               const Sight& sight) {
  const auto b = q.size(0), kv_heads = k.size(1), group = heads_ / kv_heads, l = q.size(2), d = q.size(3);
  const auto shared = [&](const at::Tensor& x) {
    return x.flatten(0, 1).unsqueeze(1).expand({b * kv_heads, group, x.size(2), x.size(3)});
  };
  const auto y = attend(q.reshape({b * kv_heads, group, l, d}), shared(k), shared(v), sight, 1);
  return y.unflatten(0, {b, kv_heads}).permute({0, 3, 1, 2, 4}).reshape({b, l, heads_ * v.size(3)});
}

/// Of one token over a cache of codes, which one kernel reads where they lie; undefined: another way is needed.
at::Tensor DecoderAttentionImpl::over_codes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                            const LayerInputs& inputs) {
  if (inputs.cache == nullptr || q.size(2) != 1 || !fused_ || fused_->slot()->handler != nullptr || slopes_.defined() ||
      inputs.sight.causal)
    return {};
  auto codes = inputs.cache->append_codes(layer_, k, v, k_cache, v_cache);
  if (!codes) return {};
  auto& [keys, values] = *codes;
  for (auto* part : {&keys.codes, &values.codes})
    *part = part->narrow(2, inputs.sight.first, part->size(2) - inputs.sight.first);
  const auto b = q.size(0), group = heads_ / keys.codes.size(1);
  const auto rows = q.reshape({b, heads_ / group, group, q.size(3)});
  return runtime::attention(rows, keys, values, inputs.sight.mask, scale_)
      .reshape({b, 1, heads_ * values.codes.size(3)});
}

/// The slopes times the positions of the keys, -inf where a row does not see: [1 or B, heads, rows, columns].
at::Tensor DecoderAttentionImpl::with_slopes(const at::Tensor& q, const at::Tensor& k, const Sight& sight,
                                             std::int64_t group) const {
  const auto columns = k.size(2);
  const auto positions = at::arange(sight.first, sight.first + columns, at::kFloat);
  auto bias = spec_.alibi_bf16 ? (slopes_.to(at::kBFloat16).view({-1, 1}) * positions.to(at::kBFloat16)).to(at::kFloat)
                               : slopes_.view({-1, 1}) * positions;
  bias = (bias * spec_.alibi_scale).view({1, heads_ / group, group, columns});
  if (group == 1) bias = bias.view({1, heads_, 1, columns});
  bias = bias.to(q.device()).to(q.scalar_type());
  if (!sight.mask.defined() && !sight.band.defined() && !sight.causal) return bias;
  const auto seen = sight.causal ? lower_triangle(q, k) : sight.seen(q.size(2));
  return at::where(seen, bias, at::zeros({}, bias.options()) - std::numeric_limits<double>::infinity());
}

/// q [B, heads, rows, D], k and v [B, heads, S, D] -> [B, heads, rows, D of v]. group: query heads that are rows.
at::Tensor DecoderAttentionImpl::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                        const Sight& sight, std::int64_t group) {
  if (sight.band.defined() && fused_ && fused_->slot()->handler == nullptr && !slopes_.defined() &&
      !at::GradMode::is_enabled())
    return attend_band(q, k, v, sight.band);
  auto mask = sight.seen(q.size(2));
  bool causal = sight.causal;
  if (slopes_.defined()) mask = with_slopes(q, k, sight, group), causal = false;
  if (!fused_) return eager(q, k, v, mask, causal, group);
  runtime::AttentionOptions options;
  if (mask.defined()) options.mask = mask;
  options.is_causal = causal;
  options.scale = scale_;
  return fused_->forward(q, k, v, options);
}

/// Rows from the last to the first: what they see is then a view of the band, both its strides 1.
at::Tensor DecoderAttentionImpl::attend_band(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const at::Tensor& band) {
  const auto scores =
      at::zeros(band.sizes(), q.options()).masked_fill_(band.logical_not(), -std::numeric_limits<double>::infinity());
  runtime::AttentionOptions options;
  options.mask = scores.as_strided({q.size(2), k.size(2)}, {1, 1});
  options.scale = scale_;
  return fused_->forward(q.flip(2), k, v, options).flip(2);
}

/// transformers' form: softmax in f32, its result in q's dtype.
at::Tensor DecoderAttentionImpl::eager(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                       const at::Tensor& mask, bool causal, std::int64_t group) {
  auto scores = matmul_qk_->forward(q, k.transpose(2, 3)) * scale_;
  if (spec_.soft_cap > 0) scores = at::tanh(scores / spec_.soft_cap) * spec_.soft_cap;
  if (mask.defined() && mask.scalar_type() != at::kBool) {
    scores = scores + mask;
  } else if (mask.defined() || causal) {
    const auto seen = mask.defined() ? mask : lower_triangle(q, k);
    scores = scores.masked_fill(seen.logical_not(), lowest_of(scores.scalar_type()));
  }
  scores = scores.to(at::kFloat);
  if (spec_.sinks) {
    const auto sink = sinks_.to(at::kFloat).view({1, heads_ / group, group, 1});
    const auto rows = group == 1 ? sink.view({1, heads_, 1, 1}) : sink;
    scores = at::cat({scores, rows.expand({scores.size(0), scores.size(1), scores.size(2), 1})}, -1);
  }
  auto p = softmax_->forward(scores);
  if (spec_.sinks) p = p.narrow(-1, 0, p.size(-1) - 1);
  return matmul_av_->forward(p.to(q.scalar_type()), v);
}

}  // namespace fp8::models
