// SPDX-License-Identifier: Apache-2.0
// Llama, Mistral and Mixtral as plain torch::nn modules. Names of modules and parameters are Hugging Face's
// (model.layers.0.self_attn.q_proj.weight), projections are torch::nn::Linear, so whatever works on unmodified typed
// modules works on these.
//
//   h = embed(ids);  per layer: h += o(attention(rope(q(n)), rope(k(n)), v(n))), n = norm(h);
//                               h += down(silu(gate(n)) * up(n))
//   logits = lm_head(norm(h))
//
// Casts follow transformers: norms and rotary angles in f32, their results in the compute dtype. Nothing here names a
// device: positions, masks and caches are made where the ids are. Shapes: batch B, length L, vocabulary V, heads A, kv
// heads K, head_dim D.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <memory>

#include "fp8/runtime/modules/attention.h"
#include "fp8/tools/models/causal_lm.h"
#include "fp8/tools/models/decoder_math.h"
#include "fp8/tools/models/kv_cache.h"
#include "fp8/tools/models/llama_config.h"
#include "fp8/tools/models/sparse_moe.h"

namespace fp8::models {

/// y = weight * cast(x * rsqrt(mean(x^2) + eps)), the inner part in f32.
class LlamaRMSNormImpl : public torch::nn::Module {
 public:
  LlamaRMSNormImpl(std::int64_t size, double eps);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;  ///< [H]

 private:
  double eps_;
};
TORCH_MODULE(LlamaRMSNorm);

/// Rotary embedding; has no parameters.
class LlamaRotaryEmbeddingImpl : public torch::nn::Module {
 public:
  explicit LlamaRotaryEmbeddingImpl(const LlamaConfig& config);
  /// Angles of positions [start, start + length) on like's device, in like's dtype.
  RotaryAngles forward(std::int64_t start, std::int64_t length, const at::Tensor& like);
  /// The same of positions [B, L], f32 on the CPU.
  RotaryAngles forward(const at::Tensor& positions, const at::Tensor& like);
  const at::Tensor& inverse_frequencies() const { return inverse_frequencies_; }  ///< [D / 2], f32, CPU

 private:
  at::Tensor inverse_frequencies_;  // not a buffer: Module::to() must not change its dtype
};
TORCH_MODULE(LlamaRotaryEmbedding);

/// The pieces that hold no weight are modules too, named as optimum-habana's, so that they can be measured and run in
/// fp8:
///   both   k_cache, v_cache     fused   fused_scaled_dot_product_attention     eager   matmul_qk, softmax, matmul_av
class LlamaAttentionImpl : public torch::nn::Module {
 public:
  LlamaAttentionImpl(const LlamaConfig& config, std::size_t layer);
  /// x [B, L, H] -> [B, L, H]. mask: bool [L, length + L] or [B, 1, L, length + L], or undefined for the causal one.
  at::Tensor forward(const at::Tensor& x, const RotaryAngles& angles, const at::Tensor& mask, KVCache* cache);

  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
  runtime::KVCache k_cache{nullptr}, v_cache{nullptr};
  runtime::ModuleFusedSDPA fused_scaled_dot_product_attention{nullptr};  ///< AttentionKind::fused
  runtime::Matmul matmul_qk{nullptr}, matmul_av{nullptr};                ///< AttentionKind::eager
  runtime::Softmax softmax{nullptr};

 private:
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask, bool causal);

  std::int64_t heads_, kv_heads_, head_dim_;
  std::size_t layer_;
};
TORCH_MODULE(LlamaAttention);

class LlamaMLPImpl : public torch::nn::Module {
 public:
  explicit LlamaMLPImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
  torch::nn::SiLU act_fn{nullptr};
};
TORCH_MODULE(LlamaMLP);

class LlamaDecoderLayerImpl : public torch::nn::Module {
 public:
  LlamaDecoderLayerImpl(const LlamaConfig& config, std::size_t layer);
  at::Tensor forward(const at::Tensor& x, const RotaryAngles& angles, const at::Tensor& mask, KVCache* cache);

  LlamaAttention self_attn{nullptr};
  LlamaMLP mlp{nullptr};                            ///< of a dense layer
  MixtralSparseMoeBlock block_sparse_moe{nullptr};  ///< of Mixtral
  LlamaRMSNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
};
TORCH_MODULE(LlamaDecoderLayer);

/// The checkpoint's "model": everything but the head. LlamaForCausalLM runs it.
class LlamaModelImpl : public torch::nn::Module {
 public:
  explicit LlamaModelImpl(const LlamaConfig& config);

  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers{nullptr};
  LlamaRMSNorm norm{nullptr};
  LlamaRotaryEmbedding rotary_emb{nullptr};
};
TORCH_MODULE(LlamaModel);

class LlamaForCausalLMImpl : public CausalLM {
 public:
  explicit LlamaForCausalLMImpl(const LlamaConfig& config);
  std::unique_ptr<Cache> make_cache(std::int64_t capacity) const override;
  std::unique_ptr<Cache> join(const std::vector<Cache*>& caches, std::int64_t capacity) const override;
  Parts parts() const override;
  LayerFunction begin(const at::Tensor& h, Cache* cache) override;
  at::Tensor norm(const at::Tensor& h) override;

  LlamaModel model{nullptr};
  torch::nn::Linear lm_head{nullptr};
};
TORCH_MODULE(LlamaForCausalLM);

/// For the rows (registry.h). config: a LlamaConfig.
std::shared_ptr<CausalLM> make_llama(const ModelConfig& config);

}  // namespace fp8::models
