// SPDX-License-Identifier: Apache-2.0
// Names that stand for many modules stand for exactly these.
#include "fp8/quant/names/folded_names.h"

#include "support/matchers.h"

namespace fp8::quant {
namespace {

using Names = std::vector<std::string>;

/// `count` layers with these parts each.
Names layers(int count, const Names& parts) {
  Names names;
  for (int i = 0; i < count; ++i) {
    for (const auto& part : parts) names.push_back("model.layers." + std::to_string(i) + "." + part);
  }
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

}  // namespace
}  // namespace fp8::quant
