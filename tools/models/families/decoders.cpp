// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/families/decoders.h"

#include <memory>

#include "fp8/tools/models/decoder/decoder.h"
#include "fp8/tools/models/families/readers.h"

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

}  // namespace

std::span<const DecoderFamily> decoder_families() { return kFamilies; }

ModelFamily model_family(const DecoderFamily& family) {
  return {.model_type = family.model_type,
          .read_config = [family](const ConfigReader& reader) -> std::unique_ptr<ModelConfig> {
            auto config = std::make_unique<DecoderConfig>();
            config->type = family.type;
            config->head_type = family.head_type;
            family.read(reader, *config);
            return config;
          },
          .make = make_decoder,
          .trainable = family.trainable};
}

}  // namespace fp8::models
