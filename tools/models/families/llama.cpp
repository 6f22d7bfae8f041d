// SPDX-License-Identifier: Apache-2.0
// The descendants of Llama: gated MLPs, RMS norms and rotary embeddings in many places.

#include "fp8/tools/models/families/families.h"

namespace fp8::models::families {
namespace {

/// RMS norms whose weights are stored minus one, as Gemma's.
void store_minus_one(NormSpec& norm) { norm.plus_one = norm.wide = true; }

/// The norm of what is added, in the place of that of what is taken.
void norm_after_only(DecoderConfig& config) {
  auto& names = config.names;
  names.before_attention = names.before_mlp = "";
  names.after_attention = "post_attention_layernorm";
  names.after_mlp = "post_feedforward_layernorm";
}

void norm_heads(DecoderConfig& config, HeadNorm norm) { config.attend.head_norm = norm; }

bool every_nth_is_full(std::int64_t layer, std::int64_t n) { return n > 0 && (layer + 1) % n != 0; }

/// "use_sliding_window" and "max_window_layers": the first layers see all.
void read_qwen_windows(const ConfigReader& reader, DecoderConfig& config) {
  if (!reader.boolean("use_sliding_window", false)) return;
  const auto full = reader.integer("max_window_layers", 0, kMaxLayers, 28);
  read_layer_types(reader, config, 4096, [](std::int64_t layer, std::int64_t first) { return layer >= first; }, full);
}

/// Four norms a layer, caps (0 where the key is null; missing: the defaults), scale.
void read_gemma_layers(const ConfigReader& reader, DecoderConfig& config, double score_cap, double logit_cap) {
  auto& names = config.names;
  names.after_attention = "post_attention_layernorm";
  names.before_mlp = "pre_feedforward_layernorm";
  names.after_mlp = "post_feedforward_layernorm";
  config.attend.scale = 1 / std::sqrt(reader.number("query_pre_attn_scalar", 1e-6, kMaxNumber, 256));
  const auto cap = [&](const char* key, double usual) {
    if (reader.find(key) == nullptr) return reader.is_null(key) ? 0.0 : usual;
    return reader.number(key, 1e-6, kMaxNumber);
  };
  config.attend.soft_cap = cap("attn_logit_softcapping", score_cap);
  config.logit_cap = cap("final_logit_softcapping", logit_cap);
}

}  // namespace

void read_llama(const ConfigReader& reader, DecoderConfig& config) { read_llama_like(reader, config); }

void read_mistral(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config, {.sizes = {.default_context = 4096 * 32}});
  read_window(reader, config, 4096);
}

void read_qwen2(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config, {.sizes = {.default_context = 32768}});
  set_attention_bias(config, true, /*also_out=*/false);
  read_qwen_windows(reader, config);
}

void read_qwen3(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config, {.sizes = {.default_head_dim = 128, .default_context = 32768}});
  norm_heads(config, HeadNorm::head);
  read_qwen_windows(reader, config);
}

void read_phi3(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config, {.sizes = {.default_context = 4096}, .rope = {.takes_partial = true}, .eps = 1e-5});
  config.attend.layout = QkvLayout::stacked;
  config.names.qkv = "qkv_proj";
  config.names.gate_up = "gate_up_proj";
  read_window(reader, config);
}

void read_seed_oss(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config,
                  {.sizes = {.default_head_dim = 128, .default_context = 524288}, .attention_bias = true});
  config.attend.out_bias = reader.boolean("attention_out_bias", false);
}

void read_ernie4_5(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config,
                  {.sizes = {.default_head_dim = config.type == "Ernie4_5" ? 128 : 0, .default_context = 131072},
                   .rope = {.theta = 500000},
                   .eps = 1e-5,
                   .tied = true});
  const bool bias = reader.boolean("use_bias", false);
  set_attention_bias(config, bias);
  config.mlp.up_bias = config.mlp.down_bias = bias;
  config.attend.interleaved = true;
}

