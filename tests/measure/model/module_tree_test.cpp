// SPDX-License-Identifier: Apache-2.0
// Names, types, weights and biases of typed and scripted modules.
#include "fp8/measure/model/module_tree.h"

#include <torch/script.h>

#include "support/models_for_tests.h"

namespace fp8::measure {
namespace {

using test::hpu;

std::vector<std::string> names(const std::vector<WeightModule>& modules) {
  std::vector<std::string> out;
  for (const auto& m : modules) out.push_back(m.name + ":" + m.type);
  return out;
}

TEST(ModuleTree, ListsEveryKnownTypeInOrder) {
  torch::nn::ModuleList model(torch::nn::Conv1d(2, 3, 1), torch::nn::Conv2d(2, 3, 1), torch::nn::Conv3d(2, 3, 1),
                              torch::nn::ReLU(), torch::nn::LayerNorm(std::vector<int64_t>{4}),
                              torch::nn::Embedding(5, 4), torch::nn::Sequential(torch::nn::Linear(4, 2)));
  const auto modules = weight_modules(*model);
  EXPECT_EQ(names(modules),
            (std::vector<std::string>{"0:Conv1d", "1:Conv2d", "2:Conv3d", "5:Embedding", "6.0:Linear"}));
  EXPECT_TRUE(modules[0].bias.has_value());
  EXPECT_FALSE(modules[3].bias.has_value());
}

TEST(ModuleTree, GivesTheParametersThemselves) {
  torch::nn::Linear linear(torch::nn::LinearOptions(4, 2).bias(false));
  const auto modules = weight_modules(*linear);
  ASSERT_EQ(modules.size(), 1u);
  EXPECT_EQ(modules[0].name, "");
  EXPECT_TRUE(modules[0].weight.is_same(linear->weight));
  EXPECT_FALSE(modules[0].bias.has_value());
}

TEST(ModuleTree, ListsTiedModulesBoth) {
  auto model = test::tiny_lm();
  model->lm_head->weight = model->embed_tokens->weight;
  const auto modules = weight_modules(*model);
  EXPECT_EQ(modules.size(), 16u);
  EXPECT_EQ(modules.front().name, "embed_tokens");
  EXPECT_EQ(modules.back().name, "lm_head");
  EXPECT_TRUE(modules.front().weight.is_same(modules.back().weight));
}

TEST(ModuleTree, ReadsScriptedModules) {
  const auto model = test::script_mlp();
  const auto modules = weight_modules(model);
  EXPECT_EQ(names(modules), (std::vector<std::string>{"up:Linear", "down:Linear"}));
  EXPECT_TRUE(modules[0].bias.has_value());
  EXPECT_FALSE(modules[1].bias.has_value());
  EXPECT_TRUE(modules[0].weight.is_same(model.attr("up").toModule().attr("weight").toTensor()));
}

TEST(ModuleTree, FindsNothingWhereThereIsNothing) {
  EXPECT_TRUE(weight_modules(*torch::nn::Sequential(torch::nn::ReLU())).empty());
  torch::jit::Module bare("Linear");  // the name alone is no weight
  EXPECT_TRUE(weight_modules(bare).empty());
}

}  // namespace
}  // namespace fp8::measure
