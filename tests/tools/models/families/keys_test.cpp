// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/families/keys.h"

#include "fp8/tools/models/registry.h"
#include "support/golden.h"
#include "support/throws_with.h"

namespace fp8::models {
namespace {

io::Json minimal() {
  return {{"model_type", "llama"},   {"vocab_size", 32},       {"hidden_size", 16},
          {"intermediate_size", 24}, {"num_hidden_layers", 2}, {"num_attention_heads", 4}};
}

DecoderConfig parse(const io::Json& json) {
  return dynamic_cast<const DecoderConfig&>(*parse_config(json, "m/config.json").values);
}

std::string config_error(const io::Json& json) {
  return error_of<io::Error>([&] { parse(json); });
}

/// minimal() with one key set.
io::Json with(const std::string& key, const io::Json& value) {
  auto json = minimal();
  json[key] = value;
  return json;
}

/// minimal() with the keys of an object.
io::Json with(const std::string& keys) {
  auto json = minimal();
  json.update(io::parse_json(keys, "keys"));
  return json;
}

TEST(FamilyKeys, DefaultsAreThoseOfTransformers) {
  const auto config = parse(minimal());
  EXPECT_EQ(config.shape.kv_heads, 4);
  EXPECT_EQ(config.attend.head_dim, 4);
  EXPECT_EQ(config.shape.context, 2048);
  EXPECT_EQ(config.norm.eps, 1e-6);
  EXPECT_EQ(config.ropes.at(0).theta, 10000.0);
  EXPECT_EQ(config.ropes.at(0).kind, RopeSpec::Kind::none);
  EXPECT_FALSE(config.attend.q_bias || config.attend.out_bias || config.mlp.up_bias || config.tied);
  EXPECT_THAT(config.shape.eos, IsEmpty());
  EXPECT_FALSE(config.dtype.has_value());
}

TEST(FamilyKeys, MixtralsDefaultsAreItsOwn) {
  const auto config = parse(with("model_type", "mixtral"));
  EXPECT_TRUE(config.kinds.at(1).sparse);
  EXPECT_EQ(config.shape.context, 131072);
  EXPECT_EQ(config.norm.eps, 1e-5);
  EXPECT_EQ(config.ropes.at(0).theta, 1e6);
  EXPECT_EQ(config.moe.experts, 8);
  EXPECT_EQ(config.moe.top_k, 2);
}

TEST(FamilyKeys, ReadsBothSpellingsOfTheRotaryEmbedding) {
  auto old = minimal();
  old["rope_theta"] = 500000.0;
  old["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  auto recent = minimal();
  recent["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "linear"}, {"factor", 2.0}};
  for (const auto& json : {old, recent}) {
    const auto config = parse(json);
    EXPECT_EQ(config.ropes.at(0).theta, 500000.0);
    EXPECT_EQ(config.ropes.at(0).kind, RopeSpec::Kind::linear);
    EXPECT_EQ(config.ropes.at(0).factor, 2.0);
  }
  const auto config = parse(with("rope_scaling", {{"rope_type", "llama3"},
                                                  {"factor", 8.0},
                                                  {"low_freq_factor", 2.0},
                                                  {"high_freq_factor", 8.0},
                                                  {"original_max_position_embeddings", 8192}}));
  EXPECT_EQ(config.ropes.at(0).kind, RopeSpec::Kind::llama3);
  EXPECT_EQ(config.ropes.at(0).original_max_position_embeddings, 8192);
  EXPECT_EQ(config.ropes.at(0).low_freq_factor, 2);
  EXPECT_EQ(config.ropes.at(0).high_freq_factor, 8);
}

TEST(FamilyKeys, TokenIdsAreOneOrAList) {
  EXPECT_THAT(parse(with("eos_token_id", 7)).shape.eos, ElementsAre(7));
  EXPECT_THAT(parse(with("eos_token_id", io::Json::array({7, 9}))).shape.eos, ElementsAre(7, 9));
  EXPECT_THAT(parse(with("eos_token_id", nullptr)).shape.eos, IsEmpty());
  EXPECT_THAT(config_error(with("eos_token_id", -1)), HasSubstr("key 'eos_token_id': found -1, allowed: a token id"));
}

TEST(FamilyKeys, Dtype) {
  EXPECT_EQ(parse(with("torch_dtype", "bfloat16")).dtype, c10::kBFloat16);
  EXPECT_EQ(parse(with("dtype", "float16")).dtype, c10::kHalf);
  EXPECT_GOLDEN(config_error(with(text)));
}

TEST(FamilyKeys, OtherArchitecturesAreRefusedByName) { EXPECT_GOLDEN(config_error(with(text))); }

TEST(FamilyKeys, Windows) {
  auto mistral = with("model_type", "mistral");
  EXPECT_EQ(parse(mistral).kinds.at(1).window, 4096);  // what transformers takes where the key is missing
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(parse(mistral).kinds.at(1).window, 0);
  mistral["sliding_window"] = 7;
  EXPECT_EQ(parse(mistral).kinds.at(0).window, 7);
  mistral["sliding_window"] = 0;
  EXPECT_THAT(config_error(mistral), HasSubstr("key 'sliding_window': found 0, allowed: an integer from 1"));
  auto qwen = with("model_type", "qwen2");
  qwen["use_sliding_window"] = true;
  qwen["sliding_window"] = 5;
  qwen["max_window_layers"] = 1;
  EXPECT_EQ(parse(qwen).kinds.at(0).window, 0);
  EXPECT_EQ(parse(qwen).kinds.at(1).window, 5);
  qwen["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(parse(qwen).kinds.at(0).window, 5);
  EXPECT_EQ(parse(qwen).kinds.at(1).window, 0);
  qwen["layer_types"] = {"sliding_attention"};
  EXPECT_THAT(config_error(qwen), HasSubstr("key 'layer_types': found [\"sliding_attention\"], allowed: a list of"));
  qwen["layer_types"] = {"sliding_attention", "linear_attention"};
  EXPECT_THAT(config_error(qwen), HasSubstr("key 'layer_types'"));
}

TEST(FamilyKeys, WhatWouldChangeTheNumbersIsRefused) { EXPECT_GOLDEN(config_error(with(text))); }

TEST(FamilyKeys, RangesOfIntegers) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const auto& bad : {io::Json(0), io::Json(-4), io::Json(4.0), io::Json("4"), io::Json(true),
                            io::Json(INT64_MAX), io::Json(UINT64_MAX), io::Json(INT64_MIN), io::Json::array({4})})
      EXPECT_THAT(config_error(with(key, bad)),
                  HasSubstr(std::string("key '") + key + "': found " + bad.dump() + ", allowed: "));
  }
  auto missing = minimal();
  missing.erase("hidden_size");
  EXPECT_THAT(config_error(missing), HasSubstr("key 'hidden_size': missing, allowed: an integer from 1 to"));
}

TEST(FamilyKeys, ShapesThatDoNotDivide) {
  EXPECT_GOLDEN(config_error(with(text)));
  auto odd = with("num_attention_heads", 16);
  EXPECT_THAT(config_error(odd), HasSubstr("key 'head_dim': missing, allowed: an even integer"));
}

TEST(FamilyKeys, NumbersAndBooleans) { EXPECT_GOLDEN(config_error(with(text))); }

TEST(FamilyKeys, NotAnObject) {
  EXPECT_EQ(config_error(io::Json::array()), "[models] m/config.json: found [], expected a JSON object");
}

// Keys of DeBERTa-v2's config.json: what they mean, what they mean where they are missing (as in transformers), and
// which values are refused.

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
  EXPECT_TRUE(throws_with({"'rope_scaling'", "'rope_parameters'"}, [&] { window(); }));
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
  EXPECT_GOLDEN(error_of([&] { parse_deberta(io::parse_json(text, "more")); }));
}

}  // namespace
}  // namespace fp8::models