void read_hunyuan_dense(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config, {.eps = 1e-5});
  norm_heads(config, HeadNorm::head);
  config.attend.norm_after_rotary = true;
  config.names.q_norm = "query_layernorm";
  config.names.k_norm = "key_layernorm";
}

void read_olmo(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config);
  config.norm = {.kind = NormSpec::Kind::layer, .eps = 1e-5, .weight = false};
  if (reader.find("clip_qkv") != nullptr) config.attend.clip = reader.number("clip_qkv", 1e-6, kMaxNumber);
}

void read_olmo2(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config, {.eps = 1e-5});
  norm_after_only(config);
  config.norm.wide = config.attend.norm.wide = true;
  norm_heads(config, HeadNorm::whole);
}

void read_exaone4(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config, {.eps = 1e-5});
  norm_after_only(config);
  norm_heads(config, HeadNorm::head);
  if (reader.is_null("sliding_window")) return;
  const auto* pattern = reader.find("sliding_window_pattern");
  std::int64_t n = 4;
  if (pattern != nullptr && pattern->is_string())
    n = static_cast<std::int64_t>(pattern->get_ref<const std::string&>().size());  // "LLLG"
  else
    n = reader.integer("sliding_window_pattern", 0, kMaxLayers, 4);
  read_layer_types(reader, config, 4096, every_nth_is_full, n);
  for (auto& kind : config.kinds) kind.rope = kind.window > 0 ? 0 : -1;
}

void read_smollm3(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config, {.sizes = {.default_context = 32768}, .rope = {.theta = 2e6}, .tied = true});
  const auto turning = read_each_layer(reader, config, "no_rope_layers", {0, 1});
  const auto interval = reader.integer("no_rope_layer_interval", 1, kMaxLayers, 4);
  for (std::size_t i = 0; i < config.kinds.size(); ++i) {
    const bool turns = turning.has_value() ? (*turning)[i] == 1 : (static_cast<std::int64_t>(i) + 1) % interval != 0;
    config.kinds[i].rope = turns ? 0 : -1;
  }
  if (!reader.boolean("use_sliding_window", false)) return;
  read_layer_types(reader, config, 4096, [](std::int64_t, std::int64_t) { return false; });
}

void read_granite(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config);
  const auto number = [&](const char* key) { return reader.number(key, -kMaxNumber, kMaxNumber, 1.0); };
  config.word_scale = number("embedding_multiplier");
  config.residual_scale = number("residual_multiplier");
  config.attend.scale = number("attention_multiplier");
  config.logit_scale = 1 / reader.number("logits_scaling", 1e-6, kMaxNumber, 1.0);
}

void read_glm(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config,
                  {.sizes = {.default_head_dim = 128, .default_context = 131072},
                   .rope = {.partial = 0.5, .takes_partial = true},
                   .eps = 1.5625e-7,
                   .attention_bias = true});
  config.attend.out_bias = false;
  config.attend.interleaved = true;
  config.names.gate_up = "gate_up_proj";
}

void read_glm4(const ConfigReader& reader, DecoderConfig& config) {
  read_glm(reader, config);
  config.names.after_attention = "post_self_attn_layernorm";
  config.names.after_mlp = "post_mlp_layernorm";
}

void read_gemma(const ConfigReader& reader, DecoderConfig& config) {
  // "hidden_activation" came later and says the same of all published models; "hidden_act" alone is "gelu" there, and
  // means its tanh form.
  const bool later = reader.find("hidden_activation") != nullptr;
  read_llama_like(reader, config,
                  {.sizes = {.default_head_dim = 256, .default_context = 8192},
                   .activation = "gelu_pytorch_tanh",
                   .activation_key = later ? "hidden_activation" : "hidden_act",
                   .tied = true});
  if (reader.boolean("use_bidirectional_attention", false)) reader.fail("use_bidirectional_attention", "false");
  if (!later && config.mlp.activation == Activation::gelu) config.mlp.activation = Activation::gelu_tanh;
  store_minus_one(config.norm);
  store_minus_one(config.attend.norm);
  config.word_scale = std::sqrt(static_cast<double>(config.shape.hidden));
}

