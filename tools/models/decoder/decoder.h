// SPDX-License-Identifier: Apache-2.0
// A decoder of any description (description.h) as plain torch::nn modules. Names of modules and parameters are those of
// its checkpoints (model.layers.0.self_attn.q_proj.weight), projections are torch::nn::Linear, so whatever works on
// unmodified typed modules works on these.
//
// Casts follow transformers: norms and rotary angles in f32, their results in the compute dtype. Nothing here names a
// device: positions, masks and caches are made where the ids are.
#pragma once

#include "fp8/tools/models/decoder/attention.h"
#include "fp8/tools/models/decoder/mlp.h"

namespace fp8::models {

class DecoderLayerImpl : public torch::nn::Module {
 public:
  DecoderLayerImpl(const DecoderConfig& config, std::size_t layer);
  /// x [B, L, H] -> [B, L, H].
  at::Tensor forward(const at::Tensor& x, const LayerInputs& inputs);

  DecoderAttention attention{nullptr};

 private:
  at::Tensor feed_forward(const at::Tensor& x);
  runtime::NextCast feed_forward_cast(const at::Tensor& like) const;
  at::Tensor look_at_source(const at::Tensor& h, const LayerInputs& inputs);

  /// Paths in the model, for who profiles it: made once.
  struct Paths {
    std::string layer, attention, mlp, before_attention, after_attention, before_mlp, after_mlp;
  };

  Paths paths_;
  bool parallel_, norm_sums_, residual_is_normed_;
  double residual_scale_;
  Norm before_attention_{nullptr}, after_attention_{nullptr}, before_mlp_{nullptr}, after_mlp_{nullptr};
  Norm before_cross_{nullptr}, after_cross_{nullptr};
  DecoderAttention cross_{nullptr};
  Mlp mlp_;
  MoeBlock moe_{nullptr};
};
TORCH_MODULE(DecoderLayer);

class Decoder : public CausalLM {
 public:
  explicit Decoder(const DecoderConfig& config);
  std::unique_ptr<Cache> make_cache(std::int64_t capacity) const override;
  bool reads_in_parts() const override;
  std::unique_ptr<Cache> join(const std::vector<Cache*>& caches, std::int64_t capacity) const override;
  Parts parts() const override;
  at::Tensor embed(const at::Tensor& words, const at::Tensor& positions, std::int64_t source) override;
  LayerFunction begin(const at::Tensor& h, Cache* cache, std::int64_t source) override;
  at::Tensor norm(const at::Tensor& h) override;
  at::Tensor last_hidden(const at::Tensor& h) override;
  at::Tensor finish(const at::Tensor& logits) override;
  Storage storage_of(const std::string& parameter) const override;
  bool leaves_out(const std::string& name) const override;

 private:
  void add_words();
  void add_head();

  DecoderConfig config_;
  torch::nn::Embedding words_{nullptr}, positions_{nullptr}, types_{nullptr}, distances_{nullptr};
  Norm words_norm_{nullptr}, distance_norm_{nullptr}, norm_{nullptr}, head_norm_{nullptr};
  torch::nn::Linear project_in_{nullptr}, project_out_{nullptr}, head_dense_{nullptr}, head_{nullptr};
  RotaryEmbedding rotary_{nullptr};
  torch::nn::ModuleList layers_{nullptr};
  Convolution convolution_{nullptr};
};

/// For the rows (registry.h). config: a DecoderConfig.
std::shared_ptr<CausalLM> make_decoder(const ModelConfig& config);

// A model that answers a source text: an encoder's layers, then those of a decoder that looks at what they gave, each
// stack of a description of its own (description.h), with one table of words. Columns are [source | answer]
// (causal_lm.h). Without a decoder it is the encoder of such a model, whose hidden states are what it gives.

/// shape: of the whole; layers: of both. Of the stacks' own shapes hidden, heads, layers and context matter; of the
/// decoder's names words and head are those of the model.
struct EncoderDecoderConfig : ModelConfig {
  void fit(const io::Checkpoint& checkpoint) override;
  void check(const io::Checkpoint& checkpoint) const override;

  std::string type;  ///< first part of class names: T5
  DecoderConfig encoder, decoder;
  double head_scale = 1;    ///< of what the head takes
  std::string logits_bias;  ///< parameter [1, V] that logits get; "": none
};

/// For the rows (registry.h). config: an EncoderDecoderConfig.
std::shared_ptr<CausalLM> make_encoder_decoder(const ModelConfig& config);

}  // namespace fp8::models
