// SPDX-License-Identifier: Apache-2.0
// Patterns of names, the table of families, and what engines run as one product.
#include "fp8/quant/names/model_names.h"

#include "fp8/quant/names/expert_weights.h"
#include "fp8/quant/names/folded_names.h"
#include "fp8/quant/names/model_weights.h"
#include "support/enum_names.h"
#include "support/temp_dir.h"
#include "support/values.h"

namespace fp8::quant {
namespace {

using io::Json;
using Names = std::vector<std::string>;

ModelNames names_of(const char* type) { return ModelNames(Json{{"model_type", type}}); }

// Runs of whole parts; "visual.": below a part, not the part itself; "^": from the start.
TEST(NamePatterns, AreRunsOfWholeParts) {
  struct Case {
    const char* pattern;
    std::vector<const char*> matched, others;
  };
  for (const Case& c : {
           Case{"embed_in", {"gpt_neox.embed_in", "embed_in"}, {"gpt_neox.embed_in.proj", "gpt_neox.not_embed_in"}},
           Case{"mlp.gate", {"model.layers.0.mlp.gate"}, {"model.layers.0.mlp.gate_proj", "gate"}},
           Case{"layers.*.router", {"model.layers.12.router"}, {"model.layers.12.mlp.router"}},
           Case{"w*_proj", {"a.wk_proj"}, {}},
           Case{"visual.",
                {"visual.blocks.0.attn.qkv", "model.visual.proj"},
                {"model.visual", "model.visual_projection.proj"}},
           Case{"^lm_head", {"lm_head"}, {"language_model.lm_head"}},
           Case{"^encoder.", {"encoder.layers.0.fc"}, {"model.encoder.layers.0.fc"}},
       }) {
    for (const char* name : c.matched) EXPECT_TRUE(matches_pattern(c.pattern, name)) << c.pattern << " " << name;
    for (const char* name : c.others) EXPECT_FALSE(matches_pattern(c.pattern, name)) << c.pattern << " " << name;
  }
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

const std::string kExperts = "model.layers.3.block_sparse_moe.experts.";

TEST(ExpertNames, OfACheckpointHaveNamesInMemory) {
  for (const auto& [weight, list] : {std::pair("w1", "w13_list"), {"w3", "w13_list"}, {"w2", "w2_list"}}) {
    const auto expert = expert_in_memory(kExperts + "11." + weight);
    ASSERT_TRUE(expert.has_value()) << weight;
    EXPECT_EQ(expert->mixture, kExperts + "moe_op");
    EXPECT_EQ(expert->name, kExperts + "moe_op." + list + ".11");
  }
  for (const char* other : {"11", "11.w4", "x.w1", ".w1", "11.w1.weight", "moe_op.w2_list.11"})
    EXPECT_FALSE(expert_in_memory(kExperts + other).has_value()) << other;
  EXPECT_FALSE(expert_in_memory("model.layers.3.mlp.experts.11.w1").has_value());
}

TEST(ExpertNames, InMemorySayWhichExpertTheyMean) {
  const auto up = expert_weight("moe_op.w13_list.0"), down = expert_weight(kExperts + "moe_op.w2_list.127");
  ASSERT_TRUE(up.has_value() && down.has_value());
  EXPECT_TRUE(up->mixture == "moe_op" && up->expert == 0 && !up->down);
  EXPECT_TRUE(down->mixture == kExperts + "moe_op" && down->expert == 127 && down->down);
  for (const char* other : {"moe_op", "moe_op.w13_list", "moe_op.w13_list.", "moe_op.w2_list.a", "w2_list.1",
                            "moe_op.w2_list.1234567", "moe_op.w2_list.1.weight"})
    EXPECT_FALSE(expert_weight(other).has_value()) << other;
}

// Mixtral's experts: a parameter of ours is one tensor of the checkpoint, two, or a matrix of a stacked one.

const std::string kLayer = "model.layers.3", kOurs = kLayer + ".block_sparse_moe.experts.moe_op.";

/// A checkpoint that has these names and no config.json.
class Named {
 public:
  explicit Named(const std::vector<std::string>& names) {
    std::vector<io::SafetensorsWriter::Entry> entries;
    for (const auto& name : names) entries.push_back({name, io::DType::U8, {1}});
    io::SafetensorsWriter writer(folder_.path() / "model.safetensors", entries);
    for (const auto& name : names) writer.write(name, "x");
    writer.commit();
  }
  io::Checkpoint checkpoint() const { return io::Checkpoint(folder_.path()); }

 private:
  test::TempDir folder_;
};

/// What "tensor" or "tensor[index]" the parameter is made of, in a checkpoint that has these names.
std::vector<std::string> pieces(const std::string& parameter, const std::vector<std::string>& names) {
  const Named named(names);
  std::vector<std::string> result;
  for (const auto& piece : pieces_of(parameter, named.checkpoint()))
    result.push_back(piece.tensor + (piece.index ? "[" + std::to_string(*piece.index) + "]" : ""));
  return result;
}

TEST(ExpertWeights, AreWhereTheCheckpointKeepsThem) {
  for (const std::string block : {".block_sparse_moe.", ".mlp.", ".feed_forward."}) {
    const std::string experts = kLayer + block + "experts.";
    const std::vector<std::string> stacked = {experts + "gate_up_proj", experts + "down_proj"};
    const std::vector<std::string> linear = {kLayer + block + "input_linear.weight",
                                             kLayer + block + "output_linear.weight"};
    for (const auto& [gate, up, down] : {std::array{"w1", "w3", "w2"}, {"gate_proj", "up_proj", "down_proj"}}) {
      std::vector<std::string> each;
      for (const char* projection : {gate, up, down}) each.push_back(experts + "7." + projection + ".weight");
      EXPECT_THAT(pieces(kOurs + "w13_list.7.weight", each), ElementsAre(each[0], each[1]));
      EXPECT_THAT(pieces(kOurs + "w2_list.7.weight", each), ElementsAre(each[2]));
    }
    for (const auto& both : {stacked, linear}) {
      EXPECT_THAT(pieces(kOurs + "w13_list.7.weight", both), ElementsAre(both[0] + "[7]"));
      EXPECT_THAT(pieces(kOurs + "w2_list.11.weight", both), ElementsAre(both[1] + "[11]"));
    }
    const std::string gate = kLayer + block + "gate.weight";
    EXPECT_THAT(pieces(kLayer + ".block_sparse_moe.gate.weight", {gate}), ElementsAre(gate));
  }
}

TEST(ExpertWeights, OtherParametersAreTheirOwnPiece) {
  for (const std::string& name : {std::string("lm_head.weight"), kLayer + ".mlp.experts.0.w1.weight",
                                  kOurs + "w13_list.x.weight", kOurs + "w4_list.1.weight", kOurs + "w2_list.1"})
    EXPECT_THAT(pieces(name, {name}), ElementsAre(name));
}

TEST(ExpertWeights, AnErrorNamesThePerExpertForm) {
  const std::string experts = kLayer + ".block_sparse_moe.experts.";
  EXPECT_THAT(pieces(kOurs + "w13_list.2.weight", {"lm_head.weight"}),
              ElementsAre(experts + "2.gate_proj.weight", experts + "2.up_proj.weight"));
}

TEST(ExpertWeights, MeasurementsGetTheNamesOfTheCheckpoint) {
  const std::string experts = kLayer + ".block_sparse_moe.experts.";
  measure::MeasurementFile file;
  file.modules = {{"lm_head", {{2.0f}}, std::nullopt, std::nullopt},
                  {experts + "moe_op", {{3.0f}}, std::vector<measure::Amax>{{9.0f}, {4.0f}, {5.0f}}, std::nullopt},
                  {experts + "moe_op.w13_list.0", {{1.0f}}, std::nullopt, std::nullopt}};
  file.selected = {"lm_head", experts + "moe_op", experts + "moe_op.w13_list.0"};
  std::vector<std::string> names;
  for (const char* expert : {"0", "1"})
    for (const char* projection : {".w1.weight", ".w2.weight", ".w3.weight"})
      names.push_back(experts + expert + projection);
  const Named named(names);
  std::vector<std::string> warnings;
  const auto out = in_names_of_checkpoint(file, named.checkpoint(), warnings);
  EXPECT_TRUE(warnings.empty());
  std::vector<std::pair<std::string, float>> found;
  for (const auto& m : out.modules) found.emplace_back(m.module, m.inputs.at(0).at(0));
  // The mixture's outputs: its result, then each expert's activation, which w2 takes.
  EXPECT_THAT(found, ElementsAre(std::pair("lm_head", 2.0f), std::pair(experts + "0.w1", 3.0f),
                                 std::pair(experts + "0.w3", 3.0f), std::pair(experts + "0.w2", 4.0f),
                                 std::pair(experts + "1.w1", 3.0f), std::pair(experts + "1.w3", 3.0f),
                                 std::pair(experts + "1.w2", 5.0f)));
  EXPECT_THAT(out.selected, ElementsAre("lm_head", experts + "0.w1", experts + "0.w3", experts + "0.w2",
                                        experts + "1.w1", experts + "1.w3", experts + "1.w2"));
  file.modules[1].outputs->back() = {0.0f};
  const auto idle = in_names_of_checkpoint(file, named.checkpoint(), warnings);
  EXPECT_EQ(idle.modules.back().inputs.at(0).at(0), 4.0f) << "no token came to expert 1: the largest of the others";
  EXPECT_THAT(warnings, ElementsAre(::testing::HasSubstr("no token to expert 1")));
  file.modules.push_back({"vocab_projector", {{2.0f}}, std::nullopt, std::nullopt});
  names.emplace_back("vocab_projector.bias");
  EXPECT_EQ(in_names_of_checkpoint(file, Named(names).checkpoint(), warnings).modules.size(), out.modules.size())
      << "a head that is tied to the word table";
  file.modules.resize(1);
  EXPECT_EQ(in_names_of_checkpoint(file, named.checkpoint(), warnings).selected, file.selected)
      << "no mixture: as it was";
}

// Names that stand for many modules stand for exactly these.

/// `count` layers with these parts each.
Names layers(int count, const Names& parts) {
  Names names;
  for (int i = 0; i < count; ++i)
    for (const auto& part : parts) names.push_back("model.layers." + std::to_string(i) + "." + part);
  return names;
}

Names folded(const NameFolder& folder, const Names& modules) {
  Names names;
  std::size_t count = 0;
  for (const auto& f : folder.fold(modules)) {
    names.push_back(f.name);
    count += f.modules.size();
  }
  EXPECT_EQ(count, modules.size());
  return names;
}

TEST(FoldedName, PartsThatAreNumbersFold) {
  EXPECT_EQ(folded_name("model.layers.12.mlp.experts.3.w1"), "model.layers.*.mlp.experts.*.w1");
  EXPECT_EQ(folded_name("0.fc1"), "*.fc1");
  EXPECT_EQ(folded_name("lm_head"), "lm_head");
  EXPECT_EQ(folded_name("encoder.layer1.conv2"), "encoder.layer1.conv2") << "whole parts only";
  EXPECT_EQ(folded_name(""), "");
}

TEST(NameFolder, AStarIsAllLayersOfTheModel) {
  const NameFolder folder(layers(12, {"q", "k"}));
  EXPECT_THAT(folded(folder, layers(12, {"q"})), ElementsAre("model.layers.*.q"));
  EXPECT_THAT(folded(folder, {"model.layers.0.q", "model.layers.5.q", "model.layers.3.q", "model.layers.4.q"}),
              ElementsAre("model.layers.{0,3-5}.q"));
  EXPECT_THAT(folded(folder, {"model.layers.9.q", "model.layers.10.q", "model.layers.2.k"}),
              ElementsAre("model.layers.{9,10}.q", "model.layers.2.k"))
      << "in the order of numbers, not of digits";
  EXPECT_THAT(folded(folder, {"lm_head", "model.layers.2.k"}), ElementsAre("lm_head", "model.layers.2.k"));
  EXPECT_THAT(folded(folder, {}), ElementsAre());
}

TEST(NameFolder, WhatSomeLayersHaveIsNotOfAll) {
  auto all = layers(4, {"q"});
  all.push_back("model.layers.2.router");
  all.push_back("model.layers.3.router");
  EXPECT_THAT(folded(NameFolder(all), {"model.layers.2.router", "model.layers.3.router"}),
              ElementsAre("model.layers.{2,3}.router"));
}

TEST(NameFolder, ExpertsOfLayersAreProducts) {
  Names all;
  for (int e = 0; e < 3; ++e)
    for (const auto& name : layers(3, {"experts." + std::to_string(e) + ".w1"})) all.push_back(name);
  const NameFolder folder(all);
  EXPECT_THAT(folded(folder, all), ElementsAre("model.layers.*.experts.*.w1"));
  Names some = all;
  std::erase(some, "model.layers.1.experts.1.w1");
  EXPECT_THAT(folded(folder, some),
              UnorderedElementsAre("model.layers.{0,2}.experts.*.w1", "model.layers.1.experts.{0,2}.w1"));
  EXPECT_THAT(
      folded(folder, {"model.layers.1.experts.0.w1", "model.layers.1.experts.1.w1", "model.layers.1.experts.2.w1"}),
      ElementsAre("model.layers.1.experts.*.w1"));
}

TEST(NameFolder, ModulesStayInTheirOrder) {
  const auto found = NameFolder(layers(2, {"q", "k"})).fold(layers(2, {"q", "k"}));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "model.layers.*.q");
  EXPECT_EQ(found[1].modules, (Names{"model.layers.0.k", "model.layers.1.k"}));
}

// Weights, experts and routers of modules that are described, as the Python package does.

Json matrix(const char* name, const Json& sizes, int tensor = 0) { return {name, sizes, true, tensor}; }

/// A module that computes, of a class that nothing is known of.
Json module_of(const char* name, const Json& more) {
  Json module = {{"name", name}, {"class", "Own"}, {"computes", true}};
  module.update(more);
  return module;
}

Json linear(const char* name, const Json& sizes, int tensor = 0) {
  return module_of(name, {{"kind", "Linear"},
                          {"weight", "weight"},
                          {"holds", "parameter"},
                          {"parameters", {matrix("weight", sizes, tensor)}}});
}

/// "name kind", "T" after it of a transposed one; then "name: reason" of what is left.
std::vector<std::string> found_in(const Json& modules, const Json& allowlist = nullptr) {
  const Json found = weights_of_model(modules, allowlist);
  std::vector<std::string> lines;
  for (const Json& w : found["weights"])
    lines.push_back(w["name"].get<std::string>() + " " + w["kind"].get<std::string>() + (w["transposed"] ? " T" : ""));
  for (const Json& l : found["left"])
    lines.push_back(l["name"].get<std::string>() + ": " + l["reason"].get<std::string>());
  return lines;
}

/// A block: a router of `rows` beside a stack of four experts of 8 inputs.
Json mixture(int rows, const Json& experts) {
  return {module_of("", {{"children", {1, 2}}}), linear("gate", {rows, 8}), module_of("experts", experts)};
}

TEST(ModelWeights, KindsAndPlaces) {
  const Json modules = {
      module_of("", {{"children", {1, 2, 3, 4, 5}}}),
      linear("_orig_mod.up", {4, 8}),
      module_of("rnn", {{"class", "LSTM"},
                        {"is", {"recurrent"}},
                        {"parameters", {matrix("weight_ih_l0", {16, 4}), matrix("bias_ih_l0", {16})}}}),
      module_of("own", {{"parameters", {matrix("w", {4, 8}), matrix("bias_w", {4, 8}), matrix("token", {1, 1, 8})}}}),
      module_of("computed", {{"kind", "Conv2d"}, {"weight", "weight"}, {"holds", "tensor"}}),
      module_of("empty", {{"kind", "Linear"}, {"weight", "weight"}})};
  EXPECT_THAT(found_in(modules),
              ElementsAre("up Linear", "rnn.weight_ih_l0 LSTM", StartsWith("own.w: class Own is not"),
                          StartsWith("computed: its weight is no parameter")));
  const Json up = weights_of_model(modules, nullptr)["weights"][0];
  expect_values(up, {{"key", "_orig_mod.up.weight"}, {"module", 1}, {"parameter", "weight"}});
}

TEST(ModelWeights, ARouterMakesExpertsOfAStack) {
  const Json stack = {{"parameters", {matrix("gate_up_proj", {4, 8, 12}), matrix("down_proj", {4, 6, 8})}}};
  EXPECT_THAT(found_in(mixture(4, stack)),
              ElementsAre("experts.gate_up_proj MoeMatmul T", "experts.down_proj MoeMatmul T",
                          StartsWith("gate: a router chooses experts")));
  Json upright = stack;
  upright["is_transposed"] = false;
  EXPECT_THAT(found_in(mixture(8, upright)), Contains("experts.down_proj MoeMatmul"));  // up to twice as many rows
  EXPECT_THAT(found_in(mixture(9, stack)), Contains("gate Linear"));
  EXPECT_THAT(found_in(mixture(9, stack)), Contains(StartsWith("experts.down_proj: class Own")));
  Json registered = mixture(4, stack);
  registered[1]["registered"] = true;
  EXPECT_THAT(found_in(registered), IsSupersetOf({"gate Linear", "experts.down_proj MoeMatmul T"}));
}

TEST(ModelWeights, ExpertsInRowsAndOneByOne) {
  Json rows = {{"parameters", {matrix("w1", {24, 8}), matrix("w2", {24, 8})}}, {"numbers", {4, 6, 8}}};
  EXPECT_THAT(found_in(mixture(4, rows)), Contains(StartsWith("gate: a router")));
  rows["numbers"] = {4, 8};
  EXPECT_THAT(found_in(mixture(4, rows)), Contains("gate Linear"));
  Json list = mixture(2, {{"is", {"list"}}, {"children", {3, 4}}});
  for (const char* name : {"experts.0", "experts.1"}) list.push_back(linear(name, {6, 8}));
  EXPECT_THAT(found_in(list), Contains(StartsWith("gate: a router")));
  list[2]["computes"] = false;
  EXPECT_THAT(found_in(list), Contains("gate Linear"));
  list[3]["kind"] = list[4]["kind"] = "MoeMatmul";
  EXPECT_THAT(found_in(list), Contains(StartsWith("gate: a router")));
  list[1]["computes"] = false;
  EXPECT_THAT(found_in(list), Contains("gate Linear"));
}

TEST(ModelWeights, AdaptersAndParametrizations) {
  const Json modules = {module_of("", {{"children", {1}}}),
                        module_of("q", {{"kind", "Linear"}, {"adapter", true}, {"children", {2, 3, 4}}}),
                        linear("q.base_layer", {4, 8}), linear("q.lora_A", {2, 8}),
                        module_of("q.list", {{"is", {"list", "parametrization"}}, {"kind", "Linear"}})};
  EXPECT_THAT(found_in(modules), ElementsAre("q.base_layer Linear", "q.lora_A: an adapter stays in high precision"));
}

TEST(ModelWeights, WhatSharesItsTensorWithATable) {
  Json table = linear("embed", {16, 8}, 7);
  table["kind"] = "Embedding";
  const Json modules = {module_of("", {{"children", {1, 2, 3}}}), table, linear("head", {16, 8}, 7),
                        linear("up", {16, 8}, 8)};
  EXPECT_THAT(found_in(modules), ElementsAre("embed Embedding", "head Linear", "up Linear"));
  EXPECT_THAT(found_in(modules, Json::object()),
              ElementsAre("embed Embedding", "up Linear", "head: it shares its weight with embed, which reads values"));
  for (const Json& allowed : {Json{{"names", {"^emb"}}}, Json{{"types", {"Embedding"}}, {"names", nullptr}}})
    EXPECT_THAT(found_in(modules, allowed), SizeIs(3)) << allowed;
  EXPECT_THROW(found_in(Json::array({module_of("", {{"children", {1}}})})), io::Error);
}

}  // namespace
}  // namespace fp8::quant
