// SPDX-License-Identifier: Apache-2.0
// The keys of config.json, their ranges and their defaults (those of transformers' LlamaConfig and MixtralConfig).
#include "fp8/tools/models/llama_config.h"

#include <system_error>

#include "fp8/runtime/io/base/error.h"
#include "fp8/tools/models/config_reader.h"

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

/// Llama, a Mistral without its sliding window, which is the same function, or a Mixtral likewise. Returns the name.
std::string read_model_type(const ConfigReader& reader) {
  const auto* type = reader.find("model_type");
  if (type == nullptr || !type->is_string()) reader.fail("model_type", "llama, mistral, mixtral");
  const auto name = type->get<std::string>();
  if (name == "llama") return name;
  if (name == "mixtral") {
    if (reader.find("sliding_window") != nullptr)
      reader.fail("sliding_window", "null (a sliding window of attention is not supported)");
    return name;
  }
  if (name != "mistral")
    reader.fail_with("model_type " + type->dump(-1, ' ', true, io::Json::error_handler_t::replace) +
                     " is not supported, allowed: llama, mistral, mixtral");
  // Absent means 4096 to transformers, so only an explicit null is exact.
  if (!reader.is_null("sliding_window"))
    reader.fail("sliding_window", "null (a sliding window of attention is not supported)");
  return name;
}

/// Mixtral's own keys, and its defaults where they are not Llama's.
void read_mixtral(const ConfigReader& reader, LlamaConfig& config) {
  config.num_local_experts = reader.integer("num_local_experts", 1, kMaxExperts, 8);
  config.num_experts_per_tok = reader.integer("num_experts_per_tok", 1, config.num_local_experts, 2);
  config.max_position_embeddings = 4096 * 32;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 1e6;
}

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
  config.rope_theta = reader.number("rope_theta", 1, kMaxTheta, 10000.0);
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

std::optional<c10::ScalarType> read_dtype(const ConfigReader& reader) {
  const char* key = reader.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  if (reader.find(key) == nullptr) return std::nullopt;
  const auto word = reader.word(key, {"float32", "bfloat16", "float16"});
  return word == "float32" ? c10::kFloat : word == "bfloat16" ? c10::kBFloat16 : c10::kHalf;
}

}  // namespace

LlamaConfig parse_llama_config(const io::Json& json, const std::string& name) {
  const ConfigReader reader(json, name);
  LlamaConfig config;
  if (read_model_type(reader) == "mixtral") read_mixtral(reader, config);
  config.vocab_size = reader.integer("vocab_size", 1, kMaxVocabulary);
  config.hidden_size = reader.integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size = reader.integer("intermediate_size", 1, kMaxWidth);
  config.num_hidden_layers = reader.integer("num_hidden_layers", 1, kMaxLayers);
  config.num_attention_heads = reader.integer("num_attention_heads", 1, kMaxHeads);
  config.num_key_value_heads = reader.integer("num_key_value_heads", 1, kMaxHeads, config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    reader.fail("num_key_value_heads",
                "a divisor of num_attention_heads " + std::to_string(config.num_attention_heads));
  if (reader.find("head_dim") == nullptr && config.hidden_size % config.num_attention_heads != 0)
    reader.fail("num_attention_heads", "a divisor of hidden_size " + std::to_string(config.hidden_size));
  config.head_dim = reader.integer("head_dim", 2, kMaxHeadDim, config.hidden_size / config.num_attention_heads);
  if (config.head_dim % 2 != 0 || config.head_dim < 2)
    reader.fail("head_dim",
                "an even integer (the rotary embedding turns pairs), here " + std::to_string(config.head_dim));
  config.max_position_embeddings =
      reader.integer("max_position_embeddings", 1, kMaxPositions, config.max_position_embeddings);
  config.rms_norm_eps = reader.number("rms_norm_eps", 0, 1, config.rms_norm_eps);
  config.attention_bias = reader.boolean("attention_bias", false);
  config.mlp_bias = reader.boolean("mlp_bias", false);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", false);
  reader.word("hidden_act", {"silu", "swish"}, "silu");
  read_rope(reader, config);
  config.bos_token_ids = reader.token_ids("bos_token_id");
  config.eos_token_ids = reader.token_ids("eos_token_id");
  config.dtype = read_dtype(reader);
  return config;
}

LlamaConfig read_llama_config(const std::filesystem::path& folder, io::Json* json) {
  const auto path = folder / "config.json";
  auto content = io::read_json(path);
  auto config = parse_llama_config(content, path.string());
  const auto generation = folder / "generation_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(generation, ignored)) {
    const auto more = io::read_json(generation);
    auto ids = ConfigReader(more, generation.string()).token_ids("eos_token_id");
    if (!ids.empty()) config.eos_token_ids = std::move(ids);
  }
  if (json != nullptr) *json = std::move(content);
  return config;
}

}  // namespace fp8::models
