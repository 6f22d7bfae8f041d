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

#include <functional>
#include <utility>
#include <vector>

#include "fp8/runtime/modules/attention.h"
#include "fp8/tools/models/kv_cache.h"
#include "fp8/tools/models/llama_config.h"
#include "fp8/tools/models/sparse_moe.h"

namespace fp8::models {

/// cos and sin [1, 1, L, D] of the positions of one forward, in the compute dtype.
struct RotaryAngles {
  at::Tensor cos, sin;
};

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
  /// x [B, L, H] -> [B, L, H]. mask: bool [L, length + L], or undefined for the causal one.
  at::Tensor forward(const at::Tensor& x, const RotaryAngles& angles, const at::Tensor& mask, KVCache* cache);

  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
  runtime::KVCache k_cache{nullptr}, v_cache{nullptr};
  runtime::ModuleFusedSDPA fused_scaled_dot_product_attention{nullptr};  ///< AttentionKind::fused
  runtime::Matmul matmul_qk{nullptr}, matmul_av{nullptr};                ///< AttentionKind::eager
  runtime::Softmax softmax{nullptr};

 private:
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask);

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

class LlamaModelImpl : public torch::nn::Module {
 public:
  /// Runs layer(h), or sees to it that it is run: te::checkpoint(layer, h) in training. layer may be called again while
  /// the model lives.
  using LayerRunner =
      std::function<at::Tensor(const std::function<at::Tensor(const at::Tensor&)>& layer, const at::Tensor& h)>;

  explicit LlamaModelImpl(const LlamaConfig& config);
  /// ids [B, L] int64 -> hidden states after the last norm, [B, L, H].
  at::Tensor forward(const at::Tensor& ids, KVCache* cache);
  /// How the decoder layers of a forward in train mode and without a cache are run; empty: called.
  void set_layer_runner(LayerRunner runner) { run_layer_ = std::move(runner); }

  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers{nullptr};
  LlamaRMSNorm norm{nullptr};
  LlamaRotaryEmbedding rotary_emb{nullptr};

 private:
  LayerRunner run_layer_;
};
TORCH_MODULE(LlamaModel);

/// The language model. A fresh one holds no weights: each parameter has its shape and one NaN behind it (no memory, no
/// time spent on random numbers; use before loading gives NaN). With tied embeddings lm_head.weight and
/// embed_tokens.weight are one tensor, and C++'s named_parameters() lists it under both names.
class CausalLMImpl : public torch::nn::Module {
 public:
  explicit CausalLMImpl(const LlamaConfig& config);
  /// ids [B, L] int64, L >= 1, ids in [0, V) -> logits [B, L, V] in the compute dtype. With a cache the ids continue
  /// what it holds. Throws c10::Error if the positions pass max_position_embeddings.
  at::Tensor forward(const at::Tensor& ids, KVCache* cache = nullptr);
  const LlamaConfig& config() const { return config_; }
  /// Gives a tied lm_head a weight of its own, a copy: it can be quantized then and the embedding not. Else does
  /// nothing.
  void untie_lm_head();

  LlamaModel model{nullptr};
  torch::nn::Linear lm_head{nullptr};

 private:
  LlamaConfig config_;
};
TORCH_MODULE(CausalLM);

}  // namespace fp8::models
