// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/llama.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/le.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <tuple>

#include "fp8/tools/models/placeholders.h"

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

/// Long wavelengths are stretched by factor, short ones kept, those between interpolated (Llama 3.1).
at::Tensor scale_llama3(const at::Tensor& frequencies, const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const double low = original / scaling.low_freq_factor, high = original / scaling.high_freq_factor;
  const auto wavelength = 2 * std::numbers::pi / frequencies;
  auto scaled = at::where(wavelength > low, frequencies / scaling.factor, frequencies);
  const auto smooth =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  const auto smoothed = (1 - smooth) * scaled / scaling.factor + smooth * scaled;
  const auto medium = wavelength.ge(high).logical_and(wavelength.le(low));
  return at::where(medium, smoothed, scaled);
}

}  // namespace

LlamaRMSNormImpl::LlamaRMSNormImpl(std::int64_t size, double eps) : torch::nn::Module("LlamaRMSNorm"), eps_(eps) {
  weight = register_parameter("weight", placeholder({size}));
}

at::Tensor LlamaRMSNormImpl::forward(const at::Tensor& x) {
  return is_training() ? rms_norm_by_operations(x, weight, eps_) : rms_norm(x, weight, eps_);
}

LlamaRotaryEmbeddingImpl::LlamaRotaryEmbeddingImpl(const LlamaConfig& config)
    : torch::nn::Module("LlamaRotaryEmbedding") {
  // f32 throughout, in transformers' order of operations: the last bit of a frequency turns far positions visibly.
  const auto exponents = at::arange(0, config.head_dim, 2, at::kFloat) / static_cast<double>(config.head_dim);
  inverse_frequencies_ = at::pow(at::Scalar(config.rope_theta), exponents).reciprocal();
  if (config.rope_scaling.kind == RopeScaling::Kind::linear)
    inverse_frequencies_ = inverse_frequencies_ / config.rope_scaling.factor;
  if (config.rope_scaling.kind == RopeScaling::Kind::llama3)
    inverse_frequencies_ = scale_llama3(inverse_frequencies_, config.rope_scaling);
}

RotaryAngles LlamaRotaryEmbeddingImpl::forward(std::int64_t start, std::int64_t length, const at::Tensor& like) {
  return forward(at::arange(start, start + length, at::kFloat).unsqueeze(0), like);
}

RotaryAngles LlamaRotaryEmbeddingImpl::forward(const at::Tensor& positions, const at::Tensor& like) {
  // Made on the host, where the angles are the same for every device, then moved.
  const auto angles = positions.unsqueeze(-1) * inverse_frequencies_;
  const auto both = at::cat({angles, angles}, -1).unsqueeze(1);
  return {both.cos().to(like.options()), both.sin().to(like.options())};
}

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config, std::size_t layer)
    : torch::nn::Module("LlamaAttention"),
      heads_(config.shape.heads),
      kv_heads_(config.shape.kv_heads),
      head_dim_(config.head_dim),
      layer_(layer) {
  const auto q = heads_ * head_dim_, kv = kv_heads_ * head_dim_, hidden = config.shape.hidden;
  q_proj = register_module("q_proj", make_linear(hidden, q, config.attention_bias));
  k_proj = register_module("k_proj", make_linear(hidden, kv, config.attention_bias));
  v_proj = register_module("v_proj", make_linear(hidden, kv, config.attention_bias));
  o_proj = register_module("o_proj", make_linear(q, hidden, config.attention_bias));
  k_cache = register_module("k_cache", runtime::KVCache());
  v_cache = register_module("v_cache", runtime::KVCache());
  if (config.attention == AttentionKind::fused) {
    fused_scaled_dot_product_attention =
        register_module("fused_scaled_dot_product_attention", runtime::ModuleFusedSDPA());
  } else {
    matmul_qk = register_module("matmul_qk", runtime::Matmul());
    softmax = register_module("softmax", runtime::Softmax());
    matmul_av = register_module("matmul_av", runtime::Matmul());
  }
}

