// SPDX-License-Identifier: Apache-2.0
// The descendants of GPT: plain MLPs and layer norms; positions are learned, turned or biases.

#include "fp8/tools/models/families/families.h"

namespace fp8::models::families {
namespace {

void plain_mlp(DecoderConfig& config, const char* up, const char* down, bool bias) {
  config.mlp.gated = false;
  config.mlp.up_bias = config.mlp.down_bias = bias;
  config.names.up = up;
  config.names.down = down;
}

/// Bloom's and Falcon's names.
void name_as_bloom(DecoderNames& names) {
  names.words = "transformer.word_embeddings";
  names.layers = "transformer.h";
  names.norm = "transformer.ln_f";
  names.rotary = "transformer.rotary_emb";
  names.attention = "self_attention";
  names.qkv = "query_key_value";
  names.out = "dense";
}

/// GPT-2's and GPT-J's sizes and names.
void read_gpt_sizes(const ConfigReader& reader, DecoderConfig& config, std::int64_t default_context) {
  read_sizes(reader, config,
             {.hidden = "n_embd",
              .inner = "n_inner",
              .layers = "n_layer",
              .heads = "n_head",
              .kv_heads = "",
              .context = "n_positions",
              .head_dim = "",
              .default_context = default_context});
  auto& names = config.names;
  names.words = "transformer.wte";
  names.layers = "transformer.h";
  names.norm = "transformer.ln_f";
  names.before_attention = "ln_1";
  names.attention = "attn";
}

/// The key of two spellings that is there, else the second.
const char* either_key(const ConfigReader& reader, const char* first, const char* second) {
  return reader.find(first) != nullptr ? first : second;
}

/// h += attention(n) + mlp(n), one norm for both.
void one_norm(DecoderConfig& config) {
  config.parallel = true;
  config.names.before_mlp = "";
}

}  // namespace

void read_gpt2(const ConfigReader& reader, DecoderConfig& config) {
  read_gpt_sizes(reader, config, 1024);
  read_layer_norm(reader, config);
  read_activation(reader, config, "activation_function", "gelu_new");
  read_tied(reader, config, true);
  plain_mlp(config, "c_fc", "c_proj", /*bias=*/true);
  set_attention_bias(config, true);
  config.attend.layout = QkvLayout::stacked;
  config.attend.by_layer = reader.boolean("scale_attn_by_inverse_layer_idx", false);
  if (!reader.boolean("scale_attn_weights", true)) config.attend.scale = 1;
  config.transposed = true;
  auto& names = config.names;
  names.positions = "transformer.wpe";
  names.before_mlp = "ln_2";
  names.qkv = "c_attn";
  names.out = "c_proj";
}

void read_gpt_neox(const ConfigReader& reader, DecoderConfig& config) {
  read_sizes(reader, config, {.kv_heads = "", .head_dim = ""});
  read_layer_norm(reader, config, "layer_norm_eps");
  read_activation(reader, config, "hidden_act", "gelu");
  read_tied(reader, config);
  read_rope(reader, config,
            {.theta = reader.number("rotary_emb_base", 1, 1e15, 10000.0),
             .partial = reader.number("rotary_pct", 0, 1, 0.25),
             .takes_partial = true});
  plain_mlp(config, "dense_h_to_4h", "dense_4h_to_h", /*bias=*/true);
  set_attention_bias(config, reader.boolean("attention_bias", true));
  config.attend.layout = QkvLayout::per_head;
  config.parallel = reader.boolean("use_parallel_residual", true);
  auto& names = config.names;
  names.words = "gpt_neox.embed_in";
  names.layers = "gpt_neox.layers";
  names.norm = "gpt_neox.final_layer_norm";
  names.rotary = "gpt_neox.rotary_emb";
  names.head = "embed_out";
  names.attention = "attention";
  names.qkv = "query_key_value";
  names.out = "dense";
}

void read_gptj(const ConfigReader& reader, DecoderConfig& config) {
  read_gpt_sizes(reader, config, 2048);
  read_layer_norm(reader, config);
  read_activation(reader, config, "activation_function", "gelu_new");
  read_tied(reader, config);
  const bool whole = reader.is_null("rotary_dim");
  read_rope(reader, config,
            {.dims = whole ? config.attend.head_dim : reader.integer("rotary_dim", 2, config.attend.head_dim, 64)});
  config.attend.interleaved = true;
  plain_mlp(config, "fc_in", "fc_out", /*bias=*/true);
  one_norm(config);
  config.head_bias = true;
  config.names.rotary = "transformer.rotary_emb";
  config.names.out = "out_proj";
}

void read_opt(const ConfigReader& reader, DecoderConfig& config) {
  read_sizes(reader, config, {.inner = "ffn_dim", .kv_heads = "", .head_dim = ""});
  const bool affine = reader.boolean("layer_norm_elementwise_affine", true);
  config.norm = {.kind = NormSpec::Kind::layer, .eps = 1e-5, .weight = affine, .bias = affine};
  read_activation(reader, config, "activation_function", "relu");
  read_tied(reader, config, true);
  const bool bias = reader.boolean("enable_bias", true);
  plain_mlp(config, "fc1", "fc2", bias);
  set_attention_bias(config, bias);
  config.position_offset = 2;
  config.word_width = reader.integer("word_embed_proj_dim", 1, kMaxWidth, config.shape.hidden);
  auto& names = config.names;
  names.words = "model.decoder.embed_tokens";
  names.positions = "model.decoder.embed_positions";
  names.project_in = "model.decoder.project_in";
  names.project_out = "model.decoder.project_out";
  names.layers = "model.decoder.layers";
  names.norm = "model.decoder.final_layer_norm";
  names.before_attention = "self_attn_layer_norm";
  names.before_mlp = "final_layer_norm";
  names.out = "out_proj";
  names.mlp = "";
  const bool before = reader.boolean("do_layer_norm_before", true);
  if (!before || reader.boolean("_remove_final_layer_norm", false)) names.norm = "";
  if (before) return;
  config.norm_sums = true;
  std::swap(names.before_attention, names.after_attention);
  std::swap(names.before_mlp, names.after_mlp);
}

void read_bloom(const ConfigReader& reader, DecoderConfig& config) {
  const bool early = reader.find("hidden_size") == nullptr && reader.find("n_embed") != nullptr;
  read_sizes(reader, config,
             {.hidden = early ? "n_embed" : "hidden_size",
              .inner = "",
              .layers = either_key(reader, "n_layer", "num_hidden_layers"),
              .heads = either_key(reader, "n_head", "num_attention_heads"),
              .kv_heads = "",
              .context = "seq_length",
              .head_dim = ""});
  read_layer_norm(reader, config);
  config.mlp.activation = Activation::gelu_tanh;
  read_tied(reader, config, true);
  plain_mlp(config, "dense_h_to_4h", "dense_4h_to_h", /*bias=*/true);
  set_attention_bias(config, true);
  config.attend.layout = QkvLayout::per_head;
  config.attend.alibi_max = 8;
  config.residual_is_normed = reader.boolean("apply_residual_connection_post_layernorm", false);
  name_as_bloom(config.names);
  config.names.words_norm = "transformer.word_embeddings_layernorm";
}

void read_falcon(const ConfigReader& reader, DecoderConfig& config) {
  read_sizes(reader, config,
             {.inner = "ffn_hidden_size",
              .layers = either_key(reader, "n_layer", "num_hidden_layers"),
              .heads = either_key(reader, "n_head", "num_attention_heads"),
              .kv_heads = "",
              .head_dim = ""});
  read_layer_norm(reader, config);
  read_activation(reader, config, "activation", "gelu");
  read_tied(reader, config, true);
  const bool bias = reader.boolean("bias", false), later = reader.boolean("new_decoder_architecture", false);
  plain_mlp(config, "dense_h_to_4h", "dense_4h_to_h", bias);
  set_attention_bias(config, bias);
  name_as_bloom(config.names);
  auto& shape = config.shape;
  config.attend.layout = QkvLayout::per_head;
  if (later) {
    const char* key = either_key(reader, "n_head_kv", "num_kv_heads");
    shape.kv_heads = reader.integer(key, 1, kMaxHeads, shape.heads);
    if (shape.heads % shape.kv_heads != 0) reader.fail(key, "a divisor of the heads " + std::to_string(shape.heads));
  } else if (reader.boolean("multi_query", true)) {
    shape.kv_heads = 1;
  }
  if (reader.boolean("alibi", false)) {
    config.attend.alibi_max = 8;
    config.attend.alibi_bf16 = true;
    config.attend.alibi_scale = 1 / std::sqrt(static_cast<double>(config.attend.head_dim));
  } else {
    read_rope(reader, config);
  }
  config.parallel = later || reader.boolean("parallel_attn", true);
  const auto norms = reader.integer("num_ln_in_parallel_attn", 1, 2, later ? 2 : 1);
  if (later && norms == 2) {
    config.names.before_attention = "ln_attn";
    config.names.before_mlp = "ln_mlp";
  } else if (config.parallel) {
    config.names.before_mlp = "";
  }
}

void read_mpt(const ConfigReader& reader, DecoderConfig& config) {
  read_sizes(reader, config,
             {.hidden = "d_model",
              .inner = "",
              .layers = "n_layers",
              .heads = "n_heads",
              .kv_heads = "",
              .context = "max_seq_len",
              .head_dim = ""});
  read_layer_norm(reader, config);
  config.norm.bias = false;  // transformers drops them whatever no_bias says
  config.mlp.activation = Activation::gelu;
  read_tied(reader, config, true);
  plain_mlp(config, "up_proj", "down_proj", /*bias=*/false);
  const auto expansion = reader.integer("expansion_ratio", 1, 64, 4);
  if (expansion != 4) reader.fail("expansion_ratio", "4 (transformers takes no other)");
  static const io::Json nothing = io::Json::object();
  const bool has = reader.find("attn_config") != nullptr;
  const auto attention = has ? reader.object("attn_config") : reader.below("attn_config", nothing);
  const auto usual = config.attend.scale;
  config.attend.scale = attention.number("softmax_scale", 1e-6, kMaxNumber, usual);
  if (attention.find("clip_qkv") != nullptr) config.attend.clip = attention.number("clip_qkv", 1e-6, kMaxNumber);
  if (attention.boolean("qk_ln", false)) attention.fail("qk_ln", "false");
  if (attention.boolean("prefix_lm", false)) attention.fail("prefix_lm", "false");
  config.attend.alibi_max = attention.number("alibi_bias_max", 1, 64, 8);
  if (reader.find("logit_scale") != nullptr) config.logit_scale = reader.number("logit_scale", -kMaxNumber, kMaxNumber);
  config.attend.layout = QkvLayout::stacked;
  auto& names = config.names;
  names.words = "transformer.wte";
  names.layers = "transformer.blocks";
  names.norm = "transformer.norm_f";
  names.before_attention = "norm_1";
  names.before_mlp = "norm_2";
  names.attention = "attn";
  names.qkv = "Wqkv";
  names.out = "out_proj";
  names.mlp = "ffn.";
}

void read_phi(const ConfigReader& reader, DecoderConfig& config) {
  read_sizes(reader, config);
  read_layer_norm(reader, config, "layer_norm_eps");
  read_activation(reader, config, "hidden_act", "gelu_new");
  read_tied(reader, config);
  read_rope(reader, config, {.partial = 0.5, .takes_partial = true});
  plain_mlp(config, "fc1", "fc2", /*bias=*/true);
  set_attention_bias(config, true);
  one_norm(config);
  config.head_bias = true;
  config.names.norm = "model.final_layernorm";
  config.names.out = "dense";
  if (!reader.boolean("qk_layernorm", false)) return;
  config.attend.head_norm = HeadNorm::head;
  config.names.q_norm = "q_layernorm";
  config.names.k_norm = "k_layernorm";
}

void read_starcoder2(const ConfigReader& reader, DecoderConfig& config) {
  read_sizes(reader, config, {.default_context = 4096});
  read_layer_norm(reader, config, "norm_epsilon");
  read_activation(reader, config, "hidden_act", "gelu_pytorch_tanh");
  read_tied(reader, config, true);
  read_rope(reader, config);
  const bool bias = reader.boolean("use_bias", true);
  plain_mlp(config, "c_fc", "c_proj", bias);
  set_attention_bias(config, bias);
  read_window(reader, config);
}

void read_nemotron(const ConfigReader& reader, DecoderConfig& config) {
  read_sizes(reader, config, {.default_context = 4096});
  read_layer_norm(reader, config, "norm_eps");
  config.norm.plus_one = true;
  read_activation(reader, config, "hidden_act", "relu2");
  read_tied(reader, config);
  read_rope(reader, config, {.partial = 0.5, .takes_partial = true});
  plain_mlp(config, "up_proj", "down_proj", reader.boolean("mlp_bias", false));
  set_attention_bias(config, reader.boolean("attention_bias", false));
}

}  // namespace fp8::models::families
