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

/// For the rows (registry.h). config: an EncoderDecoderConfig.
std::shared_ptr<CausalLM> make_encoder_decoder(const ModelConfig& config);

}  // namespace fp8::models