void read_gemma2(const ConfigReader& reader, DecoderConfig& config) {
  read_gemma(reader, config);
  read_gemma_layers(reader, config, 50, 30);
  read_layer_types(reader, config, 4096, [](std::int64_t layer, std::int64_t) { return layer % 2 == 0; });
}

void read_gemma3(const ConfigReader& reader, DecoderConfig& config) {
  read_gemma(reader, config);
  read_gemma_layers(reader, config, 0, 0);
  norm_heads(config, HeadNorm::head);
  const auto pattern = reader.integer("sliding_window_pattern", 1, kMaxLayers, 6);
  read_layer_types(reader, config, 4096, every_nth_is_full, pattern);
  read_rope(reader, config, {.theta = 1e6});
  // Sliding layers have a rotary embedding of their own, which is not stretched.
  const auto* ropes = reader.find("rope_parameters");
  if (ropes != nullptr && ropes->is_object() && ropes->contains("full_attention")) {
    const auto all = reader.object("rope_parameters");
    config.ropes = {read_rope_object(all.object("full_attention"), config, {.theta = 1e6}),
                    read_rope_object(all.object("sliding_attention"), config, {})};
  } else {
    const double theta = reader.number("rope_local_base_freq", 1, 1e15, 10000.0);
    config.ropes.push_back({.theta = theta, .dims = config.attend.head_dim});
  }
  for (auto& kind : config.kinds) kind.rope = kind.window > 0 ? 1 : 0;
}

void read_cohere(const ConfigReader& reader, DecoderConfig& config) {
  read_sizes(reader, config, {.default_context = 8192});
  config.norm = {.kind = NormSpec::Kind::layer, .eps = reader.number("layer_norm_eps", 0, 1, 1e-5)};
  config.attend.norm = config.norm;
  set_attention_bias(config, reader.boolean("attention_bias", false));
  read_tied(reader, config, true);
  read_activation(reader, config);
  read_rope(reader, config, {.theta = config.type == "Cohere" ? 500000.0 : 10000.0});
  config.attend.interleaved = true;
  config.parallel = true;
  config.names.before_mlp = "";
  config.logit_scale = reader.number("logit_scale", -kMaxNumber, kMaxNumber, 0.0625);
  if (reader.boolean("use_qk_norm", false)) norm_heads(config, HeadNorm::per_head);
}

void read_cohere2(const ConfigReader& reader, DecoderConfig& config) {
  read_cohere(reader, config);
  const auto pattern = reader.integer("sliding_window_pattern", 1, kMaxLayers, 4);
  read_layer_types(reader, config, 4096, every_nth_is_full, pattern);
  for (auto& kind : config.kinds) kind.rope = kind.window > 0 ? 0 : -1;
}

void read_stablelm(const ConfigReader& reader, DecoderConfig& config) {
  read_sizes(reader, config, {.default_context = 4096});
  read_layer_norm(reader, config, "layer_norm_eps");
  set_attention_bias(config, reader.boolean("use_qkv_bias", false), /*also_out=*/false);
  read_tied(reader, config);
  read_activation(reader, config);
  read_rope(reader, config, {.partial = 0.25, .takes_partial = true});
  config.parallel = reader.boolean("use_parallel_residual", false);
  if (config.parallel) config.names.before_mlp = "";
  if (!reader.boolean("qk_layernorm", false)) return;
  norm_heads(config, HeadNorm::modules);
  config.attend.norm.bias = false;
  config.names.q_norm = "q_layernorm";
  config.names.k_norm = "k_layernorm";
}

void read_mllama(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config, {.eps = 1e-5});
  config.extra_words = 8;  // rows for images
  for (const auto layer :
       reader.indices("cross_attention_layers", config.kinds.size()).value_or(std::vector<std::size_t>()))
    config.kinds[layer].absent = true;
}

}  // namespace fp8::models::families
