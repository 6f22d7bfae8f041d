// SPDX-License-Identifier: Apache-2.0
// The keys of config.json, their ranges and their defaults (those of transformers' LlamaConfig and MixtralConfig).
#include "fp8/tools/models/llama_config.h"

#include <string>

#include "fp8/tools/models/load.h"

namespace fp8::models {
namespace {

// Wide enough for any published model, narrow enough that no product of two overflows and no list gets large.
constexpr std::int64_t kMaxVocabulary = 1 << 24;
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxHeads = 1 << 14;
constexpr std::int64_t kMaxHeadDim = 1 << 14;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxExperts = 4096;
constexpr std::int64_t kMaxPositions = 1 << 30;

RopeScaling read_scaling(const ConfigReader& rope) {
  const char* key = rope.find("rope_type") == nullptr && rope.find("type") != nullptr ? "type" : "rope_type";
  const auto type = rope.word(key, {"default", "linear", "llama3"}, "default");
  RopeScaling scaling;
  if (type == "default") return scaling;
  scaling.factor = rope.number("factor", 1, 1e6);
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::linear;
    return scaling;
  }
  scaling.kind = RopeScaling::Kind::llama3;
  scaling.low_freq_factor = rope.number("low_freq_factor", 1e-6, 1e6);
  scaling.high_freq_factor = rope.number("high_freq_factor", 1e-6, 1e6);
  if (!(scaling.low_freq_factor < scaling.high_freq_factor))
    rope.fail("high_freq_factor", "a number above low_freq_factor");
  scaling.original_max_position_embeddings = rope.integer("original_max_position_embeddings", 1, kMaxPositions);
  return scaling;
}

void read_rope(const ConfigReader& reader, LlamaConfig& config) {
  constexpr double kMaxTheta = 1e15;
  config.rope_theta = reader.number("rope_theta", 1, kMaxTheta, config.rope_theta);
  const char* key = reader.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const auto check_partial = [](const ConfigReader& r) {
    if (r.number("partial_rotary_factor", 0, 1, 1.0) != 1.0) r.fail("partial_rotary_factor", "1");
  };
  check_partial(reader);
  if (reader.find(key) == nullptr) return;
  const auto rope = reader.object(key);
  check_partial(rope);
  config.rope_theta = rope.number("rope_theta", 1, kMaxTheta, config.rope_theta);
  config.rope_scaling = read_scaling(rope);
}

/// The keys that all three have. config: the defaults.
void read_common(const ConfigReader& reader, LlamaConfig& config) {
  auto& shape = config.shape;
  shape.vocab = reader.integer("vocab_size", 1, kMaxVocabulary);
  shape.hidden = reader.integer("hidden_size", 1, kMaxWidth);
  shape.inner = reader.integer("intermediate_size", 1, kMaxWidth);
  shape.layers = reader.integer("num_hidden_layers", 1, kMaxLayers);
  shape.heads = reader.integer("num_attention_heads", 1, kMaxHeads);
  shape.kv_heads = reader.integer("num_key_value_heads", 1, kMaxHeads, shape.heads);
  if (shape.heads % shape.kv_heads != 0)
    reader.fail("num_key_value_heads", "a divisor of num_attention_heads " + std::to_string(shape.heads));
  if (reader.find("head_dim") == nullptr && shape.hidden % shape.heads != 0)
    reader.fail("num_attention_heads", "a divisor of hidden_size " + std::to_string(shape.hidden));
  config.head_dim = reader.integer("head_dim", 2, kMaxHeadDim, shape.hidden / shape.heads);
  if (config.head_dim % 2 != 0 || config.head_dim < 2)
    reader.fail("head_dim",
                "an even integer (the rotary embedding turns pairs), here " + std::to_string(config.head_dim));
  shape.context = reader.integer("max_position_embeddings", 1, kMaxPositions, shape.context);
  config.rms_norm_eps = reader.number("rms_norm_eps", 0, 1, config.rms_norm_eps);
  config.attention_bias = reader.boolean("attention_bias", false);
  config.mlp_bias = reader.boolean("mlp_bias", false);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", false);
  reader.word("hidden_act", {"silu", "swish"}, "silu");
  read_rope(reader, config);
}

[[noreturn]] void refuse_window(const ConfigReader& reader) {
  reader.fail("sliding_window", "null (a sliding window of attention is not supported)");
}

}  // namespace

std::unique_ptr<ModelConfig> read_llama_config(const ConfigReader& reader) {
  auto config = std::make_unique<LlamaConfig>();
  read_common(reader, *config);
  return config;
}

std::unique_ptr<ModelConfig> read_mistral_config(const ConfigReader& reader) {
  // Absent means 4096 to transformers, so only an explicit null is exact.
  if (!reader.is_null("sliding_window")) refuse_window(reader);
  return read_llama_config(reader);
}

std::unique_ptr<ModelConfig> read_mixtral_config(const ConfigReader& reader) {
  if (reader.find("sliding_window") != nullptr) refuse_window(reader);
  auto config = std::make_unique<LlamaConfig>();
  config->num_local_experts = reader.integer("num_local_experts", 1, kMaxExperts, 8);
  config->num_experts_per_tok = reader.integer("num_experts_per_tok", 1, config->num_local_experts, 2);
  config->shape.context = 4096 * 32;
  config->rms_norm_eps = 1e-5;
  config->rope_theta = 1e6;
  read_common(reader, *config);
  return config;
}

void LlamaConfig::check(const io::Checkpoint& checkpoint) const {
  const auto last = "model.layers." + std::to_string(shape.layers - 1) + ".";
  require_promised(checkpoint, last + "input_layernorm.weight", "num_hidden_layers " + std::to_string(shape.layers));
  if (num_local_experts == 0) return;
  check_parameter(checkpoint,
                  last + "block_sparse_moe.experts.moe_op.w2_list." + std::to_string(num_local_experts - 1) + ".weight",
                  {shape.hidden, shape.inner});
}

}  // namespace fp8::models
