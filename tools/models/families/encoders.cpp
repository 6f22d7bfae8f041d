// SPDX-License-Identifier: Apache-2.0
// Encoders: BERT and what descends from it.
#include <cctype>

#include "fp8/tools/models/families/families.h"

namespace fp8::models {
namespace {

using namespace families;  // NOLINT: what reads the keys of all families

/// "BertForMaskedLM" -> masked, by the first of "architectures"; a base model, or none, -> embed.
void read_task(const ConfigReader& reader, DecoderConfig& config) {
  const std::string name = first_architecture(reader);
  auto& task = config.shape.task;
  const auto ends = [&](const char* end) { return name.ends_with(end); };
  if (ends("ForMaskedLM") || (ends("ForPreTraining") && config.type == "Bert"))
    task = Task::masked;
  else if (ends("ForSequenceClassification"))
    task = Task::classify;
  else if (name.empty() || ends("Model"))
    task = Task::embed;
  else
    reader.fail("architectures", "a base model, or one for MaskedLM or SequenceClassification");
  if (task != Task::classify) return;
  const auto* labels = reader.find("id2label");
  if (labels != nullptr && !labels->is_object()) reader.fail("id2label", "an object");
  const auto count = labels != nullptr ? static_cast<std::int64_t>(labels->size()) : 2;
  config.shape.classes = reader.integer("num_labels", 1, kMaxVocabulary, std::max<std::int64_t>(1, count));
}

/// Reads what all have: layer norms of sums, biases, learned positions, a plain MLP, tied words.
void read_common(const ConfigReader& reader, DecoderConfig& config, const SizeKeys& sizes, const char* activation) {
  read_sizes(reader, config, sizes);
  read_layer_norm(reader, config, "layer_norm_eps", 1e-12);
  read_activation(reader, config, activation, "gelu");
  reader.word("position_embedding_type", {"absolute"}, "absolute");
  if (reader.boolean("is_decoder", false)) reader.fail("is_decoder", "false");
  read_task(reader, config);
  set_attention_bias(config, true);
  config.causal = false;
  config.norm_sums = true;
  read_tied(reader, config, true);
  config.tied = config.tied && config.shape.task == Task::masked;
  config.head_bias = true;
  config.mlp.gated = false;
  config.mlp.up_bias = config.mlp.down_bias = true;
  config.last.norm = config.norm;
  config.last.activation = config.mlp.activation;
  auto& names = config.names;
  names.norm = names.before_attention = names.before_mlp = names.mlp = "";
}

/// Of masked tokens: dense and norm, then the head.
void set_masked_head(DecoderConfig& config, const char* head, const char* dense, const char* norm) {
  config.names.head = head, config.names.head_dense = dense, config.names.head_norm = norm;
}

/// Of a whole text: its first token through dense, then the head.
void set_pooled_head(DecoderConfig& config, const char* head, const char* dense, Activation activation) {
  config.names.head = head, config.names.head_dense = dense;
  config.last.pool = HeadSpec::Pool::first;
  config.last.activation = activation;
}

Activation activation_of(const ConfigReader& reader, const char* key, const char* fallback) {
  const auto word = reader.word(key, {"gelu", "silu", "relu", "tanh"}, fallback);
  return word == "silu"   ? Activation::silu
         : word == "relu" ? Activation::relu
         : word == "tanh" ? Activation::tanh
                          : Activation::gelu;
}

/// Names of BERT and of those that keep them, below `root`.
void name_as_bert(DecoderNames& names, const std::string& root) {
  names.words = root + ".embeddings.word_embeddings";
  names.positions = root + ".embeddings.position_embeddings";
  names.types = root + ".embeddings.token_type_embeddings";
  names.words_norm = root + ".embeddings.LayerNorm";
  names.layers = root + ".encoder.layer";
  names.attention = "attention";
  names.q = "self.query", names.k = "self.key", names.v = "self.value", names.out = "output.dense";
  names.after_attention = "attention.output.LayerNorm";
  names.up = "intermediate.dense", names.down = "output.dense";
  names.after_mlp = "output.LayerNorm";
}

const SizeKeys kBertSizes = {.kv_heads = "", .head_dim = "", .default_context = 512};

void read_bert(const ConfigReader& reader, DecoderConfig& config) {
  read_common(reader, config, kBertSizes, "hidden_act");
  auto& names = config.names;
  name_as_bert(names, "bert");
  config.token_types = reader.integer("type_vocab_size", 1, kMaxVocabulary, 2);
  if (config.shape.task == Task::masked) {
    set_masked_head(config, "cls.predictions", "cls.predictions.transform.dense",
                    "cls.predictions.transform.LayerNorm");
    names.own_head = "cls.predictions.decoder";
  } else {
    set_pooled_head(config, "classifier", "bert.pooler.dense", Activation::tanh);
  }
}

void read_roberta(const ConfigReader& reader, DecoderConfig& config) {
  read_common(reader, config, kBertSizes, "hidden_act");
  auto& names = config.names;
  name_as_bert(names, "roberta");
  config.token_types = reader.integer("type_vocab_size", 1, kMaxVocabulary, 2);
  // Rows of the table up to that of padding are no positions.
  config.position_offset = reader.integer("pad_token_id", 0, config.shape.vocab - 1, 1) + 1;
  if (config.shape.context <= config.position_offset)
    reader.fail("max_position_embeddings", "more than " + std::to_string(config.position_offset));
  config.shape.context -= config.position_offset;
  if (config.shape.task == Task::masked) {
    set_masked_head(config, "lm_head", "lm_head.dense", "lm_head.layer_norm");
    names.own_head = "lm_head.decoder";
    config.last.activation = Activation::gelu;
  } else {
    set_pooled_head(config, "classifier.out_proj", "classifier.dense", Activation::tanh);
  }
}

void read_distilbert(const ConfigReader& reader, DecoderConfig& config) {
  read_common(reader, config,
              {.hidden = "dim",
               .inner = "hidden_dim",
               .layers = "n_layers",
               .heads = "n_heads",
               .kv_heads = "",
               .head_dim = "",
               .default_context = 512},
              "activation");
  config.norm.eps = config.last.norm.eps = 1e-12;
  auto& names = config.names;
  names.words = "distilbert.embeddings.word_embeddings";
  names.positions = "distilbert.embeddings.position_embeddings";
  names.words_norm = "distilbert.embeddings.LayerNorm";
  names.layers = "distilbert.transformer.layer";
  names.attention = "attention";
  names.q = "q_lin", names.k = "k_lin", names.v = "v_lin", names.out = "out_lin";
  names.after_attention = "sa_layer_norm";
  names.mlp = "ffn.", names.up = "lin1", names.down = "lin2";
  names.after_mlp = "output_layer_norm";
  if (config.shape.task == Task::masked)
    set_masked_head(config, "vocab_projector", "vocab_transform", "vocab_layer_norm");
  else
    set_pooled_head(config, "classifier", "pre_classifier", Activation::relu);
}

void read_electra(const ConfigReader& reader, DecoderConfig& config) {
  read_common(reader, config, kBertSizes, "hidden_act");
  auto& names = config.names;
  name_as_bert(names, "electra");
  names.project_in = "electra.embeddings_project";
  config.token_types = reader.integer("type_vocab_size", 1, kMaxVocabulary, 2);
  config.word_width = reader.integer("embedding_size", 1, kMaxWidth, 128);
  config.projection = WordProjection::last;
  if (config.shape.task == Task::masked) {
    set_masked_head(config, "generator_lm_head", "generator_predictions.dense", "generator_predictions.LayerNorm");
    config.last.width = config.word_width;
    config.last.activation = Activation::gelu;
  } else {
    set_pooled_head(config, "classifier.out_proj", "classifier.dense", Activation::gelu);
  }
}

void name_as_modernbert(DecoderNames& names) {
  names.words = "model.embeddings.tok_embeddings";
  names.words_norm = "model.embeddings.norm";
  names.norm = "model.final_norm";
  names.before_attention = "attn_norm", names.before_mlp = "mlp_norm";
  names.attention = "attn", names.qkv = "Wqkv", names.out = "Wo";
  names.mlp = "mlp.", names.gate_up = "Wi", names.down = "Wo";
  names.head_dense = "head.dense", names.head_norm = "head.norm";
}

/// Local layers have a rotary embedding of their own.
void read_modernbert_layers(const ConfigReader& reader, DecoderConfig& config) {
  const auto half = reader.integer("local_attention", 2, kMaxPositions, 128) / 2;
  const auto reach = reader.integer("sliding_window", 1, kMaxPositions, half) + 1;  // another name of the half
  if (reader.find("rope_scaling") != nullptr)
    reader.fail("rope_scaling", "null: 'rope_parameters' says it of each kind of layer");
  const auto every = reader.integer("global_attn_every_n_layers", 1, kMaxLayers, 3);
  const auto types = read_each_layer(reader, config, "layer_types", {"full_attention", "sliding_attention"});
  RopeSpec global{.theta = reader.number("global_rope_theta", 1, 1e15, 160000.0), .dims = config.attend.head_dim};
  RopeSpec local{.theta = reader.number("local_rope_theta", 1, 1e15, 10000.0), .dims = config.attend.head_dim};
  if (reader.find("rope_parameters") != nullptr) {
    const auto all = reader.object("rope_parameters");
    global = read_rope_object(all.object("full_attention"), config, {.theta = 160000});
    local = read_rope_object(all.object("sliding_attention"), config, {});
  }
  config.ropes = {global, local};
  for (std::size_t i = 0; i < config.kinds.size(); ++i) {
    const bool slides = types.has_value() ? (*types)[i] == 1 : static_cast<std::int64_t>(i) % every != 0;
    config.kinds[i] = {.window = slides ? reach : 0, .rope = slides ? 1 : 0};
  }
}

void read_modernbert(const ConfigReader& reader, DecoderConfig& config) {
  read_common(reader, config, {.kv_heads = "", .head_dim = "", .default_context = 8192}, "hidden_activation");
  config.norm = {.kind = NormSpec::Kind::layer,
                 .eps = reader.number("norm_eps", 0, 1, 1e-5),
                 .bias = reader.boolean("norm_bias", false)};
  config.norm_sums = false;
  config.first_norm = false;
  set_attention_bias(config, reader.boolean("attention_bias", false));
  config.attend.layout = QkvLayout::stacked;
  config.mlp.gated = true;
  config.mlp.up_bias = config.mlp.down_bias = reader.boolean("mlp_bias", false);
  config.last.norm = config.norm;
  config.last.dense_bias = reader.boolean("classifier_bias", false);
  config.last.activation = activation_of(reader, "classifier_activation", "gelu");
  name_as_modernbert(config.names);
  config.names.head = config.shape.task == Task::masked ? "decoder" : "classifier";
  if (config.shape.task == Task::masked) config.head_bias = reader.boolean("decoder_bias", true);
  if (config.shape.task == Task::classify)
    config.last.pool = reader.word("classifier_pooling", {"cls", "mean"}, "cls") == "cls" ? HeadSpec::Pool::first
                                                                                          : HeadSpec::Pool::mean;
  read_modernbert_layers(reader, config);
}

/// "c2p|p2c", or a list.
std::vector<std::string> position_attention(const ConfigReader& reader) {
  const auto* types = reader.find("pos_att_type");
  std::vector<std::string> words;
  if (types == nullptr) return words;
  const auto add = [&](const std::string& word) {
    if (word != "c2p" && word != "p2c") reader.fail("pos_att_type", R"("c2p", "p2c", "c2p|p2c" or a list of them)");
    words.push_back(word);
  };
  if (types->is_array()) {
    for (const auto& item : *types) add(item.is_string() ? item.get<std::string>() : "");
    return words;
  }
  std::string word;
  for (const char c : types->is_string() ? types->get<std::string>() : "?") {
    if (c == '|')
      add(std::exchange(word, ""));
    else if (c != ' ')
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  add(word);
  return words;
}

/// Scores are divided by sqrt(head_dim (1 + what is added to them)), with and without a table of distances.
void read_distances(const ConfigReader& reader, DecoderConfig& config) {
  const auto words = position_attention(reader);
  const auto has = [&](const char* word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  DistanceSpec spec{.c2p = has("c2p"), .p2c = has("p2c")};
  const int added = (spec.c2p ? 1 : 0) + (spec.p2c ? 1 : 0);
  config.attend.scale = 1 / std::sqrt(static_cast<double>(config.attend.head_dim * (1 + added)));
  spec.own_projections = !reader.boolean("share_att_key", false);
  spec.normed = reader.word("norm_rel_ebd", {"none", "layer_norm"}, "none") == "layer_norm";
  const auto context = config.shape.context;
  const auto reach = reader.integer("max_relative_positions", -1, kMaxPositions, -1);
  spec.reach = reach < 1 ? context : reach;
  spec.buckets = std::max<std::int64_t>(0, reader.integer("position_buckets", -1, kMaxPositions, -1));
  // Beyond half of the buckets distances share one by the logarithm of (reach - 1) / half.
  if (const auto half = spec.buckets / 2;
      spec.buckets > 0 && (half < 1 || (half >= spec.reach - 1 && half < context - 1)))
    reader.fail("position_buckets",
                "-1 or 2 and more, half of it below max_relative_positions - 1 = " + std::to_string(spec.reach - 1));
  spec.span = spec.buckets > 0 ? spec.buckets : spec.reach;
  if (reader.boolean("relative_attention", false) && added > 0) config.distances = spec;
}

void read_convolution(const ConfigReader& reader, DecoderConfig& config) {
  ConvolutionSpec spec{.kernel = reader.integer("conv_kernel_size", 0, 1025, 0),
                       .groups = reader.integer("conv_groups", 1, kMaxWidth, 1),
                       .activation = activation_of(reader, "conv_act", "tanh")};
  if (spec.kernel == 0) return;
  if (spec.kernel % 2 == 0) reader.fail("conv_kernel_size", "0, or odd: as many tokens before as after");
  if (config.shape.hidden % spec.groups != 0)
    reader.fail("conv_groups", "a divisor of hidden_size " + std::to_string(config.shape.hidden));
  config.convolution = spec;
}

void name_as_deberta(DecoderNames& names) {
  name_as_bert(names, "deberta");
  names.project_in = "deberta.embeddings.embed_proj";
  names.q = "self.query_proj", names.k = "self.key_proj", names.v = "self.value_proj";
  names.distances = "deberta.encoder.rel_embeddings";
  names.distance_norm = "deberta.encoder.LayerNorm";
  names.distance_key = "self.pos_key_proj", names.distance_query = "self.pos_query_proj";
  names.convolution = "deberta.encoder.conv";
}

void read_deberta_head(const ConfigReader& reader, DecoderConfig& config) {
  auto& names = config.names;
  const auto hidden = config.shape.hidden;
  const bool old = reader.boolean("legacy", true);
  const auto pooled = reader.integer("pooler_hidden_size", 1, kMaxWidth, hidden);
  const auto activation = activation_of(reader, "pooler_hidden_act", "gelu");
  const std::string of_hidden = "hidden_size " + std::to_string(hidden);
  if (config.shape.task != Task::masked) {
    if (config.shape.task == Task::classify && pooled != hidden) reader.fail("pooler_hidden_size", of_hidden);
    return set_pooled_head(config, "classifier", "pooler.dense", activation);
  }
  const std::string root = old ? "cls.predictions.transform." : "lm_predictions.lm_head.";
  names.head = old ? "cls.predictions" : "lm_predictions.lm_head";
  if (old) names.own_head = "cls.predictions.decoder";
  names.head_dense = root + "dense";
  names.head_norm = root + "LayerNorm";
  config.last.width = old ? config.word_width : 0;
  if (old) return;
  config.tied = true;  // whatever tie_word_embeddings says
  if (config.word_width != hidden) reader.fail("embedding_size", of_hidden + " where legacy is false");
}

void read_deberta_v2(const ConfigReader& reader, DecoderConfig& config) {
  SizeKeys sizes = kBertSizes;
  sizes.head_dim = "attention_head_size";
  read_common(reader, config, sizes, "hidden_act");
  const auto& shape = config.shape;
  if (config.attend.head_dim * shape.heads != shape.hidden)
    reader.fail("attention_head_size", std::to_string(shape.hidden / shape.heads) + " (hidden_size / heads)");
  config.norm.eps = config.last.norm.eps = reader.number("layer_norm_eps", 0, 1, 1e-7);
  name_as_deberta(config.names);
  if (!reader.boolean("position_biased_input", true)) config.names.positions.clear();
  config.token_types = reader.integer("type_vocab_size", 0, kMaxVocabulary, 0);
  config.word_width = reader.integer("embedding_size", 1, kMaxWidth, shape.hidden);
  config.projection = WordProjection::summed;
  read_distances(reader, config);
  read_convolution(reader, config);
  read_deberta_head(reader, config);
}

constexpr DecoderFamily kEncoders[] = {{"bert", "Bert", read_bert, false, nullptr},
                                       {"deberta-v2", "DebertaV2", read_deberta_v2, false, nullptr},
                                       {"distilbert", "DistilBert", read_distilbert, false, nullptr},
                                       {"electra", "Electra", read_electra, false, nullptr},
                                       {"modernbert", "ModernBert", read_modernbert, false, nullptr},
                                       {"roberta", "Roberta", read_roberta, false, nullptr},
                                       {"xlm-roberta", "XLMRoberta", read_roberta, false, nullptr}};

}  // namespace

std::span<const DecoderFamily> encoder_families() { return kEncoders; }

}  // namespace fp8::models
