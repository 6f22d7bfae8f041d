// SPDX-License-Identifier: Apache-2.0
// A model that answers a source text: an encoder's layers, then those of a decoder that looks at what they gave, each
// stack of a description of its own (description.h), with one table of words. Columns are [source | answer]
// (causal_lm.h). Without a decoder it is the encoder of such a model, whose hidden states are what it gives.
#pragma once

#include "fp8/tools/models/decoder/decoder.h"

namespace fp8::models {

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

class EncoderDecoder : public CausalLM {
 public:
  explicit EncoderDecoder(const EncoderDecoderConfig& config);
  std::unique_ptr<Cache> make_cache(std::int64_t capacity) const override;
  std::unique_ptr<Cache> join(const std::vector<Cache*>& caches, std::int64_t capacity) const override;
  bool reads_in_parts() const override { return false; }  // the source is seen as a whole
  Parts parts() const override;
  at::Tensor embed(const at::Tensor& words, const at::Tensor& positions, std::int64_t source) override;
  LayerFunction begin(const at::Tensor& h, Cache* cache, std::int64_t source) override;
  at::Tensor norm(const at::Tensor& h) override;
  at::Tensor last_hidden(const at::Tensor& h) override { return h; }
  at::Tensor finish(const at::Tensor& scores) override;
  bool leaves_out(const std::string& name) const override;

 private:
  struct Stack {
    torch::nn::Embedding positions{nullptr}, biases{nullptr};
    Norm words_norm{nullptr}, norm{nullptr};
    torch::nn::ModuleList layers{nullptr};
  };
  struct Forward;
  Stack add_stack(const DecoderConfig& config);
  static at::Tensor embed(const DecoderConfig& config, Stack& stack, const at::Tensor& words,
                          const at::Tensor& positions);
  static Sight sight_in(const DecoderConfig& config, Stack& stack, const Rows& rows, at::Device device);
  at::Tensor encode(std::size_t layer, const at::Tensor& x, Forward& shared);
  at::Tensor decode(std::size_t layer, const at::Tensor& x, Forward& shared);

  EncoderDecoderConfig config_;
  torch::nn::Embedding words_{nullptr};
  Stack encoder_, decoder_;
  torch::nn::ModuleList layers_;  ///< of both, below no name
  torch::nn::Linear head_{nullptr};
  at::Tensor logits_bias_;  ///< [1, V] or undefined
};

/// For the rows (registry.h). config: an EncoderDecoderConfig.
std::shared_ptr<CausalLM> make_encoder_decoder(const ModelConfig& config);

}  // namespace fp8::models
