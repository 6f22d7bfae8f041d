// SPDX-License-Identifier: Apache-2.0
// Patterns of names, the table of families, and what engines run as one product.
#include "fp8/quant/names/model_names.h"

#include <gmock/gmock.h>

#include <set>
#include <sstream>

#include "support/enum_names.h"

namespace fp8::quant {
namespace {

using io::Json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

ModelNames names_of(const char* type) { return ModelNames(Json{{"model_type", type}}); }

TEST(NamePatterns, AreRunsOfWholeParts) {
  EXPECT_TRUE(matches_pattern("embed_in", "gpt_neox.embed_in"));
  EXPECT_TRUE(matches_pattern("embed_in", "embed_in"));
  EXPECT_FALSE(matches_pattern("embed_in", "gpt_neox.embed_in.proj"));
  EXPECT_FALSE(matches_pattern("embed_in", "gpt_neox.not_embed_in"));
  EXPECT_TRUE(matches_pattern("mlp.gate", "model.layers.0.mlp.gate"));
  EXPECT_FALSE(matches_pattern("mlp.gate", "model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(matches_pattern("mlp.gate", "gate"));
  EXPECT_TRUE(matches_pattern("layers.*.router", "model.layers.12.router"));
  EXPECT_FALSE(matches_pattern("layers.*.router", "model.layers.12.mlp.router"));
  EXPECT_TRUE(matches_pattern("w*_proj", "a.wk_proj"));
}

TEST(NamePatterns, BelowAPartAndFromTheStart) {
  EXPECT_TRUE(matches_pattern("visual.", "visual.blocks.0.attn.qkv"));
  EXPECT_TRUE(matches_pattern("visual.", "model.visual.proj"));
  EXPECT_FALSE(matches_pattern("visual.", "model.visual"));  // not the part itself
  EXPECT_FALSE(matches_pattern("visual.", "model.visual_projection.proj"));
  EXPECT_TRUE(matches_pattern("^lm_head", "lm_head"));
  EXPECT_FALSE(matches_pattern("^lm_head", "language_model.lm_head"));
  EXPECT_TRUE(matches_pattern("^encoder.", "encoder.layers.0.fc"));
  EXPECT_FALSE(matches_pattern("^encoder.", "model.encoder.layers.0.fc"));
  EXPECT_TRUE(matches_any("a b.c", "x.b.c"));
  EXPECT_FALSE(matches_any("", "x"));
}

TEST(ModelNames, WhatRanksShareOutByInput) {
  for (const char* name : {"o_proj", "model.layers.0.mlp.down_proj", "h.0.attn.c_proj", "experts.3.w2", "fc2"})
    EXPECT_TRUE(is_row_parallel_name(name)) << name;
  for (const char* name : {"q_proj", "lm_head", "w1", "down_proj.lora_A", "my_o_proj", ""})
    EXPECT_FALSE(is_row_parallel_name(name)) << name;
}

TEST(ModelNames, Adapters) {
  for (const char* name : {"lora_A", "q_proj.lora_A.default", "layers.0.lora_embedding_B"})
    EXPECT_TRUE(is_adapter_name(name)) << name;
  for (const char* name : {"q_proj", "explora_tion.fc", "lora", ""}) EXPECT_FALSE(is_adapter_name(name)) << name;
}
TEST(ModelNames, RolesHaveNames) { test::check_names<Role>(); }

TEST(ModelFamilies, EachTypeHasOneRow) {
  std::set<std::string> seen;
  for (const auto& row : model_families()) {
    std::istringstream types{std::string(row.model_types)};
    for (std::string type; types >> type;) {
      EXPECT_TRUE(seen.insert(type).second) << type;
      EXPECT_EQ(family_of(type), &row) << type;
    }
    for (const auto cell : {row.renamed}) {
      std::istringstream changes{std::string(cell)};
      for (std::string change; changes >> change;) EXPECT_NE(change.find('>'), std::string::npos) << change;
    }
    std::istringstream pairs{std::string(row.tied)};
    for (std::string pair; pairs >> pair;) EXPECT_NE(pair.find('='), std::string::npos) << pair;
  }
  EXPECT_GT(seen.size(), 260u);
  EXPECT_EQ(family_of("llama qwen2"), nullptr);
  EXPECT_EQ(family_of(""), nullptr);
}

TEST(ModelNames, PartsHaveTheirOwnRows) {
  const ModelNames names(Json{{"model_type", "some_vl"},
                              {"text_config", {{"model_type", "mixtral"}}},
                              {"vision_config", {{"model_type", "dinov2"}}}});
  EXPECT_EQ(names.model_type(), "some_vl");
  EXPECT_FALSE(names.known());
  EXPECT_EQ(names.rows().size(), 2u);
  const PartsOnLoad parts = names.parts_on_load("vision_tower.layer.0.mlp.weights_in");
  EXPECT_TRUE(parts.count == 2 && parts.whole && !parts.by_turns);
  EXPECT_TRUE(names_of("inkling_mm_model").parts_on_load("model.llm.layers.0.mlp.w13_dn").by_turns);
  EXPECT_THAT(names.names_on_load("model.layers.0.block_sparse_moe.gate"),
              ElementsAre("model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.gate"));
  EXPECT_FALSE(ModelNames(Json(3)).known());
  EXPECT_FALSE(ModelNames(Json{{"model_type", 3}}).known());
}

// transformers 5.23, conversion_mapping.py
TEST(ModelNames, ReadersRename) {
  EXPECT_THAT(names_of("llama").names_on_load("lm_head"), ElementsAre("lm_head"));
  EXPECT_THAT(names_of("gpt_neox").names_on_load("embed_out"), ElementsAre("embed_out", "lm_head"));
  EXPECT_THAT(names_of("phimoe").names_on_load("model.layers.3.block_sparse_moe.gate"),
              Contains("model.layers.3.mlp.router"));
  EXPECT_THAT(names_of("phimoe").names_on_load("model.layers.3.block_sparse_moe.experts.0.w1"),
              Contains("model.layers.3.mlp.experts.0.w1"));
  EXPECT_THAT(names_of("granitemoe").names_on_load("model.layers.0.block_sparse_moe.router.layer"),
              Contains("model.layers.0.block_sparse_moe.router"));
}

TEST(ModelNames, ReadersSplit) {
  EXPECT_THAT(
      names_of("dinov2").names_on_load("encoder.layer.0.mlp.weights_in"),
      ElementsAre("encoder.layer.0.mlp.weights_in", "encoder.layer.0.mlp.gate_proj", "encoder.layer.0.mlp.up_proj"));
  EXPECT_THAT(names_of("gte").names_on_load("new.encoder.layer.0.attention.qkv_proj"),
              Contains("new.layers.0.self_attn.k_proj"));
}

// transformers 5.23, _tied_weights_keys
TEST(ModelNames, TiedHeads) {
  EXPECT_THAT(names_of("llama").tied(), Contains(Pair("lm_head", "embed_tokens")));
  EXPECT_THAT(names_of("bloom").tied(), Contains(Pair("lm_head", "transformer.word_embeddings")));
  EXPECT_THAT(names_of("bert").tied(), Contains(Pair("cls.predictions.decoder", "word_embeddings")));
  EXPECT_THAT(names_of("distilbert").tied(), ElementsAre(Pair("vocab_projector", "word_embeddings")));
  EXPECT_THAT(names_of("whisper").tied(), ElementsAre(Pair("proj_out", "model.decoder.embed_tokens")));
  EXPECT_THAT(names_of("modernbert").tied(), ElementsAre(Pair("decoder", "tok_embeddings")));
  EXPECT_THAT(names_of("never heard of").tied(), Contains(Pair("lm_head", "embed_tokens")));
}

TEST(ModelNames, Towers) {
  EXPECT_EQ(names_of("llava").tower_of("model.vision_tower.encoder.layers.0.mlp.fc1"), "vision_tower");
  EXPECT_EQ(names_of("cosmos3_omni").tower_of("blocks.0.attn.qkv"), "blocks");
  EXPECT_EQ(names_of("llama").tower_of("model.layers.0.mlp.up_proj"), "");
  EXPECT_EQ(names_of("qwen2_audio").tower_of("audio_tower.layers.0.fc1"), "audio_tower");
}

// vLLM 0.32: packed_modules_mapping of Llama and DeepSeek-V3, RoutedExperts
TEST(ModelNames, ProductsOfEngines) {
  const ModelNames names = names_of("deepseek_v3");
  const std::string attn = "model.layers.0.self_attn.";
  EXPECT_EQ(names.product_group_of(attn + "q_a_proj"), names.product_group_of(attn + "kv_a_proj_with_mqa"));
  EXPECT_NE(names.product_group_of(attn + "q_a_proj"), "");
  EXPECT_EQ(names.product_group_of(attn + "q_b_proj"), "");
  EXPECT_EQ(names.product_group_of("model.layers.3.mlp.experts.0.gate_proj"), "model.layers.3.mlp.experts");
  EXPECT_EQ(names.product_group_of("model.layers.3.mlp.experts.255.down_proj"), "model.layers.3.mlp.experts");
  EXPECT_NE(names.product_group_of("model.layers.4.mlp.experts.0.up_proj"),
            names.product_group_of("model.layers.3.mlp.experts.0.up_proj"));
  EXPECT_EQ(names.product_group_of("model.layers.3.mlp.experts.gate_up_proj"), "");
  EXPECT_EQ(fuse_group_of(attn + "v_proj"), attn + "q_proj");
  EXPECT_EQ(fuse_group_of("x.w3"), "x.w1");
  EXPECT_EQ(fuse_group_of("down_proj"), "");
  EXPECT_TRUE(is_last_of_group(attn + "v_proj"));
  EXPECT_TRUE(is_last_of_group(attn + "kv_a_proj_with_mqa"));
  EXPECT_FALSE(is_last_of_group(attn + "k_proj"));
}

TEST(ModelNames, HalvedGroups) {
  const auto halved =
      halved_groups(names_of("llama"), {"a.q_proj", "a.k_proj", "a.o_proj", "b.q_proj"}, {"a.v_proj", "lm_head"});
  EXPECT_THAT(halved, ::testing::UnorderedElementsAre(Pair("a.q_proj", "a.v_proj"), Pair("a.k_proj", "a.v_proj")));
  EXPECT_THAT(halved_groups(names_of("llama"), {"a.q_proj"}, {}), IsEmpty());
}

TEST(ModelNames, SomeFamiliesNeedAModule) {
  EXPECT_THAT(names_of("dinov2").refused({"dinov2.encoder.layer.0.mlp.fc1"}), HasSubstr("mlp.weights_in"));
  EXPECT_EQ(names_of("dinov2").refused({"dinov2.encoder.layer.0.mlp.weights_in"}), "");
  EXPECT_NE(names_of("diffusion_gemma").refused({"any"}), "");
  EXPECT_EQ(names_of("llama").refused({}), "");
}

TEST(NamesAlone, OfModelsInMemory) {
  EXPECT_TRUE(is_head_name("lm_head"));
  EXPECT_TRUE(is_embedding_name("model.embed_tokens"));
  EXPECT_TRUE(is_router_name("model.layers.0.mlp.gate"));
  EXPECT_FALSE(is_router_name("model.layers.0.mlp.gate_proj"));
  EXPECT_TRUE(is_tower_name("model.visual.blocks.0.attn.qkv"));
  EXPECT_TRUE(is_key_projection("a.k_proj"));
  EXPECT_FALSE(is_key_projection("a.q_proj"));
}

}  // namespace
}  // namespace fp8::quant
