// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/names/expert_families.h"

#include <string>

namespace fp8::quant {
namespace {

/// As transformers 5 names them in memory, and as most files do that stack them.
constexpr ExpertSpelling kGateUp{.gate_up = "experts.gate_up_proj", .down = "experts.down_proj"};
/// The same tensors, of models whose files call the projections by numbers.
constexpr ExpertSpelling kNumbered{.gate_up = "experts.gate_up_proj",
                                   .down = "experts.down_proj",
                                   .gate_proj = "w1",
                                   .up_proj = "w3",
                                   .down_proj = "w2"};
/// And the module around them otherwise.
constexpr ExpertSpelling kMixtral{.gate_up = "experts.gate_up_proj",
                                  .down = "experts.down_proj",
                                  .gate_proj = "w1",
                                  .up_proj = "w3",
                                  .down_proj = "w2",
                                  .parent = "mlp",
                                  .written_parent = "block_sparse_moe"};
constexpr ExpertSpelling kPhi{.gate_up = "experts.gate_up_proj",
                              .down = "experts.down_proj",
                              .gate_proj = "w1",
                              .up_proj = "w3",
                              .down_proj = "w2",
                              .parent = "mlp",
                              .written_parent = "block_sparse_moe",
                              .router = "router",
                              .written_router = "gate"};
constexpr ExpertSpelling kGranite{.gate_up = "block_sparse_moe.input_linear",
                                  .down = "block_sparse_moe.output_linear",
                                  .experts = "block_sparse_moe.experts"};
constexpr ExpertSpelling kAria{.gate_up = "experts.fc1", .down = "experts.fc2", .axes = ExpertAxes::in_out};
constexpr ExpertSpelling kStep{
    .gate = "moe.gate_proj", .up = "moe.up_proj", .down = "moe.down_proj", .experts = "moe.experts"};
constexpr ExpertSpelling kTransposed{
    .gate_up = "experts.gate_up_proj", .down = "experts.down_proj", .axes = ExpertAxes::in_out};
constexpr ExpertSpelling kEitherWay{
    .gate_up = "experts.gate_up_proj", .down = "experts.down_proj", .axes = ExpertAxes::by_shapes};
constexpr ExpertSpelling kNoGate{.up = "experts.up_proj", .down = "experts.down_proj"};

constexpr std::string_view kVllmOnly =
    "vLLM reads those of this family so; transformers has no names for single ones, and reads them with --experts keep "
    "only";

constexpr ExpertFamily kFamilies[] = {
    // Files hold an expert's weights one by one; stacks are what transformers has in memory, and writes where asked to.
    {.model_types = "afmoe axk1 axk2 bailing_hybrid beam cohere2_moe deepseek_ocr2 deepseek_v2 deepseek_v3 "
                    "deepseek_v32 dots1 dots3_note "
                    "dots3_note_text ernie4_5_moe exaone_moe flex_olmo flint glm4_moe glm4_moe_lite glm4v_moe "
                    "glm4v_moe_text glm5_next glm5_next_text "
                    "glm_moe_dsa hunyuan_v1_moe hy_v3 jamba kimi_k25 kolibri1 laguna longcat_flash mellum "
                    "mimo_v2_flash olmoe qwen2_moe "
                    "qwen3_5_moe qwen3_5_moe_text qwen3_moe qwen3_next qwen3_omni_moe qwen3_omni_moe_text "
                    "qwen3_omni_moe_thinker qwen4_exp "
                    "qwen4_exp_text solar_open unlimited_ocr",
     .spellings = {{kGateUp}}},
    {.model_types = "deepseek_v4 lfm2_moe minimax_m3_vl mistral_large4 mistral_large4_text",
     .spellings = {{kNumbered}}},
    {.model_types = "kimi_linear minimax minimax_m2 mixtral", .spellings = {{kMixtral}}},
    {.model_types = "phimoe", .spellings = {{kPhi}}},
    {.model_types = "nemotron_h", .spellings = {{kNoGate}}},
    // Files stack them.
    {.model_types = "llama4 llama4_text", .spellings = {{kTransposed}}, .listed = true},
    {.model_types = "qwen3_vl_moe qwen3_vl_moe_text", .spellings = {{kEitherWay}}, .note = kVllmOnly},
    {.model_types = "granitemoe granitemoehybrid granitemoeshared",
     .spellings = {{kGranite, kGateUp}},
     .note = kVllmOnly},
    {.model_types = "gemma4 gemma4_text", .spellings = {{kGateUp}}, .note = kVllmOnly},
    {.model_types = "aria aria_text", .spellings = {{kAria, kTransposed}}, .note = kVllmOnly},
    {.model_types = "step3p7", .spellings = {{kStep}}, .note = kVllmOnly},
    {.model_types = "ernie4_5_vl_moe ernie4_5_vl_moe_text",
     .keep = "readers take no stacks of experts for text and for images",
     .unread = "transformers fails to join the experts for text and for images of any quantized file (5.23: "
               "core_model_loading.py:688); vLLM reads them one by one"},
    {.model_types = "gpt_oss openai_privacy_filter",
     .keep = "experts with biases, gate and up by turns: readers take them stacked only"},
    {.model_types = "dbrx diffusion_gemma diffusion_gemma_text granitemoe_swa "
                    "inkling2 inkling2_text inkling_mm_model "
                    "inkling_text jetmoe mistral4 muse_spark nemo_speechlm zaya",
     .keep = "readers take the experts of this family stacked only"},
};

const ExpertFamily* find(const io::Json& config) {
  const auto type = config.is_object() ? config.find("model_type") : config.end();
  if (!config.is_object() || type == config.end() || !type->is_string()) return nullptr;
  const std::string wanted = " " + type->get<std::string>() + " ";
  if (wanted.find(' ', 1) + 1 != wanted.size()) return nullptr;
  for (const auto& family : kFamilies) {
    if ((" " + std::string(family.model_types) + " ").find(wanted) != std::string::npos) return &family;
  }
  return nullptr;
}

}  // namespace

std::span<const ExpertFamily> expert_families() { return kFamilies; }

const ExpertFamily* expert_family(const io::Json& config) {
  if (const auto* family = find(config); family != nullptr || !config.is_object()) return family;
  for (const auto& [key, part] : config.items()) {
    if (const auto* family = key.ends_with("_config") ? expert_family(part) : nullptr; family != nullptr) return family;
  }
  return nullptr;
}

}  // namespace fp8::quant
