// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/families/keys.h"

namespace fp8::models::families {
namespace {

constexpr double kMaxTheta = 1e15;

std::vector<double> read_factors(const ConfigReader& rope, const std::string& key, std::int64_t count) {
  const auto* list = rope.find(key);
  const std::string allowed = "a list of " + std::to_string(count) + " numbers from 0.001 to 1000000";
  if (list == nullptr || !list->is_array() || static_cast<std::int64_t>(list->size()) != count) rope.fail(key, allowed);
  std::vector<double> factors;
  for (const auto& item : *list) {
    if (!item.is_number() || !(item.get<double>() >= 1e-3 && item.get<double>() <= kMaxNumber)) rope.fail(key, allowed);
    factors.push_back(item.get<double>());
  }
  return factors;
}

void read_llama3(const ConfigReader& rope, RopeSpec& spec) {
  spec.low_freq_factor = rope.number("low_freq_factor", 1e-6, kMaxNumber);
  spec.high_freq_factor = rope.number("high_freq_factor", 1e-6, kMaxNumber);
  if (!(spec.low_freq_factor < spec.high_freq_factor)) rope.fail("high_freq_factor", "a number above low_freq_factor");
}

void read_yarn(const ConfigReader& rope, RopeSpec& spec) {
  const auto magnitude = [&](double by) { return spec.factor <= 1 ? 1.0 : 0.1 * by * std::log(spec.factor) + 1.0; };
  const double mscale = rope.number("mscale", 0, kMaxNumber, 0.0),
               all = rope.number("mscale_all_dim", 0, kMaxNumber, 0.0);
  const double usual = mscale > 0 && all > 0 ? magnitude(mscale) / magnitude(all) : magnitude(1);
  spec.attention_factor = rope.number("attention_factor", 0, kMaxNumber, usual);
  spec.beta_fast = rope.number("beta_fast", 1e-6, kMaxNumber, 32);
  spec.beta_slow = rope.number("beta_slow", 1e-6, kMaxNumber, 1);
  spec.truncate = rope.boolean("truncate", true);
}

void read_longrope(const ConfigReader& rope, RopeSpec& spec) {
  spec.short_factor = read_factors(rope, "short_factor", spec.dims / 2);
  spec.long_factor = read_factors(rope, "long_factor", spec.dims / 2);
  const double usual =
      spec.factor <= 1
          ? 1.0
          : std::sqrt(1 + std::log(spec.factor) / std::log(static_cast<double>(spec.original_max_position_embeddings)));
  spec.attention_factor = rope.number("attention_factor", 0, kMaxNumber, usual);
  if (rope.find("short_mscale") == nullptr) return;  // Phi-MoE's
  spec.attention_factor = rope.number("short_mscale", 0, kMaxNumber);
  spec.long_attention_factor = rope.number("long_mscale", 1e-6, kMaxNumber);
}

/// The names of one size in transformers' classes (their attribute_map): which of two counts depends on the class.
constexpr std::initializer_list<const char*> kNamesOfOne[] = {
    {"hidden_size", "d_model", "dim", "n_embd"},
    {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"},
    {"num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"},
    {"head_dim", "d_kv"},
    {"max_position_embeddings", "n_positions"},
    {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"},
    {"num_experts_per_tok", "moe_k", "moe_topk"},
};

}  // namespace

std::string first_architecture(const ConfigReader& reader) {
  const auto* list = reader.find("architectures");
  const bool has = list != nullptr && list->is_array() && !list->empty() && list->front().is_string();
  return has ? list->front().get<std::string>() : "";
}

void read_sizes(const ConfigReader& reader, DecoderConfig& config, const SizeKeys& keys) {
  auto& shape = config.shape;
  shape.vocab = reader.integer("vocab_size", 1, kMaxVocabulary);
  shape.hidden = reader.integer(keys.hidden, 1, kMaxWidth);
  const bool has_inner = !keys.inner.empty() && reader.find(keys.inner) != nullptr;
  const bool needs_inner = keys.inner == "intermediate_size" || has_inner;
  shape.inner = needs_inner ? reader.integer(keys.inner, 1, kMaxWidth) : 4 * shape.hidden;
  shape.layers = reader.integer(keys.layers, 1, kMaxLayers);
  shape.heads = reader.integer(keys.heads, 1, kMaxHeads);
  shape.kv_heads = keys.kv_heads.empty() ? shape.heads : reader.integer(keys.kv_heads, 1, kMaxHeads, shape.heads);
  if (shape.heads % shape.kv_heads != 0)
    reader.fail(keys.kv_heads, "a divisor of " + keys.heads + " " + std::to_string(shape.heads));
  const bool own_head_dim =
      keys.default_head_dim > 0 || (!keys.head_dim.empty() && reader.find(keys.head_dim) != nullptr);
  if (!own_head_dim && shape.hidden % shape.heads != 0)
    reader.fail(keys.heads, "a divisor of " + keys.hidden + " " + std::to_string(shape.hidden));
  const auto usual = keys.default_head_dim > 0 ? keys.default_head_dim : shape.hidden / shape.heads;
  auto& head_dim = config.attend.head_dim;
  head_dim = keys.head_dim.empty() ? usual : reader.integer(keys.head_dim, 1, kMaxHeadDim, usual);
  config.attend.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  shape.context = reader.integer(keys.context, 1, kMaxPositions, keys.default_context);
  config.mlp.inner = shape.inner;
  config.kinds.assign(static_cast<std::size_t>(shape.layers), LayerKind{.rope = -1});
}

void read_rms_norm(const ConfigReader& reader, DecoderConfig& config, double eps, const char* key) {
  config.norm = {.kind = NormSpec::Kind::rms, .eps = reader.number(key, 0, 1, eps)};
  config.attend.norm = config.norm;
}

void read_layer_norm(const ConfigReader& reader, DecoderConfig& config, const char* key, double eps) {
  config.norm = {.kind = NormSpec::Kind::layer, .eps = reader.number(key, 0, 1, eps), .bias = true};
  config.attend.norm = config.norm;
}

void read_activation(const ConfigReader& reader, DecoderConfig& config, const char* key, const char* fallback) {
  const auto word = reader.word(
      key, {"silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "relu2"}, fallback);
  config.mlp.activation = word == "silu" || word == "swish" ? Activation::silu
                          : word == "gelu"                  ? Activation::gelu
                          : word == "relu"                  ? Activation::relu
                          : word == "relu2"                 ? Activation::relu2
                                                            : Activation::gelu_tanh;
}

RopeSpec read_rope_object(const ConfigReader& rope, const DecoderConfig& config, const RopeKeys& keys) {
  RopeSpec spec;
  spec.theta = rope.number("rope_theta", 1, kMaxTheta, keys.theta);
  const double partial = rope.number("partial_rotary_factor", 0, 1, keys.partial);
  if (!keys.takes_partial && partial != 1) rope.fail("partial_rotary_factor", "1");
  spec.dims =
      keys.dims > 0 ? keys.dims : static_cast<std::int64_t>(static_cast<double>(config.attend.head_dim) * partial);
  const char* key = rope.find("rope_type") == nullptr && rope.find("type") != nullptr ? "type" : "rope_type";
  const auto type =
      rope.word(key, {"default", "linear", "dynamic", "llama3", "yarn", "longrope", "su", "mrope"}, "default");
  if (type == "default" || type == "mrope") return spec;     // of text alone, mrope's three positions are one
  if (type == "dynamic" && rope.find("alpha") != nullptr) {  // Hunyuan's: stretched once, whatever the length
    const double alpha = rope.number("alpha", 1e-6, kMaxNumber);
    const auto dims = static_cast<double>(spec.dims);
    if (spec.dims > 2) spec.theta *= std::pow(alpha, dims / (dims - 2));
    return spec;
  }
  const auto context = config.shape.context;
  if (type == "linear" || type == "dynamic") {
    spec.kind = type == "linear" ? RopeSpec::Kind::linear : RopeSpec::Kind::dynamic;
    spec.factor = rope.number("factor", 1, kMaxNumber);
    if (type == "dynamic") spec.original_max_position_embeddings = context;
    return spec;
  }
  const auto original = rope.integer("original_max_position_embeddings", 1, kMaxPositions,
                                     type == "llama3" ? std::optional<std::int64_t>() : context);
  spec.original_max_position_embeddings = original;
  const double ratio = static_cast<double>(context) / static_cast<double>(original);
  if (type == "llama3") {
    spec.kind = RopeSpec::Kind::llama3;
    spec.factor = rope.number("factor", 1, kMaxNumber);
    read_llama3(rope, spec);
  } else if (type == "yarn") {
    spec.kind = RopeSpec::Kind::yarn;
    spec.factor = rope.number("factor", 1e-6, kMaxNumber, ratio);
    read_yarn(rope, spec);
  } else {
    spec.kind = RopeSpec::Kind::longrope;
    spec.factor = rope.number("factor", 1e-6, kMaxNumber, ratio);
    read_longrope(rope, spec);
  }
  return spec;
}

void read_rope(const ConfigReader& reader, DecoderConfig& config, const RopeKeys& given) {
  RopeKeys keys = given;
  keys.theta = reader.number("rope_theta", 1, kMaxTheta, keys.theta);
  keys.partial = reader.number("partial_rotary_factor", 0, 1, keys.partial);
  if (!keys.takes_partial && keys.partial != 1) reader.fail("partial_rotary_factor", "1");
  const char* key = reader.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  RopeSpec spec;
  // Phi-3's files have this one beside the object.
  const auto* original = reader.find("original_max_position_embeddings");
  if (original != nullptr) reader.integer("original_max_position_embeddings", 1, kMaxPositions);
  if (reader.find(key) != nullptr) {
    auto object = *reader.find(key);
    if (object.is_object() && original != nullptr && !object.contains("original_max_position_embeddings"))
      object["original_max_position_embeddings"] = *original;
    spec = read_rope_object(reader.below(key, object), config, keys);
  } else {
    static const io::Json nothing = io::Json::object();
    spec = read_rope_object(reader.below("rope_scaling", nothing), config, keys);
  }
  if (spec.dims % 2 != 0 || spec.dims < 2)
    reader.fail("head_dim", "an even integer (the rotary embedding turns pairs), here " + std::to_string(spec.dims));
  if (spec.kind == RopeSpec::Kind::dynamic) {
    if (spec.dims < 4) reader.fail("head_dim", "at least 4 elements that turn (dynamic scaling), here 2");
    config.shape.context = static_cast<std::int64_t>(static_cast<double>(config.shape.context) * spec.factor);
  }
  config.ropes = {spec};
  for (auto& kind : config.kinds) kind.rope = 0;
}

void read_window(const ConfigReader& reader, DecoderConfig& config, std::int64_t fallback) {
  if (reader.is_null("sliding_window")) return;
  if (fallback == 0 && reader.find("sliding_window") == nullptr) return;
  const auto window =
      reader.integer("sliding_window", 1, kMaxPositions, fallback > 0 ? std::optional(fallback) : std::nullopt);
  for (auto& kind : config.kinds) kind.window = window;
}

void read_layer_types(const ConfigReader& reader, DecoderConfig& config, std::int64_t default_window,
                      bool (*slides)(std::int64_t layer, std::int64_t pattern), std::int64_t pattern) {
  const auto types = read_each_layer(reader, config, "layer_types", {"full_attention", "sliding_attention"});
  if (reader.is_null("sliding_window")) return;
  const auto window = reader.integer("sliding_window", 1, kMaxPositions, default_window);
  for (std::size_t i = 0; i < config.kinds.size(); ++i)
    if (types.has_value() ? (*types)[i] == 1 : slides(static_cast<std::int64_t>(i), pattern))
      config.kinds[i].window = window;
}

std::optional<std::vector<std::size_t>> read_each_layer(const ConfigReader& reader, const DecoderConfig& config,
                                                        const char* key, const std::vector<io::Json>& choices) {
  const auto* list = reader.find(key);
  if (list == nullptr) return std::nullopt;
  const auto layers = config.kinds.size();
  std::string allowed = "a list of ";
  for (std::size_t i = 0; i < choices.size(); ++i)
    allowed += (i == 0 ? "" : " and ") + (choices[i].is_string() ? choices[i].get<std::string>() : choices[i].dump());
  allowed += " for " + std::to_string(layers) + " layers";
  if (!list->is_array() || list->size() < layers) reader.fail(key, allowed);
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < layers; ++i) {
    const auto choice = std::find(choices.begin(), choices.end(), (*list)[i]);
    if (choice == choices.end()) reader.fail(key, allowed);
    chosen.push_back(static_cast<std::size_t>(choice - choices.begin()));
  }
  return chosen;
}

void read_tied(const ConfigReader& reader, DecoderConfig& config, bool fallback) {
  config.tied = reader.boolean("tie_word_embeddings", fallback);
}

void set_attention_bias(DecoderConfig& config, bool bias, bool also_out) {
  config.attend.q_bias = config.attend.k_bias = config.attend.v_bias = bias;
  config.attend.out_bias = bias && also_out;
}

void read_llama_like(const ConfigReader& reader, DecoderConfig& config, const LlamaKeys& keys) {
  read_sizes(reader, config, keys.sizes);
  read_rms_norm(reader, config, keys.eps);
  set_attention_bias(config, reader.boolean("attention_bias", keys.attention_bias));
  config.mlp.up_bias = config.mlp.down_bias = reader.boolean("mlp_bias", false);
  read_tied(reader, config, keys.tied);
  read_activation(reader, config, keys.activation_key, keys.activation);
  read_rope(reader, config, keys.rope);
}

void read_experts(const ConfigReader& reader, DecoderConfig& config, const ExpertKeys& keys) {
  auto& moe = config.moe;
  moe.experts = reader.integer(keys.experts, 1, kMaxExperts, keys.default_experts);
  moe.top_k = reader.integer(keys.top_k, 1, moe.experts, std::min(keys.default_top_k, moe.experts));
  moe.inner = reader.integer(keys.inner, 1, kMaxWidth);
  config.shape.expert_share = static_cast<double>(moe.top_k) / static_cast<double>(moe.experts);
}

void refuse_shared_keys(const ConfigReader& reader, bool causal) {
  if (reader.boolean("is_causal", causal) != causal) reader.fail("is_causal", causal ? "true" : "false");
  const auto *scaling = reader.find("rope_scaling"), *rope = reader.find("rope_parameters");
  if (scaling != nullptr && rope != nullptr && *scaling != *rope)
    reader.fail("rope_scaling", "null beside 'rope_parameters', which says otherwise");
  const auto* layers = reader.find("per_layer_config");
  if (layers != nullptr && !layers->empty()) reader.fail("per_layer_config", "null: all layers have the config's keys");
  for (const auto& names : kNamesOfOne) {
    const char* first = nullptr;
    for (const char* name : names) {
      if (reader.find(name) == nullptr) continue;
      if (first == nullptr) first = name;
      if (*reader.find(name) != *reader.find(first))
        reader.fail(name, std::string("what '") + first + "' beside it says: transformers takes either for both");
    }
  }
}

void set_sparse(DecoderConfig& config, std::int64_t first, std::int64_t step) {
  for (std::int64_t i = first; i < config.shape.layers; i += step)
    config.kinds[static_cast<std::size_t>(i)].sparse = true;
}

}  // namespace fp8::models::families
