// SPDX-License-Identifier: Apache-2.0

#include <set>

#include "fp8/tools/models/families/families.h"
#include "fp8/tools/models/registry.h"
#include "support/throws_with.h"

namespace fp8::models {
namespace {

DecoderConfig language_part(const io::Json& json) {
  return dynamic_cast<const DecoderConfig&>(*parse_config(json, "m/config.json").values);
}

std::string language_part_error(const io::Json& json) {
  return error_of<io::Error>([&] { parse_config(json, "m/config.json"); });
}

/// As llava-hf/llava-1.5-7b-hf and google/gemma-3-4b-it have them: what is as in transformers' classes is left out.
TEST(LanguageParts, SizesThatAreLeftOutAreTransformers) {
  const auto llava =
      language_part({{"model_type", "llava"},
                     {"text_config", {{"model_type", "llama"}, {"vocab_size", 32064}, {"rms_norm_eps", 1e-5}}}});
  EXPECT_EQ(llava.shape.hidden, 4096);
  EXPECT_EQ(llava.shape.inner, 11008);
  EXPECT_EQ(llava.shape.kv_heads, 32);
  EXPECT_EQ(llava.shape.vocab, 32064);
  EXPECT_TRUE(llava.of_images);
  const auto gemma = language_part({{"model_type", "gemma3"},
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
  const auto part = language_part(json);
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
  EXPECT_TRUE(language_part(json).tied);
  EXPECT_THAT(language_part(json).shape.eos, ElementsAre(3, 4));
  json["eos_token_id"] = 9;
  EXPECT_THAT(language_part(json).shape.eos, ElementsAre(9));
}

TEST(LanguageParts, LayersThatLookAtImagesAreAbsent) {
  io::Json json = {{"model_type", "mllama"},
                   {"text_config", {{"num_hidden_layers", 5}, {"cross_attention_layers", io::Json::array({1, 3})}}}};
  const auto part = language_part(json);
  EXPECT_EQ(part.extra_words, 8);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(part.kinds[i].absent, i == 1 || i == 3) << i;
  json["text_config"]["cross_attention_layers"] = io::Json::array({5});
  EXPECT_THAT(language_part_error(json),
              HasSubstr("key 'text_config.cross_attention_layers': found [5], allowed: a list of integers"));
}

TEST(LanguageParts, WhatIsWrongIsNamedWithItsPath) {
  EXPECT_THAT(language_part_error({{"model_type", "llava"}, {"text_config", {{"model_type", "rwkv"}}}}),
              HasSubstr("key 'text_config.model_type': found \"rwkv\", allowed: gemma3_text, llama"));
  EXPECT_THAT(language_part_error({{"model_type", "llava"}, {"text_config", 3}}),
              HasSubstr("key 'text_config': found 3"));
  EXPECT_THAT(language_part_error({{"model_type", "llava"}, {"text_config", {{"hidden_size", "x"}}}}),
              HasSubstr("key 'text_config.hidden_size': found \"x\""));
}

// Defaults of transformers' classes of text parts where config.json leaves a key out, family by family; which of two
// words counts; messages with the path of the form that a file has.

/// A part of a few weights; "model_type" of the whole.
io::Json small_part(const char* model_type, const io::Json& more = io::Json::object()) {
  io::Json text = {{"vocab_size", 48},
                   {"hidden_size", 32},
                   {"intermediate_size", 64},
                   {"num_hidden_layers", 2},
                   {"num_attention_heads", 4}};
  text.update(more);
  return {{"model_type", model_type}, {"text_config", text}};
}

/// Of the classes' own __init__: LlamaConfig, MistralConfig, Qwen2Config, Qwen2VLTextConfig, Gemma3TextConfig, ...
struct ClassDefaults {
  const char *model_type, *text_type;
  std::int64_t vocab, hidden, inner, layers, heads, kv_heads, head_dim, context;
  double theta, eps;
  bool tied;
};
constexpr ClassDefaults kClassDefaults[] = {
    {"gemma3", "", 262208, 2304, 9216, 26, 8, 4, 256, 131072, 1e6, 1e-6, true},
    {"llama4", "", 202048, 5120, 8192, 48, 40, 8, 128, 131072, 5e5, 1e-5, false},
    {"llava", "", 32000, 4096, 11008, 32, 32, 32, 128, 2048, 1e4, 1e-6, false},
    {"llava", "mistral", 32000, 4096, 14336, 32, 32, 8, 128, 131072, 1e4, 1e-6, false},
    {"llava_next", "", 32000, 4096, 11008, 32, 32, 32, 128, 2048, 1e4, 1e-6, false},
    {"llava_next", "qwen2", 151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e4, 1e-6, false},
    {"mistral3", "", 32000, 4096, 14336, 32, 32, 8, 128, 131072, 1e4, 1e-6, true},
    {"mllama", "", 128256, 4096, 14336, 40, 32, 8, 128, 131072, 5e5, 1e-5, false},
    {"qwen2_5_vl", "", 152064, 8192, 29568, 80, 64, 8, 128, 32768, 1e6, 1e-5, false},
    {"qwen2_vl", "", 152064, 8192, 29568, 80, 64, 8, 128, 32768, 1e6, 1e-5, false},
};

TEST(LanguagePartsDefaults, AnEmptyPartIsThatOfTheClass) {
  std::set<std::string> seen;
  for (const auto& row : kClassDefaults) {
    SCOPED_TRACE(std::string(row.model_type) + " " + row.text_type);
    seen.insert(row.model_type);
    io::Json json = {{"model_type", row.model_type}, {"text_config", io::Json::object()}};
    if (*row.text_type != '\0') json["text_config"]["model_type"] = row.text_type;
    const auto part = language_part(json);
    EXPECT_EQ(part.shape.vocab, row.vocab);
    EXPECT_EQ(part.shape.hidden, row.hidden);
    EXPECT_EQ(part.shape.inner, row.inner);
    EXPECT_EQ(part.shape.layers, row.layers);
    EXPECT_EQ(part.kinds.size(), static_cast<std::size_t>(row.layers));
    EXPECT_EQ(part.shape.heads, row.heads);
    EXPECT_EQ(part.shape.kv_heads, row.kv_heads);
    EXPECT_EQ(part.attend.head_dim, row.head_dim);
    EXPECT_EQ(part.shape.context, row.context);
    EXPECT_EQ(part.ropes.at(0).theta, row.theta);
    EXPECT_EQ(part.norm.eps, row.eps);
    EXPECT_EQ(part.tied, row.tied);
    EXPECT_TRUE(part.of_images);
    EXPECT_EQ(part.head_type, "ForConditionalGeneration");
    EXPECT_THAT(part.shape.eos, IsEmpty());
  }
  EXPECT_EQ(seen.size(), language_parts().size());
}

TEST(LanguagePartsDefaults, WhatIsThereIsKeptAndTheRestFilledIn) {
  auto json = small_part(
      "mllama", {{"cross_attention_layers", io::Json::array()}, {"rms_norm_eps", 1e-4}, {"num_key_value_heads", 4}});
  auto part = language_part(json);
  EXPECT_EQ(part.shape.hidden, 32);
  EXPECT_EQ(part.norm.eps, 1e-4);
  EXPECT_EQ(part.ropes.at(0).theta, 500000);
  EXPECT_EQ(part.shape.context, 131072);
  json["text_config"]["rope_theta"] = 1000;
  EXPECT_EQ(language_part(json).ropes.at(0).theta, 1000);
  json["text_config"].erase("rope_theta");
  json["text_config"]["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 2000}};
  EXPECT_EQ(language_part(json).ropes.at(0).theta, 2000);
  // null is a word of its own: as many as there are heads, as in transformers.
  EXPECT_EQ(language_part(small_part("llava", {{"num_key_value_heads", nullptr}})).shape.kv_heads, 4);
  EXPECT_EQ(language_part(small_part("mistral3", {{"num_key_value_heads", nullptr}})).shape.kv_heads, 4);
}

TEST(LanguagePartsDefaults, LayersOfLlama4AndOfMllama) {
  const auto llama4 = language_part({{"model_type", "llama4"}, {"text_config", io::Json::object()}});
  EXPECT_EQ(llama4.moe.experts, 16);
  EXPECT_EQ(llama4.moe.top_k, 1);
  EXPECT_EQ(llama4.moe.inner, 8192);
  EXPECT_EQ(llama4.mlp.inner, 16384);
  const auto mllama = language_part({{"model_type", "mllama"}, {"text_config", io::Json::object()}});
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(mllama.kinds[i].absent, i % 5 == 3) << i;
}

TEST(LanguagePartsDefaults, TheWholeModelsWordOnTiedWeights) {
  for (const auto& [whole, part, tied] :
       std::vector<std::tuple<io::Json, io::Json, bool>>{{nullptr, nullptr, true},  // Gemma3's own
                                                         {nullptr, false, true},
                                                         {true, false, true},
                                                         {false, true, false},
                                                         {false, nullptr, false}}) {
    auto json = small_part("gemma3", {{"head_dim", 8}});
    if (!whole.is_null()) json["tie_word_embeddings"] = whole;
    if (!part.is_null()) json["text_config"]["tie_word_embeddings"] = part;
    EXPECT_EQ(language_part(json).tied, tied) << whole << ", " << part;
  }
  auto json = small_part("llava");
  json["tie_word_embeddings"] = "yes";
  EXPECT_THAT(language_part_error(json), HasSubstr("tie_word_embeddings': found \"yes\", allowed: true or false"));
}

TEST(LanguagePartsDefaults, TokenIdsAndDtypeOfThePartUnlessTheWholeHasThem) {
  auto json = small_part("llava", {{"bos_token_id", 1}, {"eos_token_id", {2, 3}}, {"dtype", "bfloat16"}});
  auto part = language_part(json);
  EXPECT_THAT(part.shape.bos, ElementsAre(1));
  EXPECT_THAT(part.shape.eos, ElementsAre(2, 3));
  EXPECT_EQ(part.dtype, c10::kBFloat16);
  json["eos_token_id"] = nullptr;  // says nothing
  EXPECT_THAT(language_part(json).shape.eos, ElementsAre(2, 3));
  json["eos_token_id"] = 7, json["bos_token_id"] = 6, json["torch_dtype"] = "float16";
  part = language_part(json);
  EXPECT_THAT(part.shape.bos, ElementsAre(6));
  EXPECT_THAT(part.shape.eos, ElementsAre(7));
  EXPECT_EQ(part.dtype, c10::kHalf);
  EXPECT_EQ(
      language_part_error(small_part("llava", {{"eos_token_id", -1}})),
      "[models] m/config.json: key 'text_config.eos_token_id': found -1, allowed: a token id or a list of token ids");
}

TEST(LanguagePartsDefaults, AtTheTopMessagesHaveNoPath) {
  const auto nested = small_part("qwen2_vl", {{"hidden_size", 0}, {"num_key_value_heads", 2}});
  EXPECT_THAT(language_part_error(nested),
              StartsWith("[models] m/config.json: key 'text_config.hidden_size': found 0, allowed: an integer from 1"));
  for (const bool null : {false, true}) {
    io::Json flat = nested["text_config"];
    flat["model_type"] = "qwen2_vl";
    if (null) flat["text_config"] = nullptr;
    EXPECT_THAT(language_part_error(flat),
                StartsWith("[models] m/config.json: key 'hidden_size': found 0, allowed: an integer from 1"));
    flat["hidden_size"] = 64;
    const auto part = language_part(flat);
    EXPECT_EQ(part.type, "Qwen2VL");
    EXPECT_EQ(part.shape.hidden, 64);
    EXPECT_EQ(part.shape.context, 32768);
  }
}

TEST(LanguagePartsDefaults, OtherPartsAreRefusedByName) {
  EXPECT_EQ(language_part_error(small_part("llava", {{"model_type", "mamba"}})),
            "[models] m/config.json: key 'text_config.model_type': found \"mamba\", allowed: gemma3_text, llama, "
            "llama4_text, mistral, mllama_text_model, qwen2, qwen2_5_vl_text, qwen2_vl_text");
  for (const auto& bad : {io::Json(7), io::Json::array({"llama"}), io::Json(true)})
    EXPECT_EQ(language_part_error(small_part("llava", {{"model_type", bad}})),
              "[models] m/config.json: key 'text_config.model_type': found " + bad.dump() + ", allowed: a string");
  for (const auto& bad : {io::Json(7), io::Json::array(), io::Json("llama")})
    EXPECT_EQ(language_part_error({{"model_type", "llava"}, {"text_config", bad}}),
              "[models] m/config.json: key 'text_config': found " + bad.dump() + ", allowed: an object");
}

TEST(LanguagePartsDefaults, RowsOfTheRegistry) {
  for (const auto& family : language_parts()) {
    const auto row = model_family(family);
    EXPECT_EQ(row.model_type, family.model_type);
    EXPECT_TRUE(row.of_images);
    EXPECT_EQ(row.trainable, row.model_type != "llama4");
    EXPECT_EQ(parse_config(small_part(family.model_type,
                                      {{"num_key_value_heads", 2}, {"cross_attention_layers", io::Json::array()}}),
                           "f")
                  .family.model_type,
              family.model_type);
  }
}

}  // namespace
}  // namespace fp8::models
