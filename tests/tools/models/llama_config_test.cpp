// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/llama_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "fp8/runtime/io/base/error.h"
#include "fp8/tools/models/registry.h"

namespace fp8::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

io::Json minimal() {
  return {{"model_type", "llama"},   {"vocab_size", 32},       {"hidden_size", 16},
          {"intermediate_size", 24}, {"num_hidden_layers", 2}, {"num_attention_heads", 4}};
}

LlamaConfig parse(const io::Json& json) {
  return dynamic_cast<const LlamaConfig&>(*parse_config(json, "m/config.json").values);
}

std::string error_of(const io::Json& json) {
  try {
    parse(json);
  } catch (const io::Error& error) {
    return error.what();
  }
  return "no error";
}

/// minimal() with one key set.
io::Json with(const std::string& key, const io::Json& value) {
  auto json = minimal();
  json[key] = value;
  return json;
}

TEST(LlamaConfig, DefaultsAreThoseOfTransformers) {
  const auto config = parse(minimal());
  EXPECT_EQ(config.shape.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.shape.context, 2048);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_FALSE(config.attention_bias || config.mlp_bias || config.tie_word_embeddings);
  EXPECT_THAT(config.shape.eos, IsEmpty());
  EXPECT_FALSE(config.dtype.has_value());
}

TEST(LlamaConfig, MixtralsDefaultsAreItsOwn) {
  const auto config = parse(with("model_type", "mixtral"));
  EXPECT_EQ(config.shape.context, 131072);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.num_local_experts, 8);
  EXPECT_EQ(config.num_experts_per_tok, 2);
}

TEST(LlamaConfig, ReadsBothSpellingsOfTheRotaryEmbedding) {
  auto old = minimal();
  old["rope_theta"] = 500000.0;
  old["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  auto recent = minimal();
  recent["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "linear"}, {"factor", 2.0}};
  for (const auto& json : {old, recent}) {
    const auto config = parse(json);
    EXPECT_EQ(config.rope_theta, 500000.0);
    EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::linear);
    EXPECT_EQ(config.rope_scaling.factor, 2.0);
  }
  const auto config = parse(with("rope_scaling", {{"rope_type", "llama3"},
                                                  {"factor", 8.0},
                                                  {"low_freq_factor", 1.0},
                                                  {"high_freq_factor", 4.0},
                                                  {"original_max_position_embeddings", 8192}}));
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(config.rope_scaling.original_max_position_embeddings, 8192);
}

TEST(LlamaConfig, TokenIdsAreOneOrAList) {
  EXPECT_THAT(parse(with("eos_token_id", 7)).shape.eos, ElementsAre(7));
  EXPECT_THAT(parse(with("eos_token_id", io::Json::array({7, 9}))).shape.eos, ElementsAre(7, 9));
  EXPECT_THAT(parse(with("eos_token_id", nullptr)).shape.eos, IsEmpty());
  EXPECT_THAT(error_of(with("eos_token_id", -1)), HasSubstr("key 'eos_token_id': found -1, allowed: a token id"));
}

TEST(LlamaConfig, Dtype) {
  EXPECT_EQ(parse(with("torch_dtype", "bfloat16")).dtype, c10::kBFloat16);
  EXPECT_EQ(parse(with("dtype", "float16")).dtype, c10::kHalf);
  EXPECT_EQ(error_of(with("dtype", "int8")),
            "[models] m/config.json: key 'dtype': found \"int8\", allowed: float32, bfloat16, float16");
}

TEST(LlamaConfig, OtherArchitecturesAreRefusedByName) {
  EXPECT_EQ(error_of(with("model_type", "gpt2")),
            "[models] m/config.json: model_type \"gpt2\" is not supported, allowed: llama, mistral, mixtral");
  EXPECT_THAT(error_of(with("model_type", 3)),
              HasSubstr("key 'model_type': found 3, allowed: llama, mistral, mixtral"));
  EXPECT_THAT(error_of(with("model_type", "mistral")), HasSubstr("key 'sliding_window': missing, allowed: null"));
  auto mistral = with("model_type", "mistral");
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(parse(mistral).shape.hidden, 16);
  mistral["sliding_window"] = 4096;
  EXPECT_THAT(error_of(mistral), HasSubstr("key 'sliding_window': found 4096"));
}

TEST(LlamaConfig, WhatWouldChangeTheNumbersIsRefused) {
  EXPECT_EQ(error_of(with("hidden_act", "gelu")),
            "[models] m/config.json: key 'hidden_act': found \"gelu\", allowed: silu, swish");
  EXPECT_THAT(error_of(with("rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}})),
              HasSubstr("key 'rope_scaling.rope_type': found \"yarn\", allowed: default, linear, llama3"));
  EXPECT_THAT(error_of(with("partial_rotary_factor", 0.5)),
              HasSubstr("key 'partial_rotary_factor': found 0.5, allowed: 1"));
  EXPECT_THAT(error_of(with("rope_scaling", "linear")),
              HasSubstr("key 'rope_scaling': found \"linear\", allowed: an object"));
}

TEST(LlamaConfig, RangesOfIntegers) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const auto& bad : {io::Json(0), io::Json(-4), io::Json(4.0), io::Json("4"), io::Json(true),
                            io::Json(INT64_MAX), io::Json(UINT64_MAX), io::Json(INT64_MIN), io::Json::array({4})})
      EXPECT_THAT(error_of(with(key, bad)),
                  HasSubstr(std::string("key '") + key + "': found " + bad.dump() + ", allowed: "));
  }
  auto missing = minimal();
  missing.erase("hidden_size");
  EXPECT_THAT(error_of(missing), HasSubstr("key 'hidden_size': missing, allowed: an integer from 1 to"));
}

TEST(LlamaConfig, ShapesThatDoNotDivide) {
  EXPECT_THAT(error_of(with("num_key_value_heads", 3)),
              HasSubstr("key 'num_key_value_heads': found 3, allowed: a divisor of"));
  EXPECT_THAT(error_of(with("num_attention_heads", 5)),
              HasSubstr("key 'num_attention_heads': found 5, allowed: a divisor of"));
  EXPECT_THAT(error_of(with("head_dim", 5)), HasSubstr("key 'head_dim': found 5, allowed: an even integer"));
  auto odd = with("num_attention_heads", 16);
  EXPECT_THAT(error_of(odd), HasSubstr("key 'head_dim': missing, allowed: an even integer"));
}

TEST(LlamaConfig, NumbersAndBooleans) {
  EXPECT_THAT(error_of(with("rms_norm_eps", -1)), HasSubstr("key 'rms_norm_eps': found -1, allowed: a number from"));
  EXPECT_THAT(error_of(with("rope_theta", "10000")), HasSubstr("key 'rope_theta': found \"10000\""));
  EXPECT_THAT(error_of(with("tie_word_embeddings", 1)),
              HasSubstr("key 'tie_word_embeddings': found 1, allowed: true or false"));
}

TEST(LlamaConfig, NotAnObject) {
  EXPECT_EQ(error_of(io::Json::array()), "[models] m/config.json: found [], expected a JSON object");
}

}  // namespace
}  // namespace fp8::models
