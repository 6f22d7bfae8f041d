// SPDX-License-Identifier: Apache-2.0
// config.json of each family of decoders (decoders.h has the table).
#pragma once
#include "fp8/tools/models/base/config_reader.h"
#include "fp8/tools/models/decoder/description.h"

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
