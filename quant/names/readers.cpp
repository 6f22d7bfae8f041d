// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/names/readers.h"

namespace fp8::quant {
namespace {

/// The one place of these versions.
struct ReaderVersion {
  CheckpointReader reader;
  std::string_view version;
};
constexpr ReaderVersion kVersions[] = {{CheckpointReader::transformers, "5.23.0"},
                                       {CheckpointReader::vllm, "0.32.0"},
                                       {CheckpointReader::neural_compressor, "3.9"}};

/// Types with a row in the table of families whose classes come with their checkpoints, as remote code: not in
/// transformers' CONFIG_MAPPING.
constexpr std::string_view kNotInTransformers =
    "NemotronH_Omni_Reasoning_V3 RefinedWeb RefinedWebModel aquila baichuan bailing_moe chatglm decilm deepseek exaone "
    "internlm internlm2 orion xlm-prophetnet xverse yi";

/// transformers' classes of attention in a tower whose forward takes "past_key_values".
constexpr std::string_view kCachedTowers = "audioflamingo3 deepseek_ocr2 dots3_note llama4";

/// Types without num_key_value_heads in transformers' class of their config.
constexpr std::string_view kNoKvHeads = "bart bloom falcon gpt2 gpt_neox gptj mpt mt5 opt t5";

/// Types with modules that transformers makes float32 (_keep_in_fp32_modules_strict, token2wav.float()), where a
/// product with bfloat16 follows.
constexpr std::string_view kMixesFloats = "granite_speech5_ctc inkling2 inkling2_text qwen2_5_omni";

/// vLLM's registry (model_executor/models/registry.py), without draft models and without those that it runs through
/// transformers' classes.
constexpr std::string_view kVllmClasses =
    "AXK1ForCausalLM AfmoeForCausalLM ApertusForCausalLM AriaForConditionalGeneration "
    "AudioFlamingo3ForConditionalGeneration BagelForConditionalGeneration BailingMoeForCausalLM "
    "BailingMoeV2ForCausalLM BailingMoeV2_5ForCausalLM BailingMoeV3ForCausalLM BailingMoeV3VLForConditionalGeneration "
    "BeeForConditionalGeneration BertForMaskedLM BertForSequenceClassification BertForTokenClassification BertModel "
    "BertSpladeSparseEmbeddingModel BgeM3EmbeddingModel Blip2ForConditionalGeneration BloomForCausalLM CLIPModel "
    "ChatGLMForConditionalGeneration ChatGLMModel ClefOmniForJointSchema Cohere2ForCausalLM Cohere2MoeForCausalLM "
    "Cohere2VisionForConditionalGeneration CohereAsrForConditionalGeneration CohereCompassForConditionalGeneration "
    "CohereForCausalLM ColBERTJinaRobertaModel ColBERTLfm2Model ColBERTModernBertModel ColModernVBertForRetrieval "
    "ColPaliForRetrieval ColQwen3 ColQwen3_5 Cosmos3EdgeForConditionalGeneration Cosmos3ForConditionalGeneration "
    "DbrxForCausalLM DeciLMForCausalLM DeepseekForCausalLM DeepseekOCR2ForCausalLM DeepseekOCRForCausalLM "
    "DeepseekV2ForCausalLM DeepseekV32ForCausalLM DeepseekV3BidirectionalModel DeepseekV3ForCausalLM "
    "DeepseekV41ForCausalLM DeepseekV4ForCausalLM DeepseekV4ForConditionalGeneration DeepseekVLV2ForCausalLM "
    "DiffusionGemmaForBlockDiffusion Dots3NoteForCausalLM DotsOCRForCausalLM Eagle2_5_VLForConditionalGeneration "
    "EmbeddingGemma2Model Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM Ernie4_5_VLMoeForConditionalGeneration "
    "Exaone4ForCausalLM Exaone4_5_ForConditionalGeneration ExaoneForCausalLM ExaoneMoEForCausalLM ExaoneMoeForCausalLM "
    "FalconForCausalLM FalconH1ForCausalLM FalconMambaForCausalLM FireRedASR2ForConditionalGeneration "
    "FunASRForConditionalGeneration FunAudioChatForConditionalGeneration GLM4VForCausalLM "
    "GPT2ForSequenceClassification GPT2LMHeadModel GPTJForCausalLM Gemma2ForCausalLM Gemma2Model Gemma3ForCausalLM "
    "Gemma3ForConditionalGeneration Gemma3TextModel Gemma3nForCausalLM Gemma3nForConditionalGeneration "
    "Gemma4ForCausalLM Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration GemmaForCausalLM "
    "Glm4ForCausalLM Glm4MoeForCausalLM Glm4MoeLiteForCausalLM Glm4vForConditionalGeneration "
    "Glm4vMoeForConditionalGeneration Glm5NextForCausalLM Glm5NextForConditionalGeneration "
    "GlmAsrForConditionalGeneration GlmMoeDsaForCausalLM GlmOcrForConditionalGeneration GptOssForCausalLM "
    "Granite4VisionForConditionalGeneration GraniteForCausalLM GraniteMoeForCausalLM GraniteMoeHybridForCausalLM "
    "GraniteMoeSWAForCausalLM GraniteMoeSharedForCausalLM GraniteSWAForCausalLM GraniteSpeechForConditionalGeneration "
    "GraniteSpeechPlusForConditionalGeneration GteModel GteNewForSequenceClassification GteNewModel H2OVLChatModel "
    "HCXVisionV2ForCausalLM HF_ColBERT HYV3ForCausalLM HYV4ForCausalLM HfMoondream HrmTextForCausalLM "
    "HyperCLOVAXForCausalLM IQuestCoderForCausalLM IQuestLoopCoderForCausalLM Idefics3ForConditionalGeneration "
    "InklingForCausalLM InklingForConditionalGeneration InternLM2ForCausalLM InternLM2ForRewardModel "
    "InternLM3ForCausalLM InternS1ForConditionalGeneration InternS1ProForConditionalGeneration "
    "InternS2MobiusForConditionalGeneration InternS2PreviewForConditionalGeneration InternVLChatModel "
    "InternVLForConditionalGeneration IsaacForConditionalGeneration JambaForCausalLM JambaForSequenceClassification "
    "JinaEmbeddingsV5Model JinaForRanking JinaVLForRanking K2HorizonForCausalLM KananaVForConditionalGeneration "
    "KeyeForConditionalGeneration KeyeVL1_5ForConditionalGeneration KimiK25ForConditionalGeneration "
    "KimiK3ForConditionalGeneration KimiLinearForCausalLM KimiVLForConditionalGeneration LLaMAForCausalLM "
    "LagunaForCausalLM Lfm2ForCausalLM Lfm2MoeForCausalLM Lfm2VlForConditionalGeneration "
    "LightOnOCRForConditionalGeneration Llama4ForCausalLM Llama4ForConditionalGeneration "
    "LlamaBidirectionalForSequenceClassification LlamaBidirectionalModel LlamaForCausalLM LlamaModel "
    "LlamaNemotronVLForSequenceClassification LlamaNemotronVLModel Llama_Nemotron_Nano_VL "
    "LlavaForConditionalGeneration LlavaNextForConditionalGeneration LlavaNextVideoForConditionalGeneration "
    "LlavaOnevision2ForConditionalGeneration LlavaOnevisionForConditionalGeneration LongcatFlashForCausalLM "
    "LongcatFlashNgramForCausalLM Mamba2ForCausalLM MambaForCausalLM MiDashengLMModel MiMoForCausalLM "
    "MiMoV2FlashForCausalLM MiMoV2ForCausalLM MiMoV2OmniForCausalLM MiniCPM3ForCausalLM MiniCPMForCausalLM MiniCPMO "
    "MiniCPMV MiniCPMV4_6ForConditionalGeneration MiniCPMV4_7ForConditionalGeneration MiniMaxM2ForCausalLM "
    "MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration Ministral3ForCausalLM "
    "Mistral3ForConditionalGeneration MistralForCausalLM MistralLarge3ForCausalLM MistralModel MixtralForCausalLM "
    "ModernBertForSequenceClassification ModernBertForTokenClassification ModernBertModel "
    "Molmo2ForConditionalGeneration MolmoForCausalLM Moondream3ForCausalLM MoonshotKimiaForCausalLM MossAudioModel "
    "MossTranscribeDiarizeForConditionalGeneration MuseGlimmerForCausalLM MuseGlimmerForConditionalGeneration NVLM_D "
    "NemotronForCausalLM NemotronHForCausalLM NemotronHPuzzleForCausalLM NemotronH_Nano_Omni_Reasoning_V3 "
    "NemotronH_Nano_VL_V2 NemotronH_Omni_Reasoning_V3 NemotronH_Super_Omni_Reasoning_V3 "
    "NemotronParseForConditionalGeneration NomicBertModel OPTForCausalLM OlmoHybridForCausalLM OlmoeForCausalLM "
    "OpenAIPrivacyFilterForTokenClassification OpenCUAForConditionalGeneration OpenPanguVLForConditionalGeneration "
    "OpenVLAForActionPrediction OpsColQwen3Model OrionForCausalLM Ovis Ovis2_5 Ovis2_6ForCausalLM "
    "Ovis2_6_MoeForCausalLM PaddleOCRVLForConditionalGeneration PaliGemmaForConditionalGeneration "
    "PanguEmbeddedForCausalLM PanguProMoEV2ForCausalLM PanguUltraMoEForCausalLM Param2MoEForCausalLM Phi3ForCausalLM "
    "Phi3VForCausalLM Phi4ForCausalLMV Phi4MMForCausalLM PhiMoEForCausalLM PixtralForConditionalGeneration "
    "Plamo3ForCausalLM QianfanOCRForConditionalGeneration Qwen2AudioForConditionalGeneration Qwen2ForCausalLM "
    "Qwen2ForProcessRewardModel Qwen2ForRewardModel Qwen2Model Qwen2MoeForCausalLM Qwen2VLForConditionalGeneration "
    "Qwen2_5OmniForConditionalGeneration Qwen2_5OmniModel Qwen2_5_VLForConditionalGeneration "
    "Qwen3ASRForConditionalGeneration Qwen3ASRForcedAlignerForTokenClassification Qwen3ASRRealtimeGeneration "
    "Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM Qwen3OmniMoeForConditionalGeneration "
    "Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration Qwen3VLNemotronEmbedModel Qwen3_5ForCausalLM "
    "Qwen3_5ForConditionalGeneration "
    "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration "
    "RForConditionalGeneration Rnj1ForCausalLM RobertaForMaskedLM RobertaForSequenceClassification "
    "RobertaForTokenClassification RobertaModel SarvamMLAForCausalLM SarvamMoEForCausalLM SiglipModel "
    "SkyworkR1VChatModel SmolVLMForConditionalGeneration SolarForCausalLM StableLmForCausalLM Step1ForCausalLM "
    "Step3TextForCausalLM Step3VLForConditionalGeneration Step3p5ForCausalLM Step3p7ForConditionalGeneration "
    "StepVLForConditionalGeneration TeleChat2ForCausalLM TeleChat3ForCausalLM TeleFLMForCausalLM UltravoxModel "
    "UnlimitedOCRForCausalLM VoxtralForConditionalGeneration VoxtralRealtimeGeneration "
    "VoyageQwen3BidirectionalEmbedModel WhisperForConditionalGeneration XLMRobertaForSequenceClassification "
    "XLMRobertaForTokenClassification XLMRobertaModel Zamba2ForCausalLM";

/// Endings of classes that vLLM makes of a generating one: the body with a pooler or a scoring head.
constexpr std::string_view kConverted[] = {"ForSequenceClassification", "ForTokenClassification", "Model"};
constexpr std::string_view kGenerating[] = {"ForCausalLM", "ForConditionalGeneration"};

bool holds(std::string_view list, const std::string& word) {
  return word.find(' ') == std::string::npos &&
         (" " + std::string(list) + " ").find(" " + word + " ") != std::string::npos;
}

bool is_vllm_class(const std::string& name) {
  if (holds(kVllmClasses, name)) return true;
  return std::ranges::any_of(kConverted, [&](std::string_view ending) {
    if (!name.ends_with(ending)) return false;
    const std::string body = name.substr(0, name.size() - ending.size());
    return std::ranges::any_of(kGenerating,
                               [&](std::string_view g) { return holds(kVllmClasses, body + std::string(g)); });
  });
}

/// The classes that config.json names.
std::vector<std::string> classes_of(const io::Json& config) {
  std::vector<std::string> names;
  const auto classes = config.is_object() ? config.find("architectures") : config.end();
  if (classes == config.end() || !classes->is_array()) return names;
  for (const auto& name : *classes)
    if (name.is_string()) names.push_back(name.get<std::string>());
  return names;
}

}  // namespace

std::string_view version_of(CheckpointReader reader) {
  return std::ranges::find(kVersions, reader, &ReaderVersion::reader)->version;
}

std::string rules_of(CheckpointReader reader) { return io::message("{} {}", name_of(reader), version_of(reader)); }

std::string release_of(CheckpointReader reader) {
  const std::string_view version = version_of(reader);
  const auto last = version.rfind('.');
  return io::message("{} {}", name_of(reader), version.substr(0, version.find('.') == last ? version.npos : last));
}

bool has_cached_towers(const ModelNames& names) { return holds(kCachedTowers, names.model_type()); }

bool mixes_floats(const ModelNames& names) { return holds(kMixesFloats, names.model_type()); }

bool lacks_kv_heads(const ModelNames& names, const io::Json& config) {
  return holds(kNoKvHeads, names.model_type()) && !config.contains("num_key_value_heads");
}

std::string why_not_known(CheckpointReader reader, const ModelNames& names, const io::Json& config) {
  if (!names.known()) return "no row of the table of families is of model_type " + io::in_quotes(names.model_type());
  if (reader == CheckpointReader::transformers && holds(kNotInTransformers, names.model_type()))
    return io::message("{} has no class of model_type {}", release_of(reader), io::in_quotes(names.model_type()));
  if (reader != CheckpointReader::vllm) return "";
  const auto classes = classes_of(config);
  if (std::ranges::any_of(classes, is_vllm_class)) return "";
  return classes.empty() ? "config.json names no class (key 'architectures')"
                         : io::message("{} has no class {} of its own", release_of(reader), io::printable(classes[0]));
}

}  // namespace fp8::quant
