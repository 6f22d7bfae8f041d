// SPDX-License-Identifier: Apache-2.0
// config.json of a Llama, Mistral or Mixtral checkpoint as a typed value. Every key that changes the numbers is read or
// refused by name: a model that we can't compute exactly is an error, not an approximation.
//
// Two spellings of the rotary embedding are met: "rope_theta" + "rope_scaling" (transformers 4) and "rope_parameters"
// (5).
#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"

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

/// How attention is computed: by one fused operation, or by two products and a softmax.
enum class AttentionKind : std::uint8_t { fused, eager };

/// Shapes: hidden H, heads A, key/value heads K (A a multiple of K), head_dim D, intermediate F, vocabulary V.
struct LlamaConfig {
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  std::int64_t num_hidden_layers = 0, num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool attention_bias = false, mlp_bias = false, tie_word_embeddings = false;
  std::int64_t num_local_experts = 0, num_experts_per_tok = 0;  ///< Mixtral's; 0: a dense MLP
  AttentionKind attention = AttentionKind::fused;               ///< the caller's choice, not config.json's
  std::vector<std::int64_t> bos_token_ids,
      eos_token_ids;                     ///< as config.json or generation_config.json give them; may be empty
  std::optional<c10::ScalarType> dtype;  ///< "torch_dtype" or "dtype"; empty: that of the weights
};

/// Reads what `json`, the content of a config.json, says; `name` stands in messages: "[models] DIR/config.json: key
/// 'hidden_act': found \"gelu\", allowed: silu". Throws io::Error.
LlamaConfig parse_llama_config(const io::Json& json, const std::string& name);

/// Reads DIR/config.json; EOS ids also from DIR/generation_config.json, which wins as it does in transformers.
/// json: receives the whole file. Throws io::Error.
LlamaConfig read_llama_config(const std::filesystem::path& folder, io::Json* json = nullptr);

}  // namespace fp8::models
