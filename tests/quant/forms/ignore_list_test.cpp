// SPDX-License-Identifier: Apache-2.0
// Lists of modules in high precision: what each reader takes an entry for, as its source says, and what is written.
#include "fp8/quant/forms/ignore_list.h"

#include <gmock/gmock.h>

#include "fp8/quant/forms/form_table.h"
#include "support/throws_with.h"

namespace fp8::quant {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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
  ConfigSpec spec;
  spec.names = ModelNames(io::Json{{"model_type", type}});
  spec.quantized = std::move(quantized);
  spec.kept_linears = std::move(kept);
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
