// SPDX-License-Identifier: Apache-2.0
// Weights, experts and routers of modules that are described, as the Python package does.
#include "fp8/quant/names/model_weights.h"

#include "support/matchers.h"

namespace fp8::quant {
namespace {

using io::Json;

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
  EXPECT_EQ(up["key"], "_orig_mod.up.weight");
  EXPECT_EQ(up["module"], 1);
  EXPECT_EQ(up["parameter"], "weight");
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
