// SPDX-License-Identifier: Apache-2.0
// The families of decoders: a row for each model_type, with what reads its config.json. Of readers there is one per
// line of descent; a family that combines known parts is a row and a reader of a few lines.
#pragma once

#include "fp8/tools/models/decoder/decoder.h"
#include "fp8/tools/models/families/keys.h"

namespace fp8::models {

struct DecoderFamily {
  const char* model_type;
  const char* type;  ///< first part of class names
  /// Fills the config, whose `type` is set. Throws io::Error.
  void (*read)(const ConfigReader& reader, DecoderConfig& config);
  bool trainable = true;                  ///< hpu::mixture_of_experts has no derivative
  const char* head_type = "ForCausalLM";  ///< null: as the config's task has it
};

std::span<const DecoderFamily> decoder_families();
/// Those of encoders. What a checkpoint's first architecture is for decides its task: masked tokens, a class of the
/// whole text, or hidden states alone.
std::span<const DecoderFamily> encoder_families();

/// The row for the registry.
ModelFamily model_family(const DecoderFamily& family);

// Models of text and images: their language part, on text alone. config.json has it in "text_config" or, in older
// files, at its top; DecoderConfig::fit finds what its tensors begin with. What belongs to the image stays where it is.

/// The config whose tie_word_embeddings counts: the whole model's or its part's. Where it is missing it is what the
/// class in transformers has.
enum class TiedBy : std::uint8_t { whole, part, either, nobody };

struct LanguagePart {
  const char* model_type;
  const char* type;       ///< first part of class names
  const char* text_type;  ///< model_type of the part where it does not say
  TiedBy tied_by;
  bool tied = false;  ///< the whole model's where it does not say
};

std::span<const LanguagePart> language_parts();

/// The row for the registry.
ModelFamily model_family(const LanguagePart& family);

// The families that answer a source text: a row for each model_type.

struct Seq2SeqFamily {
  const char* model_type;
  const char* type;  ///< first part of class names
  /// Fills the config, whose `type`s are set. Throws io::Error.
  void (*read)(const ConfigReader& reader, EncoderDecoderConfig& config);
};

std::span<const Seq2SeqFamily> seq2seq_families();

/// The row for the registry.
ModelFamily model_family(const Seq2SeqFamily& family);

}  // namespace fp8::models

// config.json of each family of decoders (families.h has the table).

namespace fp8::models::families {

using Reader = void(const ConfigReader& reader, DecoderConfig& config);

// llama.cpp: gated MLPs, RMS norms, rotary embeddings
Reader read_llama, read_mistral, read_qwen2, read_qwen3, read_phi3, read_seed_oss, read_ernie4_5, read_hunyuan_dense;
Reader read_olmo, read_olmo2, read_exaone4, read_smollm3, read_granite, read_glm, read_glm4;
Reader read_gemma, read_gemma2, read_gemma3, read_cohere, read_cohere2, read_stablelm, read_mllama;
// gpt.cpp: plain MLPs, layer norms
Reader read_gpt2, read_gpt_neox, read_gptj, read_opt, read_bloom, read_falcon, read_mpt, read_phi, read_starcoder2,
    read_nemotron;
// moe.cpp: mixtures of experts
Reader read_mixtral, read_qwen2_moe, read_qwen3_moe, read_olmoe, read_granitemoe, read_phimoe, read_llama4,
    read_glm4_moe, read_gpt_oss, read_hunyuan_moe, read_ernie4_5_moe, read_minimax_m2, read_deepseek_v2,
    read_deepseek_v3;

}  // namespace fp8::models::families
