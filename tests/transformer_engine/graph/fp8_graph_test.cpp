// SPDX-License-Identifier: Apache-2.0
// Graphs of fp8 training: scales move and amaxes are recorded at each replay as when the model is called.
#include "fp8/runtime/graph/hpu_graph.h"
#include "fp8/runtime/graph/module_cacher.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;  // NOLINT: these are its tests
using runtime::GraphFunction;
using runtime::ModuleCacher;

std::vector<recipes::Recipe> shipped_recipes() {
  return {recipes::DelayedScaling::habana(), habana_hybrid(),         recipes::DelayedScaling::nvidia(),
          recipes::CurrentScaling{},         recipes::BlockScaling{}, recipes::MXFP8{}};
}

struct Outcome {
  std::vector<at::Tensor> values;
  std::string state;
  std::int64_t replayed = 0;
};

enum class How { eager, module, step };

/// Twelve steps of SGD: loss and parameters, and the state of all products.
Outcome train(const recipes::Recipe& recipe, How how) {
  auto task = mlp_task();
  TrainingOptions options;
  options.recipe = recipe;
  convert_for_training(*task.model, options);
  ModuleCacher graphed(GraphFunction([&](at::TensorList x) { return std::vector<at::Tensor>{task.forward(x[0])}; }));
  const auto parameters = task.model->parameters();
  for (auto p : parameters) p.mutable_grad() = torch::zeros_like(p);
  const at::Tensor x = task.x.clone();
  const auto step = [&] {
    for (auto& p : parameters) p.grad().zero_();
    at::Tensor logits;
    {
      const fp8_autocast region(true, recipe);
      logits = how == How::module ? graphed(x) : task.forward(x);
    }
    const auto loss = torch::cross_entropy_loss(logits, task.labels);
    loss.backward();
    const at::NoGradGuard no_grad;
    for (auto p : parameters) p.sub_(p.grad(), 0.05);
    return loss.detach();
  };
  Outcome outcome;
  runtime::HPUGraph graph;
  at::Tensor loss;
  for (int i = 0; i < 12; ++i) {
    x.copy_(task.x * (1 + 0.3 * (i % 4)));
    if (how != How::step || i < 2) {
      loss = step();
    } else if (i == 2) {
      const runtime::GraphCapture capture(graph);
      loss = step();
    } else {
      graph.replay();
      ++outcome.replayed;
    }
    outcome.values.push_back(loss.clone());
  }
  if (how == How::module) outcome.replayed = graphed.counts().replayed;
  for (const auto& reason : graphed.refusals()) ADD_FAILURE() << reason;
  for (const auto& p : parameters) outcome.values.push_back(p);
  for (const auto& product : fp8_states(*task.model)) {
    const auto values = product.state->values();
    outcome.state += product.name + " step " + std::to_string(values.step) + " " + values.recipe;
    for (const auto* meta : {&values.forward, &values.hybrid, &values.backward})
      for (const float scale : meta->scale) outcome.state += " " + std::to_string(scale);
    for (const float amax : values.amax_seen) outcome.state += " " + std::to_string(amax);
    outcome.state += "\n";
  }
  return outcome;
}

TEST(Fp8Graph, TrainsToTheSameBitsInAllRecipes) {
  for (const auto& recipe : shipped_recipes()) {
    SCOPED_TRACE(recipes::describe(recipe));
    const auto eager = train(recipe, How::eager);
    for (const How how : {How::module, How::step}) {
      const auto graphed = train(recipe, how);
      ASSERT_EQ(graphed.values.size(), eager.values.size());
      for (std::size_t i = 0; i < eager.values.size(); ++i)
        EXPECT_TRUE(same_bits(eager.values[i], graphed.values[i])) << i;
      EXPECT_EQ(eager.state, graphed.state);
      EXPECT_EQ(graphed.replayed, how == How::module ? 11 : 9);
    }
  }
}

TEST(Fp8Graph, ARegionIsAKindOfCall) {
  auto task = mlp_task();
  convert_for_training(*task.model);
  ModuleCacher graphed(GraphFunction([&](at::TensorList x) { return std::vector<at::Tensor>{task.forward(x[0])}; }));
  const at::NoGradGuard no_grad;
  const auto call = [&](bool enabled) {
    const fp8_autocast region(enabled);
    return graphed(task.x);
  };
  const auto fp8 = call(true), high = call(false);
  EXPECT_FALSE(fp8.equal(high));
  EXPECT_TRUE(call(false).equal(high));
  EXPECT_EQ(graphed.counts().captured, 2);
  EXPECT_EQ(graphed.counts().replayed, 1);
}

}  // namespace
}  // namespace fp8::te
