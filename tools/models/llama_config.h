// SPDX-License-Identifier: Apache-2.0
// config.json of a Llama, Mistral or Mixtral checkpoint.
//
// Two spellings of the rotary embedding are met: "rope_theta" + "rope_scaling" (transformers 4) and "rope_parameters"
// (5).
#pragma once
#include <cstdint>
#include <memory>

#include "fp8/tools/models/config_reader.h"
#include "fp8/tools/models/model_config.h"

namespace fp8::models {

/// How the rotary frequencies f_i = theta^(-2i/d) are stretched.
///   linear   f / factor
///   llama3   wavelength 2 pi / f: long ones (> original / low) divided by factor, short ones (< original / high) kept,
///            smooth between
struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;   ///< llama3 only
  std::int64_t original_max_position_embeddings = 0;  ///< llama3 only
};

/// Shapes: hidden H, heads A, key/value heads K (A a multiple of K), head_dim D, intermediate F, vocabulary V.
struct LlamaConfig : ModelConfig {
  LlamaConfig() { shape.context = 2048; }
  void check(const io::Checkpoint& checkpoint) const override;

  std::int64_t head_dim = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool attention_bias = false, mlp_bias = false, tie_word_embeddings = false;
  std::int64_t num_local_experts = 0, num_experts_per_tok = 0;  ///< Mixtral's; 0: a dense MLP
};

/// LlamaConfigs of the three families, for their rows (registry.h).
std::unique_ptr<ModelConfig> read_llama_config(const ConfigReader& reader);
/// A Mistral without its sliding window, which is the same function.
std::unique_ptr<ModelConfig> read_mistral_config(const ConfigReader& reader);
/// A Mixtral likewise.
std::unique_ptr<ModelConfig> read_mixtral_config(const ConfigReader& reader);

}  // namespace fp8::models