/// q [B, A, L, D], k and v [B, A, S, D] -> [B, A, L, D]. causal: row i sees columns 0..i; else all, or those of the
/// mask. The eager form is transformers': softmax in f32, its result in q's dtype.
at::Tensor LlamaAttentionImpl::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& mask, bool causal) {
  if (fused_scaled_dot_product_attention) {
    runtime::AttentionOptions options;
    if (mask.defined()) options.mask = mask;
    options.is_causal = causal;
    return fused_scaled_dot_product_attention->forward(q, k, v, options);
  }
  auto scores = matmul_qk->forward(q, k.transpose(2, 3)) * (1.0 / std::sqrt(static_cast<double>(head_dim_)));
  if (mask.defined() || causal) {
    const auto seen = mask.defined() ? mask : at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).tril();
    scores = scores.masked_fill(seen.logical_not(), lowest_of(scores.scalar_type()));
  }
  return matmul_av->forward(softmax->forward(scores.to(at::kFloat)).to(q.scalar_type()), v);
}

at::Tensor LlamaAttentionImpl::forward(const at::Tensor& x, const RotaryAngles& angles, const at::Tensor& mask,
                                       KVCache* cache) {
  const auto b = x.size(0), l = x.size(1);
  const auto split = [&](const at::Tensor& y) {  // [B, L, A * D] -> [B, A, L, D]
    return l == 1 ? y.view({b, -1, l, head_dim_}) : y.view({b, l, -1, head_dim_}).transpose(1, 2);
  };
  const auto q = rotate(split(q_proj->forward(x)), angles);
  auto k = rotate(split(k_proj->forward(x)), angles);
  auto v = split(v_proj->forward(x));
  if (cache != nullptr) {
    std::tie(k, v) = cache->append(layer_, k, v, k_cache, v_cache);
  } else {
    k = k_cache->forward(k);
    v = v_cache->forward(v);
  }
  const auto group = heads_ / kv_heads_;
  const auto width = heads_ * head_dim_;
  if (l == 1) {  // the query heads of a kv head are rows of one product: its keys and values are not repeated
    const auto attended = attend(q.reshape({b, kv_heads_, group, head_dim_}), k, v, mask, /*causal=*/false);
    return o_proj->forward(attended.reshape({b, l, width}));
  }
  const auto attended = attend(q, repeat_kv(k, group), repeat_kv(v, group), mask, !mask.defined());
  return o_proj->forward(attended.transpose(1, 2).reshape({b, l, width}));
}

LlamaMLPImpl::LlamaMLPImpl(const LlamaConfig& config) : torch::nn::Module("LlamaMLP") {
  gate_proj = register_module("gate_proj", make_linear(config.shape.hidden, config.shape.inner, config.mlp_bias));
  up_proj = register_module("up_proj", make_linear(config.shape.hidden, config.shape.inner, config.mlp_bias));
  down_proj = register_module("down_proj", make_linear(config.shape.inner, config.shape.hidden, config.mlp_bias));
  act_fn = register_module("act_fn", torch::nn::SiLU());
}

at::Tensor LlamaMLPImpl::forward(const at::Tensor& x) {
  return down_proj->forward(act_fn->forward(gate_proj->forward(x)) * up_proj->forward(x));
}

LlamaDecoderLayerImpl::LlamaDecoderLayerImpl(const LlamaConfig& config, std::size_t layer)
    : torch::nn::Module("LlamaDecoderLayer") {
  self_attn = register_module("self_attn", LlamaAttention(config, layer));
  if (config.num_local_experts > 0) {
    const auto gate = make_linear(config.shape.hidden, config.num_local_experts, /*bias=*/false);
    block_sparse_moe = register_module("block_sparse_moe", MixtralSparseMoeBlock(config, gate));
  } else {
    mlp = register_module("mlp", LlamaMLP(config));
  }
  input_layernorm = register_module("input_layernorm", LlamaRMSNorm(config.shape.hidden, config.rms_norm_eps));
  post_attention_layernorm =
      register_module("post_attention_layernorm", LlamaRMSNorm(config.shape.hidden, config.rms_norm_eps));
}

