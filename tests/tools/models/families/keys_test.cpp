// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/families/keys.h"

#include "fp8/tools/models/families/families.h"
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

/// As llava-hf/llava-1.5-7b-hf and google/gemma-3-4b-it have them: what is as in transformers' classes is left out.
TEST(LanguageParts, SizesThatAreLeftOutAreTransformers) {
  const auto llava = parse({{"model_type", "llava"},
                            {"text_config", {{"model_type", "llama"}, {"vocab_size", 32064}, {"rms_norm_eps", 1e-5}}}});
  EXPECT_EQ(llava.shape.hidden, 4096);
  EXPECT_EQ(llava.shape.inner, 11008);
  EXPECT_EQ(llava.shape.kv_heads, 32);
  EXPECT_EQ(llava.shape.vocab, 32064);
  EXPECT_TRUE(llava.of_images);
  const auto gemma = parse({{"model_type", "gemma3"},
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
  const auto part = parse(json);
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
  EXPECT_TRUE(parse(json).tied);
  EXPECT_THAT(parse(json).shape.eos, ElementsAre(3, 4));
  json["eos_token_id"] = 9;
  EXPECT_THAT(parse(json).shape.eos, ElementsAre(9));
}

TEST(LanguageParts, LayersThatLookAtImagesAreAbsent) {
  io::Json json = {{"model_type", "mllama"},
                   {"text_config", {{"num_hidden_layers", 5}, {"cross_attention_layers", io::Json::array({1, 3})}}}};
  const auto part = parse(json);
  EXPECT_EQ(part.extra_words, 8);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(part.kinds[i].absent, i == 1 || i == 3) << i;
  json["text_config"]["cross_attention_layers"] = io::Json::array({5});
  EXPECT_THAT(config_error(json),
              HasSubstr("key 'text_config.cross_attention_layers': found [5], allowed: a list of integers"));
}

TEST(LanguageParts, WhatIsWrongIsNamedWithItsPath) {
  EXPECT_THAT(config_error({{"model_type", "llava"}, {"text_config", {{"model_type", "rwkv"}}}}),
              HasSubstr("key 'text_config.model_type': found \"rwkv\", allowed: gemma3_text, llama"));
  EXPECT_THAT(config_error({{"model_type", "llava"}, {"text_config", 3}}), HasSubstr("key 'text_config': found 3"));
  EXPECT_THAT(config_error({{"model_type", "llava"}, {"text_config", {{"hidden_size", "x"}}}}),
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

TEST(LanguagePartsDefaults, AnEmptyPartIsThatOfTheClass) {
  std::set<std::string> seen;
  const auto described = [&](const std::string& types) {  // "MODEL_TYPE", or "MODEL_TYPE TEXT_TYPE"
    const auto space = types.find(' ');
    io::Json json = {{"model_type", types.substr(0, space)}, {"text_config", io::Json::object()}};
    if (space != std::string::npos) json["text_config"]["model_type"] = types.substr(space + 1);
    seen.insert(json["model_type"]);
    const auto part = parse(json);
    EXPECT_EQ(part.kinds.size(), static_cast<std::size_t>(part.shape.layers));
    EXPECT_TRUE(part.of_images);
    EXPECT_EQ(part.head_type, "ForConditionalGeneration");
    EXPECT_THAT(part.shape.eos, IsEmpty());
    std::ostringstream text;
    const auto& shape = part.shape;
    text << "vocab " << shape.vocab << ", " << shape.hidden << " x " << shape.inner << ", layers " << shape.layers
         << ", heads " << shape.heads << " of " << shape.kv_heads << " x " << part.attend.head_dim << ", context "
         << shape.context << ", theta " << part.ropes.at(0).theta << ", eps " << part.norm.eps
         << (part.tied ? ", tied" : "");
    return text.str();
  };
  EXPECT_GOLDEN(described(text));
  EXPECT_EQ(seen.size(), language_parts().size());
}

TEST(LanguagePartsDefaults, WhatIsThereIsKeptAndTheRestFilledIn) {
  auto json = small_part(
      "mllama", {{"cross_attention_layers", io::Json::array()}, {"rms_norm_eps", 1e-4}, {"num_key_value_heads", 4}});
  auto part = parse(json);
  EXPECT_EQ(part.shape.hidden, 32);
  EXPECT_EQ(part.norm.eps, 1e-4);
  EXPECT_EQ(part.ropes.at(0).theta, 500000);
  EXPECT_EQ(part.shape.context, 131072);
  json["text_config"]["rope_theta"] = 1000;
  EXPECT_EQ(parse(json).ropes.at(0).theta, 1000);
  json["text_config"].erase("rope_theta");
  json["text_config"]["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 2000}};
  EXPECT_EQ(parse(json).ropes.at(0).theta, 2000);
  // null is a word of its own: as many as there are heads, as in transformers.
  EXPECT_EQ(parse(small_part("llava", {{"num_key_value_heads", nullptr}})).shape.kv_heads, 4);
  EXPECT_EQ(parse(small_part("mistral3", {{"num_key_value_heads", nullptr}})).shape.kv_heads, 4);
}

TEST(LanguagePartsDefaults, LayersOfLlama4AndOfMllama) {
  const auto llama4 = parse({{"model_type", "llama4"}, {"text_config", io::Json::object()}});
  EXPECT_EQ(llama4.moe.experts, 16);
  EXPECT_EQ(llama4.moe.top_k, 1);
  EXPECT_EQ(llama4.moe.inner, 8192);
  EXPECT_EQ(llama4.mlp.inner, 16384);
  const auto mllama = parse({{"model_type", "mllama"}, {"text_config", io::Json::object()}});
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
    EXPECT_EQ(parse(json).tied, tied) << whole << ", " << part;
  }
  auto json = small_part("llava");
  json["tie_word_embeddings"] = "yes";
  EXPECT_THAT(config_error(json), HasSubstr("tie_word_embeddings': found \"yes\", allowed: true or false"));
}

TEST(LanguagePartsDefaults, TokenIdsAndDtypeOfThePartUnlessTheWholeHasThem) {
  auto json = small_part("llava", {{"bos_token_id", 1}, {"eos_token_id", {2, 3}}, {"dtype", "bfloat16"}});
  auto part = parse(json);
  EXPECT_THAT(part.shape.bos, ElementsAre(1));
  EXPECT_THAT(part.shape.eos, ElementsAre(2, 3));
  EXPECT_EQ(part.dtype, c10::kBFloat16);
  json["eos_token_id"] = nullptr;  // says nothing
  EXPECT_THAT(parse(json).shape.eos, ElementsAre(2, 3));
  json["eos_token_id"] = 7, json["bos_token_id"] = 6, json["torch_dtype"] = "float16";
  part = parse(json);
  EXPECT_THAT(part.shape.bos, ElementsAre(6));
  EXPECT_THAT(part.shape.eos, ElementsAre(7));
  EXPECT_EQ(part.dtype, c10::kHalf);
  EXPECT_EQ(
      config_error(small_part("llava", {{"eos_token_id", -1}})),
      "[models] m/config.json: key 'text_config.eos_token_id': found -1, allowed: a token id or a list of token ids");
}

TEST(LanguagePartsDefaults, AtTheTopMessagesHaveNoPath) {
  const auto nested = small_part("qwen2_vl", {{"hidden_size", 0}, {"num_key_value_heads", 2}});
  EXPECT_THAT(config_error(nested),
              StartsWith("[models] m/config.json: key 'text_config.hidden_size': found 0, allowed: an integer from 1"));
  for (const bool null : {false, true}) {
    io::Json flat = nested["text_config"];
    flat["model_type"] = "qwen2_vl";
    if (null) flat["text_config"] = nullptr;
    EXPECT_THAT(config_error(flat),
                StartsWith("[models] m/config.json: key 'hidden_size': found 0, allowed: an integer from 1"));
    flat["hidden_size"] = 64;
    const auto part = parse(flat);
    EXPECT_EQ(part.type, "Qwen2VL");
    EXPECT_EQ(part.shape.hidden, 64);
    EXPECT_EQ(part.shape.context, 32768);
  }
}

TEST(LanguagePartsDefaults, OtherPartsAreRefusedByName) {
  EXPECT_EQ(config_error(small_part("llava", {{"model_type", "mamba"}})),
            "[models] m/config.json: key 'text_config.model_type': found \"mamba\", allowed: gemma3_text, llama, "
            "llama4_text, mistral, mllama_text_model, qwen2, qwen2_5_vl_text, qwen2_vl_text");
  for (const auto& bad : {io::Json(7), io::Json::array({"llama"}), io::Json(true)})
    EXPECT_EQ(config_error(small_part("llava", {{"model_type", bad}})),
              "[models] m/config.json: key 'text_config.model_type': found " + bad.dump() + ", allowed: a string");
  for (const auto& bad : {io::Json(7), io::Json::array(), io::Json("llama")})
    EXPECT_EQ(config_error({{"model_type", "llava"}, {"text_config", bad}}),
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
