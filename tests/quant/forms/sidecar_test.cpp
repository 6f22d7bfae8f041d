// SPDX-License-Identifier: Apache-2.0
// fp8.json: what is written, read back, and refused.

#include "fp8/quant/forms/folder.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/version.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::quant {
namespace {

TEST(Sidecar, HoldsWhatTheFormatHasNoWordsFor) {
  Plan plan{.skipped = {{"lm_head", "kept"}}, .scale_method = "MAXABS_HW", .measurements = "0123456789abcdef"};
  Scheme s;
  s.dialect = recipes::Dialect::gaudi2;
  s.convention = Convention::inc;
  const auto json = make_sidecar(plan, s);
  EXPECT_EQ(json, (io::Json{{"tool", "fp8 " FP8_VERSION},
                            {"dialect", "gaudi2"},
                            {"convention", "inc"},
                            {"scale_method", "MAXABS_HW"},
                            {"hp_dtype", "bf16"},
                            {"activation_method",
                             {{"granularity", "PTS"},
                              {"scale_value_type", "MAXABS"},
                              {"rounding_method", "IDENTITY"},
                              {"backoff", 1.0},
                              {"params", io::Json::object()}}},
                            {"measurements", "0123456789abcdef"},
                            {"skipped", {{"lm_head", "kept"}}}}));
  const Scheme back = read_sidecar(json, "fp8.json");
  EXPECT_EQ(back.dialect, s.dialect);
  EXPECT_EQ(back.convention, s.convention);
  EXPECT_EQ(back.hp, s.hp);
  EXPECT_TRUE(back.activation_method.same_kind(s.activation_method));
  s.activations = ActivationScaling::static_tensor;
  EXPECT_FALSE(make_sidecar(plan, s).contains("activation_method"));
}

TEST(Sidecar, OwnConventionHasNoHpDtype) {
  const auto json = make_sidecar({}, {});
  EXPECT_TRUE(json["hp_dtype"].is_null());
  EXPECT_TRUE(json["measurements"].is_null());
  EXPECT_EQ(json["skipped"], io::Json::object());
  EXPECT_EQ(read_sidecar(json, "x").convention, Convention::own);
}

TEST(Sidecar, BadOnesAreNamed) {
  const auto fails = [](const io::Json& json, const std::vector<std::string>& words) {
    EXPECT_TRUE(throws_with(words, [&] { read_sidecar(json, "d/fp8.json"); })) << json;
  };
  fails(io::Json::array(), {"d/fp8.json", "'dialect'", "a string"});
  fails({{"dialect", 3}}, {"d/fp8.json", "'dialect'"});
  fails({{"dialect", "gaudi9"}, {"convention", "own"}},
        {"d/fp8.json: key 'dialect'", "\"gaudi9\"", "gaudi2, gaudi3, ocp"});
  fails({{"dialect", "ocp"}}, {"'convention'"});
  fails({{"dialect", "ocp"}, {"convention", "other"}}, {"'convention'", "\"other\"", "own, inc"});
  fails({{"dialect", "ocp"}, {"convention", "inc"}, {"hp_dtype", nullptr}}, {"'hp_dtype'"});
  fails({{"dialect", "ocp"}, {"convention", "inc"}, {"hp_dtype", "f64"}}, {"'hp_dtype'", "\"f64\"", "f32, bf16, f16"});
}

// What people hand over in place of a model folder is named, with what to do.

void write_file(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

using ModelSource = InFolder;

TEST_F(ModelSource, AHubsNameGetsTheCommandThatDownloadsIt) {
  EXPECT_REFUSED(require_model_folder("Qwen/Qwen3-0.6B"), "Qwen/Qwen3-0.6B: expected a model folder, found nothing",
                 "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B");
  for (const char* path : {"nothing", "/a/b", "a/b/c", "./a", "../a", "a/", "a b/c"})
    EXPECT_EQ(advice_on_name(path), "") << path;
  EXPECT_EQ(advice_on_name(folder / "gone"), "") << "its parent is there: a mistyped path";
}

TEST_F(ModelSource, AFolderWithAConfigIsAModel) {
  write_file(folder / "m/config.json", "{}");
  write_file(folder / "m/adapter_config.json", "{}");  // left by a merge
  EXPECT_NO_THROW(require_model_folder(folder / "m"));
}

TEST_F(ModelSource, AdaptersAreToBeMergedFirst) {
  write_file(folder / "lora/adapter_config.json", R"({"base_model_name_or_path": "org/base", "peft_type": "LORA"})");
  EXPECT_REFUSED(require_model_folder(folder / "lora"),
                 "lora: expected a model folder, found a LoRA adapter of org/base",
                 "merge_and_unload().save_pretrained('lora-merged')");
  write_file(folder / "lora/adapter_config.json", "broken");
  EXPECT_REFUSED(require_model_folder(folder / "lora"), "found a LoRA adapter;", "merge");
}

TEST_F(ModelSource, OtherProgramsFilesAreNamed) {
  write_file(folder / "gguf/model-Q4_K_M.gguf", "GGUF...");
  write_file(folder / "plain", "GGUF...");
  write_file(folder / "alone/model.safetensors", "");
  write_file(folder / "whole/model.safetensors", "");
  write_file(folder / "whole/config.json", "{}");
  write_file(folder / "model.pth", "");
  write_file(folder / "empty/README.md", "");
  const std::vector<std::pair<fs::path, std::vector<std::string>>> cases = {
      {folder / "gguf", {"model-Q4_K_M.gguf", "found GGUF", "original checkpoint"}},
      {folder / "gguf/model-Q4_K_M.gguf", {"found GGUF"}},
      {folder / "plain", {"found GGUF"}},
      {folder / "alone/model.safetensors", {"found a file without config.json beside it"}},
      {folder / "whole/model.safetensors", {"found a file; take its folder, " + (folder / "whole").string()}},
      {folder / "model.pth", {"save_pretrained()"}},
      {folder / "empty", {"found no config.json"}},
  };
  for (const auto& [path, words] : cases)
    EXPECT_TRUE(throws_with(words, [&, &path = path] { require_model_folder(path); })) << path;
}

TEST_F(ModelSource, PipelinesOfDiffusersAreRefusedWithTheReason) {
  write_file(folder / "p/model_index.json", R"({"_class_name": "FluxPipeline"})");
  EXPECT_REFUSED(require_model_folder(folder / "p"), "found a diffusers pipeline (FluxPipeline)",
                 "none of its readers");
  write_file(folder / "t/config.json", R"({"_class_name": "FluxTransformer2DModel"})");
  write_file(folder / "t/diffusion_pytorch_model.safetensors", "");
  EXPECT_REFUSED(require_model_folder(folder / "t"), "found a diffusers model (FluxTransformer2DModel)");
}

TEST_F(ModelSource, PackedCheckpointsAreToBeMadeAnew) {
  for (const char* method : {"gptq", "awq", "bitsandbytes"})
    EXPECT_THAT(advice_on_method({{"quant_method", method}}), HasSubstr(std::string("packed by ") + method));
  EXPECT_THAT(advice_on_method({{"quant_method", "mxfp4"}}), HasSubstr("MXFP4 already"));
  for (const io::Json& other :
       {io::Json{{"quant_method", "fp8"}}, io::Json{{"quant_method", 3}}, io::Json::object(), io::Json(nullptr)})
    EXPECT_EQ(advice_on_method(other), "");
}

// Lists of modules in high precision: what each reader takes an entry for, as its source says, and what is written.

const CheckpointForm &kTensors = compressed_tensors_form(), &kFp8 = fp8_form(), &kModelOpt = modelopt_form(),
                     &kInc = inc_form();

/// Whether some reader of the form takes the module `name` as kept because of the entry.
bool matches(const CheckpointForm& form, const std::string& entry, const std::string& name) {
  return IgnoreList(form, {entry}).entry_for(name) != nullptr;
}

// compressed-tensors 0.20, utils/match.py: target == name, or re.match(target[3:], name)
TEST(IgnoreEntries, CompressedTensors) {
  EXPECT_TRUE(matches(kTensors, "lm_head", "lm_head"));
  EXPECT_FALSE(matches(kTensors, "lm_head", "model.lm_head"));
  EXPECT_FALSE(matches(kTensors, "mlp.gate", "model.layers.0.mlp.gate"));
  EXPECT_TRUE(matches(kTensors, "re:.*mlp.gate", "model.layers.0.mlp.gate_proj"));  // open at the end
  EXPECT_FALSE(matches(kTensors, "re:.*mlp.gate$", "model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(matches(kTensors, "re:mlp.gate$", "model.layers.0.mlp.gate"));  // bound at the start
  EXPECT_TRUE(matches(kTensors, "re:(.*\\.)?visual\\..*", "visual.blocks.0.mlp"));
  EXPECT_TRUE(matches(kTensors, "re:a|b", "bc"));  // alternatives are bound too
  EXPECT_FALSE(matches(kTensors, "re:a|b", "cb"));
}

// transformers 5.23, quantizers_utils.should_convert_module; vLLM 0.32, quant_utils.is_layer_skipped
TEST(IgnoreEntries, Fp8) {
  EXPECT_TRUE(matches(kFp8, "layers.1", "layers.1.attn"));
  EXPECT_FALSE(matches(kFp8, "layers.1", "layers.11.attn"));
  EXPECT_FALSE(matches(kFp8, "mlp.gate", "mlp.gate_proj"));
  EXPECT_TRUE(matches(kFp8, "layers.*", "layers.11.attn"));
  EXPECT_TRUE(matches(kFp8, "fc1", "model.decoder.layers.23.fc1"));
  EXPECT_TRUE(matches(kFp8, "head", "lm_head"));  // any end of the name
  EXPECT_TRUE(matches(kFp8, "a.b", "a_b"));       // a dot is any character
  // one layer of experts
  EXPECT_TRUE(matches(kFp8, "model.layers.0.mlp.experts.3.down_proj", "model.layers.0.mlp.experts.5.up_proj"));
  EXPECT_FALSE(matches(kFp8, "model.layers.0.mlp.experts.3.down_proj", "model.layers.1.mlp.experts.3.down_proj"));
}

// vLLM 0.32, modelopt.is_layer_excluded: equal, anywhere in the name, fnmatch
TEST(IgnoreEntries, ModelOpt) {
  EXPECT_TRUE(matches(kModelOpt, "mlp.gate", "model.layers.0.mlp.gate_proj"));
  EXPECT_TRUE(matches(kModelOpt, "model.layers.0.*", "model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(matches(kModelOpt, "model.layers.0.*", "model.layers.10.mlp.up_proj"));
  EXPECT_TRUE(matches(kModelOpt, "mlp.gat[e]", "mlp.gate"));
  EXPECT_FALSE(matches(kModelOpt, "mlp.gat[e]", "mlp.gate_proj"));
}

TEST(IgnoreEntries, Inc) {
  EXPECT_TRUE(matches(kInc, "gate", "model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(matches(kInc, "^mlp\\.gate$", "mlp.gate_proj"));
}

ConfigSpec spec_of(const char* type, std::vector<std::string> quantized, std::vector<std::string> kept) {
  ConfigSpec spec{.quantized = std::move(quantized),
                  .kept_linears = std::move(kept),
                  .names = ModelNames(io::Json{{"model_type", type}})};
  return spec;
}

TEST(IgnoreList, NamesOnlyWhereReadersKeepThem) {
  const auto spec = spec_of("llama", {"model.layers.0.mlp.up_proj"}, {"lm_head"});
  for (const auto* form : {&kTensors, &kFp8, &kModelOpt, &kInc, &inc_vllm_form()})
    EXPECT_THAT(ignore_entries(*form, spec), ElementsAre("lm_head"));
}

/// Every name that a reader may give the kept modules is matched, and none of the quantized.
TEST(IgnoreList, PrefixesThatReadersAddAndDrop) {
  const std::vector<std::string> quantized = {"language_model.model.layers.0.self_attn.q_proj",
                                              "language_model.model.layers.1.mlp.fc1"};
  const auto spec = spec_of("llava", quantized,
                            {"language_model.lm_head", "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj",
                             "multi_modal_projector.linear_1"});
  const IgnoreList entries(kTensors, ignore_entries(kTensors, spec));
  const auto ignored = [&](const std::string& name) { return entries.entry_for(name) != nullptr; };
  for (const char* name :
       {"language_model.lm_head", "lm_head", "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj",
        "model.vision_tower.encoder.layers.7.self_attn.q_proj", "model.multi_modal_projector.linear_1",
        "model.multi_modal_projector.linear_2"})
    EXPECT_TRUE(ignored(name)) << name;
  for (const char* name : {"model.language_model.layers.0.self_attn.q_proj", "model.language_model.layers.1.mlp.fc1"})
    EXPECT_FALSE(ignored(name)) << name;
  EXPECT_THAT(ignore_entries(kFp8, spec),
              ElementsAre("language_model.lm_head", "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj",
                          "multi_modal_projector.linear_1"));  // its readers map names
}

TEST(IgnoreList, FormsWithoutPatternsHaveTheNamesThatARowChanges) {
  const auto spec =
      spec_of("mixtral", {"model.layers.0.block_sparse_moe.experts.0.w1"}, {"model.layers.0.block_sparse_moe.gate"});
  for (const auto* form : {&kFp8, &kModelOpt})
    EXPECT_THAT(ignore_entries(*form, spec),
                ElementsAre("model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.gate"));
  EXPECT_THAT(ignore_entries(kInc, spec), ElementsAre("model.layers.0.block_sparse_moe.gate"));
}

TEST(IgnoreList, PatternsOfAllLayersOrOfOne) {
  auto spec = spec_of("mixtral", {"model.layers.0.block_sparse_moe.experts.0.w1"},
                      {"model.layers.0.block_sparse_moe.gate", "model.layers.1.block_sparse_moe.gate"});
  EXPECT_THAT(
      ignore_entries(kTensors, spec),
      ElementsAre("model.layers.0.block_sparse_moe.gate", "model.layers.1.block_sparse_moe.gate",
                  "re:(.*\\.)?layers\\.\\d+\\.block_sparse_moe\\.gate$", "re:(.*\\.)?layers\\.\\d+\\.mlp\\.gate$"));
  spec = spec_of("unheard of", {"a.layers.0.up"}, {"a.layers.1.up", "fc"});
  EXPECT_THAT(ignore_entries(kTensors, spec),
              ElementsAre("a.layers.1.up", "fc", "re:(.*\\.)?layers\\.1\\.up$", "re:(.*\\.)?fc$"));
  spec = spec_of("unheard of", {"b.layers.1.up"}, {"a.layers.1.up"});  // told apart by what stands before
  EXPECT_THAT(ignore_entries(kTensors, spec), ElementsAre("a.layers.1.up", "re:(.*\\.)?a\\.layers\\.\\d+\\.up$"));
  // a part of the tower is quantized
  spec = spec_of("unheard of", {"text.proj", "visual.blocks.0.qkv"}, {"visual.blocks.1.qkv"});
  EXPECT_THAT(ignore_entries(kTensors, spec), Not(Contains(HasSubstr("visual\\..*"))));
}

TEST(IgnoreList, WhatWouldMatchMoreIsWrittenNarrower) {
  const auto spec = spec_of("llama", {"m.gate_proj"}, {"m.gate"});
  EXPECT_THAT(ignore_entries(kModelOpt, spec), ElementsAre("m.gat[e]"));
  EXPECT_THAT(ignore_entries(kInc, spec), ElementsAre("^m\\.gate$"));
  EXPECT_THAT(ignore_entries(kFp8, spec), ElementsAre("m.gate"));
}

TEST(IgnoreList, NoEntryMatchesAQuantizedModule) {
  auto spec = spec_of("llava", {"lm_head", "model.layers.0.mlp.up_proj"}, {});
  spec.ignore = {"re:.*lm_head"};
  EXPECT_REFUSED(ignore_entries(kTensors, spec), "re:.*lm_head", "'lm_head'", "codes as values");
  spec = spec_of("gpt_neox", {"embed_out"}, {});  // by the name that transformers gives it
  spec.ignore = {"lm_head"};
  EXPECT_REFUSED(ignore_entries(kTensors, spec), "lm_head");
  spec = spec_of("llama", {"model.layers.0.mlp.experts.1.w1"}, {"model.layers.0.mlp.experts.0.w1"});
  EXPECT_REFUSED(ignore_entries(kFp8, spec), "experts.0.w1", "experts.1.w1");
  spec = spec_of("llama", {"a.lm_head"}, {"head"});
  EXPECT_REFUSED(ignore_entries(kFp8, spec), "'head'", "a.lm_head");
  spec.ignore = {"re:("};
  EXPECT_ANY_THROW(ignore_entries(kTensors, spec));
}

}  // namespace
}  // namespace fp8::quant
