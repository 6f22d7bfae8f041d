// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/models/families/families.h"
#include "fp8/tools/models/registry.h"

namespace fp8::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

DecoderConfig part_of(const io::Json& json) {
  return dynamic_cast<const DecoderConfig&>(*parse_config(json, "config.json").values);
}

std::string refused_part(const io::Json& json) {
  try {
    parse_config(json, "config.json");
  } catch (const io::Error& error) {
    return error.what();
  }
  return "accepted";
}

/// As llava-hf/llava-1.5-7b-hf and google/gemma-3-4b-it have them: what is as in transformers' classes is left out.
TEST(LanguageParts, SizesThatAreLeftOutAreTransformers) {
  const auto llava =
      part_of({{"model_type", "llava"},
               {"text_config", {{"model_type", "llama"}, {"vocab_size", 32064}, {"rms_norm_eps", 1e-5}}}});
  EXPECT_EQ(llava.shape.hidden, 4096);
  EXPECT_EQ(llava.shape.inner, 11008);
  EXPECT_EQ(llava.shape.kv_heads, 32);
  EXPECT_EQ(llava.shape.vocab, 32064);
  EXPECT_TRUE(llava.of_images);
  const auto gemma = part_of({{"model_type", "gemma3"},
                              {"text_config",
                               {{"model_type", "gemma3_text"},
                                {"hidden_size", 2560},
                                {"intermediate_size", 10240},
                                {"num_hidden_layers", 34},
                                {"sliding_window", 1024},
                                {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}}}}});
  EXPECT_EQ(gemma.shape.heads, 8);
  EXPECT_EQ(gemma.shape.kv_heads, 4);
  EXPECT_EQ(gemma.attend.head_dim, 256);
  EXPECT_EQ(gemma.shape.vocab, 262208);
  EXPECT_TRUE(gemma.tied);
}

TEST(LanguageParts, MayStandAtTheTop) {
  const io::Json json = {{"model_type", "qwen2_vl"},
                         {"vocab_size", 64},
                         {"hidden_size", 32},
                         {"intermediate_size", 48},
                         {"num_hidden_layers", 2},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 2},
                         {"eos_token_id", 7},
                         {"rope_scaling", {{"type", "mrope"}, {"mrope_section", {1, 1, 2}}}}};
  const auto part = part_of(json);
  EXPECT_EQ(part.shape.hidden, 32);
  EXPECT_TRUE(part.attend.q_bias);
  EXPECT_EQ(part.ropes.at(0).kind, RopeSpec::Kind::none);
  EXPECT_THAT(part.shape.eos, ElementsAre(7));
}

TEST(LanguageParts, TheWholeModelsWordOnTiedWeightsCounts) {
  io::Json json = {
      {"model_type", "llava"},
      {"tie_word_embeddings", true},
      {"text_config", {{"model_type", "llama"}, {"tie_word_embeddings", false}, {"eos_token_id", {3, 4}}}}};
  EXPECT_TRUE(part_of(json).tied);
  EXPECT_THAT(part_of(json).shape.eos, ElementsAre(3, 4));
  json["eos_token_id"] = 9;
  EXPECT_THAT(part_of(json).shape.eos, ElementsAre(9));
}

TEST(LanguageParts, LayersThatLookAtImagesAreAbsent) {
  io::Json json = {{"model_type", "mllama"},
                   {"text_config", {{"num_hidden_layers", 5}, {"cross_attention_layers", io::Json::array({1, 3})}}}};
  const auto part = part_of(json);
  EXPECT_EQ(part.extra_words, 8);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(part.kinds[i].absent, i == 1 || i == 3) << i;
  json["text_config"]["cross_attention_layers"] = io::Json::array({5});
  EXPECT_THAT(refused_part(json),
              HasSubstr("key 'text_config.cross_attention_layers': found [5], allowed: a list of integers"));
}

TEST(LanguageParts, WhatIsWrongIsNamedWithItsPath) {
  EXPECT_THAT(refused_part({{"model_type", "llava"}, {"text_config", {{"model_type", "rwkv"}}}}),
              HasSubstr("key 'text_config.model_type': found \"rwkv\", allowed: gemma3_text, llama"));
  EXPECT_THAT(refused_part({{"model_type", "llava"}, {"text_config", 3}}), HasSubstr("key 'text_config': found 3"));
  EXPECT_THAT(refused_part({{"model_type", "llava"}, {"text_config", {{"hidden_size", "x"}}}}),
              HasSubstr("key 'text_config.hidden_size': found \"x\""));
}

}  // namespace
}  // namespace fp8::models