at::Tensor LlamaDecoderLayerImpl::forward(const at::Tensor& x, const RotaryAngles& angles, const at::Tensor& mask,
                                          KVCache* cache) {
  const auto h = x + self_attn->forward(input_layernorm->forward(x), angles, mask, cache);
  const auto n = post_attention_layernorm->forward(h);
  return h + (mlp ? mlp->forward(n) : block_sparse_moe->forward(n));
}

LlamaModelImpl::LlamaModelImpl(const LlamaConfig& config) : torch::nn::Module("LlamaModel") {
  embed_tokens = register_module("embed_tokens", make_embedding(config.shape.vocab, config.shape.hidden));
  layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.shape.layers; ++i)
    layers->push_back(LlamaDecoderLayer(config, static_cast<std::size_t>(i)));
  norm = register_module("norm", LlamaRMSNorm(config.shape.hidden, config.rms_norm_eps));
  rotary_emb = register_module("rotary_emb", LlamaRotaryEmbedding(config));
}

LlamaForCausalLMImpl::LlamaForCausalLMImpl(const LlamaConfig& config) : CausalLM("LlamaForCausalLM", config.shape) {
  model = register_module("model", LlamaModel(config));
  lm_head = register_module("lm_head", make_linear(config.shape.hidden, config.shape.vocab, /*bias=*/false));
  if (config.tie_word_embeddings) tie(lm_head, model->embed_tokens->weight);
}

std::unique_ptr<Cache> LlamaForCausalLMImpl::make_cache(std::int64_t capacity) const {
  return std::make_unique<KVCache>(capacity);
}

std::unique_ptr<Cache> LlamaForCausalLMImpl::join(const std::vector<Cache*>& caches, std::int64_t capacity) const {
  return KVCache::join(caches, capacity);
}

CausalLM::Parts LlamaForCausalLMImpl::parts() const {
  return {.words = model->embed_tokens, .layers = model->layers, .after = {model->norm.ptr()}, .head = lm_head};
}

CausalLM::LayerFunction LlamaForCausalLMImpl::begin(const at::Tensor& h, Cache* cache) {
  const auto start = cache != nullptr ? cache->length() : 0, length = h.size(1);
  const auto columns_from = [&](std::int64_t first) { return at::arange(first, start + length, at::kLong); };
  RotaryAngles angles;
  at::Tensor mask;
  if (cache != nullptr && !cache->starts().empty()) {  // a sequence begins in, and sees, its own columns
    const auto starts = at::tensor(cache->starts(), at::kLong).unsqueeze(1);
    TORCH_CHECK(h.size(0) == starts.size(0), "[models] expected ids of ", starts.size(0), " sequences, found ",
                h.size(0));
    const auto rows = columns_from(start), columns = columns_from(0);
    angles = model->rotary_emb->forward((rows - starts).to(at::kFloat), h);
    mask = at::le(columns, rows.unsqueeze(1)).logical_and(at::ge(columns, starts.view({-1, 1, 1, 1}))).to(h.device());
  } else {
    angles = model->rotary_emb->forward(start, length, h);
    // several tokens after a filled cache: row i sees columns 0..start + i
    if (start > 0 && length > 1) mask = at::le(columns_from(0), columns_from(start).unsqueeze(1)).to(h.device());
  }
  return [this, angles, mask, kv = KVCache::of(cache)](std::int64_t layer, const at::Tensor& x) {
    const auto module = model->layers->ptr(static_cast<std::size_t>(layer));
    return module->as<LlamaDecoderLayer>()->forward(x, angles, mask, kv);
  };
}

at::Tensor LlamaForCausalLMImpl::norm(const at::Tensor& h) { return model->norm->forward(h); }

std::shared_ptr<CausalLM> make_llama(const ModelConfig& config) {
  return std::make_shared<LlamaForCausalLMImpl>(dynamic_cast<const LlamaConfig&>(config));
}

}  // namespace fp8::models
