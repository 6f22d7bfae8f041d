// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/families/families.h"

namespace fp8::models {
namespace {

using namespace families;  // NOLINT: the readers, whose names begin alike

constexpr bool kFrozen = false;

// clang-format off
constexpr DecoderFamily kFamilies[] = {
    {"llama",            "Llama",           read_llama},
    {"mistral",          "Mistral",         read_mistral},
    {"mixtral",          "Mixtral",         read_mixtral, kFrozen},
    {"bloom",            "Bloom",           read_bloom},
    {"cohere",           "Cohere",          read_cohere},
    {"cohere2",          "Cohere2",         read_cohere2},
    {"deepseek_v2",      "DeepseekV2",      read_deepseek_v2, kFrozen},
    {"deepseek_v3",      "DeepseekV3",      read_deepseek_v3, kFrozen},
    {"ernie4_5",         "Ernie4_5",        read_ernie4_5},
    {"ernie4_5_moe",     "Ernie4_5_Moe",    read_ernie4_5_moe, kFrozen},
    {"exaone4",          "Exaone4",         read_exaone4},
    {"falcon",           "Falcon",          read_falcon},
    {"gemma",            "Gemma",           read_gemma},
    {"gemma2",           "Gemma2",          read_gemma2},
    {"gemma3_text",      "Gemma3",          read_gemma3},
    {"glm",              "Glm",             read_glm},
    {"glm4",             "Glm4",            read_glm4},
    {"glm4_moe",         "Glm4Moe",         read_glm4_moe, kFrozen},
    {"gpt2",             "GPT2",            read_gpt2, true, "LMHeadModel"},
    {"gpt_neox",         "GPTNeoX",         read_gpt_neox},
    {"gpt_oss",          "GptOss",          read_gpt_oss, kFrozen},
    {"gptj",             "GPTJ",            read_gptj},
    {"granite",          "Granite",         read_granite},
    {"granitemoe",       "GraniteMoe",      read_granitemoe, kFrozen},
    {"hunyuan_v1_dense", "HunYuanDenseV1",  read_hunyuan_dense},
    {"hunyuan_v1_moe",   "HunYuanMoEV1",    read_hunyuan_moe, kFrozen},
    {"llama4_text",      "Llama4",          read_llama4, kFrozen},
    {"minimax_m2",       "MiniMaxM2",       read_minimax_m2, kFrozen},
    {"mpt",              "Mpt",             read_mpt},
    {"nemotron",         "Nemotron",        read_nemotron},
    {"olmo",             "Olmo",            read_olmo},
    {"olmo2",            "Olmo2",           read_olmo2},
    {"olmoe",            "Olmoe",           read_olmoe, kFrozen},
    {"opt",              "OPT",             read_opt},
    {"phi",              "Phi",             read_phi},
    {"phi3",             "Phi3",            read_phi3},
    {"phimoe",           "Phimoe",          read_phimoe, kFrozen},
    {"qwen2",            "Qwen2",           read_qwen2},
    {"qwen2_moe",        "Qwen2Moe",        read_qwen2_moe, kFrozen},
    {"qwen3",            "Qwen3",           read_qwen3},
    {"qwen3_moe",        "Qwen3Moe",        read_qwen3_moe, kFrozen},
    {"seed_oss",         "SeedOss",         read_seed_oss},
    {"smollm3",          "SmolLM3",         read_smollm3},
    {"stablelm",         "StableLm",        read_stablelm},
    {"starcoder2",       "Starcoder2",      read_starcoder2},
};
// clang-format on

const char* head_type(Task task) {
  return task == Task::masked ? "ForMaskedLM" : task == Task::classify ? "ForSequenceClassification" : "Model";
}

}  // namespace

std::span<const DecoderFamily> decoder_families() { return kFamilies; }

ModelFamily model_family(const DecoderFamily& family) {
  return {.model_type = family.model_type,
          .read_config = [family](const ConfigReader& reader) -> std::unique_ptr<ModelConfig> {
            auto config = std::make_unique<DecoderConfig>();
            config->type = family.type;
            family.read(reader, *config);
            config->head_type = family.head_type != nullptr ? family.head_type : head_type(config->shape.task);
            return config;
          },
          .make = make_decoder,
          .trainable = family.trainable};
}

namespace {

using namespace families;  // NOLINT: the readers, whose names begin alike

// clang-format off
constexpr LanguagePart kParts[] = {
    {"gemma3",     "Gemma3",     "gemma3_text",       TiedBy::whole, true},
    {"llama4",     "Llama4",     "llama4_text",       TiedBy::part},
    {"llava",      "Llava",      "llama",             TiedBy::either},
    {"llava_next", "LlavaNext",  "llama",             TiedBy::whole},
    {"mistral3",   "Mistral3",   "mistral",           TiedBy::whole, true},
    {"mllama",     "Mllama",     "mllama_text_model", TiedBy::nobody},
    {"qwen2_5_vl", "Qwen2_5_VL", "qwen2_5_vl_text",   TiedBy::either},
    {"qwen2_vl",   "Qwen2VL",    "qwen2_vl_text",     TiedBy::either},
};

/// Files leave out what is as in transformers' classes, sizes too.
struct TextPart {
  const char* model_type;
  Reader* read;
  const char* defaults;
};
constexpr TextPart kTextParts[] = {
    {"gemma3_text", read_gemma3,
     R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
         "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072})"},
    {"llama", read_llama,
     R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32})"},
    {"llama4_text", read_llama4,
     R"({"vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "num_hidden_layers": 48,
         "num_attention_heads": 40, "num_key_value_heads": 8})"},
    {"mistral", read_mistral,
     R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8})"},
    {"mllama_text_model", read_mllama,
     R"({"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 40,
         "num_attention_heads": 32, "num_key_value_heads": 8, "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
         "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000})"},
    {"qwen2", read_qwen2,
     R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 32})"},
    {"qwen2_5_vl_text", read_qwen2,
     R"({"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
         "num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1000000})"},
    {"qwen2_vl_text", read_qwen2,
     R"({"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
         "num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1000000})"},
};
// clang-format on

