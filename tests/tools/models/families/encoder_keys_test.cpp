// SPDX-License-Identifier: Apache-2.0
// Keys of DeBERTa-v2's config.json: what they mean, what they mean where they are missing (as in transformers), and
// which values are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "fp8/tools/models/decoder/description.h"
#include "fp8/tools/models/registry.h"
#include "support/throws_with.h"

namespace fp8::models {
namespace {

using ::testing::HasSubstr;

io::Json deberta(const io::Json& more = io::Json::object()) {
  io::Json json = {{"model_type", "deberta-v2"}, {"architectures", {"DebertaV2ForMaskedLM"}},
                   {"vocab_size", 32},           {"hidden_size", 16},
                   {"intermediate_size", 24},    {"num_hidden_layers", 2},
                   {"num_attention_heads", 4}};
  json.update(more);
  return json;
}

DecoderConfig parse_deberta(const io::Json& more = io::Json::object()) {
  return dynamic_cast<const DecoderConfig&>(*parse_config(deberta(more), "m/config.json").values);
}

TEST(DebertaKeys, DefaultsAreThoseOfTransformers) {
  const auto config = parse_deberta();
  EXPECT_FALSE(config.distances.has_value());
  EXPECT_FALSE(config.convolution.has_value());
  EXPECT_EQ(config.attend.scale, 0.5);
  EXPECT_EQ(config.shape.context, 512);
  EXPECT_EQ(config.norm.eps, 1e-7);
  EXPECT_EQ(config.last.norm.eps, 1e-7);
  EXPECT_EQ(config.token_types, 0);
  EXPECT_EQ(config.word_width, 16);
  EXPECT_TRUE(config.tied);
  EXPECT_EQ(config.names.positions, "deberta.embeddings.position_embeddings");
  EXPECT_EQ(config.names.head_dense, "cls.predictions.transform.dense");
  EXPECT_EQ(config.mlp.activation, Activation::gelu);
}

/// transformers' setter: sliding_window is half of local_attention, and a layer sees itself too.
TEST(ModernBertKeys, TheWindowHasTwoNames) {
  io::Json json = deberta({{"model_type", "modernbert"}, {"architectures", {"ModernBertForMaskedLM"}}});
  const auto window = [&] {
    return dynamic_cast<const DecoderConfig&>(*parse_config(json, "m/config.json").values).kinds.at(1).window;
  };
  EXPECT_EQ(window(), 128 / 2 + 1);
  json["local_attention"] = 20;
  EXPECT_EQ(window(), 20 / 2 + 1);
  json["sliding_window"] = 3;
  EXPECT_EQ(window(), 3 + 1);
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_TRUE(test::throws_with({"'rope_scaling'", "'rope_parameters'"}, [&] { window(); }));
}

/// As microsoft/deberta-v3-base has them.
TEST(DebertaKeys, DistancesOfTheThirdVersion) {
  const auto config = parse_deberta({{"relative_attention", true},
                                     {"position_buckets", 256},
                                     {"max_relative_positions", -1},
                                     {"norm_rel_ebd", "layer_norm"},
                                     {"share_att_key", true},
                                     {"pos_att_type", "p2c|c2p"},
                                     {"position_biased_input", false}});
  ASSERT_TRUE(config.distances.has_value());
  EXPECT_EQ(config.distances->span, 256);
  EXPECT_EQ(config.distances->buckets, 256);
  EXPECT_EQ(config.distances->reach, 512);
  EXPECT_TRUE(config.distances->c2p && config.distances->p2c && config.distances->normed);
  EXPECT_FALSE(config.distances->own_projections);
  EXPECT_NEAR(config.attend.scale, 1 / std::sqrt(12.0), 1e-12);
  EXPECT_EQ(config.names.positions, "");
}

TEST(DebertaKeys, TypesOfAttentionHaveManySpellings) {
  for (const io::Json& types : {io::Json(" C2P "), io::Json({"c2p"}), io::Json("c2p|c2p")}) {
    const auto config = parse_deberta({{"relative_attention", true}, {"pos_att_type", types}});
    ASSERT_TRUE(config.distances.has_value()) << types;
    EXPECT_TRUE(config.distances->c2p && !config.distances->p2c && config.distances->own_projections) << types;
    EXPECT_EQ(config.distances->span, 512);
    EXPECT_NEAR(config.attend.scale, 1 / std::sqrt(8.0), 1e-12);
  }
  // Without the table scores are divided as if it was there.
  EXPECT_NEAR(parse_deberta({{"pos_att_type", "c2p"}}).attend.scale, 1 / std::sqrt(8.0), 1e-12);
  EXPECT_FALSE(parse_deberta({{"relative_attention", true}}).distances.has_value());
}

TEST(DebertaKeys, TheNewHeadIsTiedAlways) {
  const auto config = parse_deberta({{"legacy", false}, {"tie_word_embeddings", false}});
  EXPECT_TRUE(config.tied);
  EXPECT_EQ(config.names.head, "lm_predictions.lm_head");
  EXPECT_EQ(config.names.head_norm, "lm_predictions.lm_head.LayerNorm");
}

TEST(DebertaKeys, WhatCanNotBeIsRefusedByKey) {
  const io::Json classifier = {"DebertaV2ForSequenceClassification"};
  const std::pair<io::Json, const char*> cases[] = {
      {{{"pos_att_type", "c2p|p2p"}}, "key 'pos_att_type': found \"c2p|p2p\", allowed: \"c2p\", \"p2c\""},
      {{{"pos_att_type", ""}}, "key 'pos_att_type'"},
      {{{"pos_att_type", {"c2p", 3}}}, "key 'pos_att_type'"},
      {{{"pos_att_type", 3}}, "key 'pos_att_type'"},
      {{{"position_buckets", 1}}, "key 'position_buckets': found 1, allowed: -1 or 2 and more"},
      {{{"position_buckets", 60}, {"max_relative_positions", 20}},
       "key 'position_buckets': found 60, allowed: -1 or 2 and more, half of it below max_relative_positions - 1 = 19"},
      {{{"norm_rel_ebd", "batch_norm"}}, "key 'norm_rel_ebd'"},
      {{{"conv_kernel_size", 4}}, "key 'conv_kernel_size': found 4, allowed: 0, or odd"},
      {{{"conv_kernel_size", 3}, {"conv_groups", 5}},
       "key 'conv_groups': found 5, allowed: a divisor of hidden_size 16"},
      {{{"conv_kernel_size", 3}, {"conv_act", "mish"}}, "key 'conv_act': found \"mish\""},
      {{{"attention_head_size", 8}}, "key 'attention_head_size': found 8, allowed: 4"},
      {{{"legacy", false}, {"embedding_size", 8}}, "key 'embedding_size': found 8, allowed: hidden_size 16"},
      {{{"architectures", classifier}, {"pooler_hidden_size", 8}},
       "key 'pooler_hidden_size': found 8, allowed: hidden_size 16"},
      {{{"architectures", {"DebertaV2ForTokenClassification"}}}, "key 'architectures'"},
  };
  for (const auto& [more, message] : cases) {
    const auto& json = more;
    EXPECT_THAT(test::error_of([&] { parse_deberta(json); }), HasSubstr(message)) << json;
  }
}

}  // namespace
}  // namespace fp8::models
