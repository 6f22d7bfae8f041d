// SPDX-License-Identifier: Apache-2.0
// Encoders and decoders: T5 and BART.

#include "fp8/tools/models/families/families.h"

namespace fp8::models {
namespace {

using namespace families;  // NOLINT: what reads the keys of all families

/// "T5ForConditionalGeneration", or a base model, whose head is its word table -> answer; "T5EncoderModel" -> embed.
void read_task(const ConfigReader& reader, EncoderDecoderConfig& config, bool encoder_alone) {
  const std::string name = first_architecture(reader);
  const bool encoder = name.ends_with("EncoderModel");
  const bool answers = name.empty() || name.ends_with("ForConditionalGeneration") || name.ends_with("LMHeadModel") ||
                       name.ends_with("Model");
  if (encoder ? !encoder_alone : !answers)
    reader.fail("architectures", "a base model, or one for ConditionalGeneration" +
                                     std::string(encoder_alone ? ", or an EncoderModel" : ""));
  config.shape.task = encoder ? Task::embed : Task::answer;
  if (!encoder && !reader.boolean("is_encoder_decoder", true)) reader.fail("is_encoder_decoder", "true");
  if (reader.boolean("is_decoder", false)) reader.fail("is_decoder", "false");
}

/// The whole's shape, once the stacks' are known.
void read_shape(EncoderDecoderConfig& config) {
  auto& shape = config.shape;
  const auto &encoder = config.encoder.shape, &decoder = config.decoder.shape;
  const auto task = shape.task;
  shape = decoder;
  shape.task = task;
  shape.inner = std::max(encoder.inner, decoder.inner);
  shape.layers = encoder.layers + (task == Task::embed ? 0 : decoder.layers);
  config.encoder.causal = false;
  config.encoder.names.cross = config.encoder.names.before_cross = config.encoder.names.after_cross = "";
}

/// The values that T5's configs may leave out.
struct T5Defaults {
  std::int64_t inner = 2048;
  const char* feed_forward = "relu";
};

/// "relu", "gated-gelu": the second is GPT-2's approximation.
void read_feed_forward(const ConfigReader& reader, DecoderConfig& config, const char* fallback) {
  const auto word = reader.word(
      "feed_forward_proj",
      {"relu", "gelu", "gelu_new", "silu", "gated-relu", "gated-gelu", "gated-gelu_new", "gated-silu"}, fallback);
  const std::string gated = "gated-";
  config.mlp.gated = word.starts_with(gated);
  const auto kind = config.mlp.gated ? word.substr(gated.size()) : word;
  config.mlp.activation = kind == "relu"   ? Activation::relu
                          : kind == "silu" ? Activation::silu
                          : word == "gelu" ? Activation::gelu
                                           : Activation::gelu_tanh;
}

void read_t5_stack(const ConfigReader& reader, DecoderConfig& config, const std::string& stack, const char* layers,
                   const T5Defaults& defaults) {
  read_sizes(reader, config,
             {.hidden = "d_model",
              .inner = "d_ff",
              .layers = layers,
              .heads = "num_heads",
              .kv_heads = "",
              .context = "",
              .head_dim = "d_kv",
              .default_head_dim = 64,
              .default_context = kMaxPositions});
  config.shape.inner = config.mlp.inner = reader.integer("d_ff", 1, kMaxWidth, defaults.inner);
  read_rms_norm(reader, config, 1e-6, "layer_norm_epsilon");
  read_feed_forward(reader, config, defaults.feed_forward);
  config.attend.scale = 1;
  BucketSpec buckets;
  buckets.count = reader.integer("relative_attention_num_buckets", 4, 1 << 16, 32);
  buckets.reach = reader.integer("relative_attention_max_distance", buckets.count / 2 + 1, kMaxPositions, 128);
  config.buckets = buckets;
  auto& names = config.names;
  const std::string last = stack == "encoder" ? "layer.1." : "layer.2.";
  names.words = "shared", names.positions = names.words_norm = "";
  names.layers = stack + ".block", names.norm = stack + ".final_layer_norm";
  names.before_attention = "layer.0.layer_norm";
  names.attention = "layer.0.SelfAttention", names.q = "q", names.k = "k", names.v = "v", names.out = "o";
  names.before_cross = "layer.1.layer_norm", names.cross = "layer.1.EncDecAttention";
  names.before_mlp = last + "layer_norm", names.mlp = last + "DenseReluDense.";
  names.gate = "wi_0", names.up = config.mlp.gated ? "wi_1" : "wi", names.down = "wo";
}

void read_t5_like(const ConfigReader& reader, EncoderDecoderConfig& config, const T5Defaults& defaults) {
  read_task(reader, config, /*encoder_alone=*/true);
  read_t5_stack(reader, config.encoder, "encoder", "num_layers", defaults);
  read_t5_stack(reader, config.decoder, "decoder",
                reader.find("num_decoder_layers") != nullptr ? "num_decoder_layers" : "num_layers", defaults);
  // The key says whether hidden states are scaled, and the checkpoint whether the head is another one.
  if (reader.boolean("tie_word_embeddings", true))
    config.head_scale = 1 / std::sqrt(static_cast<double>(config.decoder.shape.hidden));
  config.decoder.tied = true;
  read_shape(config);
}

void read_t5(const ConfigReader& reader, EncoderDecoderConfig& config) { read_t5_like(reader, config, {}); }

/// Hidden states never are scaled.
void read_mt5(const ConfigReader& reader, EncoderDecoderConfig& config) {
  read_t5_like(reader, config, {.inner = 1024, .feed_forward = "gated-gelu"});
  config.head_scale = 1;
}

void read_bart_stack(const ConfigReader& reader, DecoderConfig& config, const std::string& stack) {
  read_sizes(reader, config,
             {.hidden = "d_model",
              .inner = stack + "_ffn_dim",
              .layers = stack + "_layers",
              .heads = stack + "_attention_heads",
              .kv_heads = "",
              .head_dim = "",
              .default_context = 1024});
  config.norm = {.kind = NormSpec::Kind::layer, .eps = 1e-5, .bias = true};
  read_activation(reader, config, "activation_function", "gelu");
  set_attention_bias(config, true);
  config.norm_sums = true;
  config.mlp.gated = false;
  config.mlp.up_bias = config.mlp.down_bias = true;
  config.position_offset = 2;
  if (reader.boolean("scale_embedding", false)) config.word_scale = std::sqrt(static_cast<double>(config.shape.hidden));
  auto& names = config.names;
  const std::string root = "model." + stack + ".";
  names.words = "model.shared";
  names.positions = root + "embed_positions", names.words_norm = root + "layernorm_embedding";
  names.layers = root + "layers", names.norm = "";
  names.before_attention = names.before_mlp = "";
  names.out = "out_proj", names.after_attention = "self_attn_layer_norm";
  names.cross = "encoder_attn", names.after_cross = "encoder_attn_layer_norm";
  names.mlp = "", names.up = "fc1", names.down = "fc2", names.after_mlp = "final_layer_norm";
}

void read_bart(const ConfigReader& reader, EncoderDecoderConfig& config) {
  read_task(reader, config, /*encoder_alone=*/false);
  for (const char* other : {"normalize_before", "add_final_layer_norm", "static_position_embeddings"})
    if (reader.boolean(other, false)) reader.fail(other, "false");
  if (!reader.boolean("normalize_embedding", true)) reader.fail("normalize_embedding", "true");
  read_bart_stack(reader, config.encoder, "encoder");
  read_bart_stack(reader, config.decoder, "decoder");
  read_tied(reader, config.decoder, true);
  if (!config.decoder.tied)
    reader.fail("tie_word_embeddings", "true (untied, encoder and decoder have tables of words of their own too)");
  config.logits_bias = "final_logits_bias";
  read_shape(config);
}

constexpr Seq2SeqFamily kSeq2Seq[] = {{"bart", "Bart", read_bart}, {"mt5", "MT5", read_mt5}, {"t5", "T5", read_t5}};

}  // namespace

std::span<const Seq2SeqFamily> seq2seq_families() { return kSeq2Seq; }

ModelFamily model_family(const Seq2SeqFamily& family) {
  return {.model_type = family.model_type,
          .read_config = [family](const ConfigReader& reader) -> std::unique_ptr<ModelConfig> {
            auto config = std::make_unique<EncoderDecoderConfig>();
            config->type = config->encoder.type = config->decoder.type = family.type;
            family.read(reader, *config);
            return config;
          },
          .make = make_encoder_decoder,
          .trainable = false};
}

}  // namespace fp8::models