const TextPart& text_part(const ConfigReader& reader, const std::string& model_type) {
  std::vector<std::string> allowed;
  for (const auto& part : kTextParts) {
    if (model_type == part.model_type) return part;
    allowed.emplace_back(part.model_type);
  }
  reader.fail("model_type", io::joined(allowed));
}

std::unique_ptr<ModelConfig> read(const LanguagePart& family, const ConfigReader& reader) {
  auto config = std::make_unique<DecoderConfig>();
  config->type = family.type;
  config->head_type = "ForConditionalGeneration";
  config->of_images = true;
  const io::Json* found = reader.find("text_config");
  const std::string key = found != nullptr ? "text_config" : "";
  if (found != nullptr && !found->is_object()) reader.fail("text_config", "an object");
  io::Json text = found != nullptr ? *found : reader.json();
  if (found == nullptr) text["model_type"] = family.text_type;
  const auto place = [&] { return key.empty() ? ConfigReader(text, reader.name()) : reader.below(key, text); };
  const auto* model_type = place().find("model_type");
  if (model_type != nullptr && !model_type->is_string()) place().fail("model_type", "a string");
  const auto& part = text_part(place(), model_type != nullptr ? model_type->get<std::string>() : family.text_type);
  const io::Json defaults = io::Json::parse(part.defaults);
  for (const auto& [name, value] : defaults.items())
    if (!text.contains(name)) text[name] = value;
  const auto language = place();
  part.read(language, *config);
  refuse_shared_keys(language, config->causal);
  const bool whole = reader.boolean("tie_word_embeddings", family.tied);
  switch (family.tied_by) {
    case TiedBy::whole: config->tied = whole; break;
    case TiedBy::part: break;
    case TiedBy::either: config->tied = config->tied || whole; break;
    case TiedBy::nobody: config->tied = false;
  }
  config->shape.bos = language.token_ids("bos_token_id");
  config->shape.eos = language.token_ids("eos_token_id");
  config->dtype = language.dtype();
  return config;
}

}  // namespace

std::span<const LanguagePart> language_parts() { return kParts; }

ModelFamily model_family(const LanguagePart& family) {
  return {.model_type = family.model_type,
          .read_config = [family](const ConfigReader& reader) { return read(family, reader); },
          .make = make_decoder,
          .trainable = std::string_view(family.model_type) != "llama4",
          .of_images = true};
}

}  // namespace fp8::models
