// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: gradients and fp8 states are those without it, bit for bit, whatever the recipe, the
// nesting, what is frozen and what the function returns.
#include <torch/torch.h>

#include "fp8/transformer_engine/modules/fp8_module.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;

TEST(ActivationCheckpoint, GradientsAndScalesAreThoseWithout) {
  for (const recipes::Recipe& recipe :
       {recipes::Recipe(habana_hybrid(2)), recipes::Recipe(nvidia(3)), recipes::Recipe(recipes::CurrentScaling{})}) {
    for (const bool nested : {false, true}) {
      const Task task = mlp_task(), plain = mlp_task();
      const HPUPrecisionPlugin plugin = converted(task, recipe);
      converted(plain, recipe);
      auto net = std::dynamic_pointer_cast<MnistNetImpl>(task.model);
      const auto inner = [&](const at::Tensor& x) { return torch::dropout(torch::relu(net->fc2(x)), 0.25, true); };
      const auto outer = [&](const at::Tensor& x) {
        const at::Tensor h = torch::relu(net->fc1(x));
        return nested ? checkpoint(inner, h) : inner(h);
      };
      auto plain_net = std::dynamic_pointer_cast<MnistNetImpl>(plain.model);
      Task with = task, without = plain;
      with.forward = [&](const at::Tensor& x) { return net->fc3(checkpoint(outer, x.flatten(1))); };
      without.forward = [&](const at::Tensor& x) {
        return plain_net->fc3(
            torch::dropout(torch::relu(plain_net->fc2(torch::relu(plain_net->fc1(x.flatten(1))))), 0.25, true));
      };
      for (int step = 1; step <= 4; ++step) {
        task.model->zero_grad();
        plain.model->zero_grad();
        torch::manual_seed(step);
        const float a = backward_step(with, plugin);
        torch::manual_seed(step);
        const float b = backward_step(without, plugin);
        EXPECT_EQ(a, b);
        EXPECT_TRUE(all_same(gradients_of(*task.model), gradients_of(*plain.model)))
            << recipes::describe(recipe) << ", step " << step << ", nested " << nested;
        EXPECT_TRUE(same_state(*task.model, *plain.model));
      }
    }
  }
}

// A frozen layer between layers that learn: its operands need scales, in the first of two runs too, where nothing
// requires a gradient.
TEST(ActivationCheckpoint, FrozenLayersGetScales) {
  for (const bool checkpointed : {false, true}) {
    const Task task = mlp_task();
    const HPUPrecisionPlugin plugin = converted(task, nvidia(3));
    auto net = std::dynamic_pointer_cast<MnistNetImpl>(task.model);
    for (const auto& layer : {net->fc1, net->fc2}) {
      for (auto& p : layer->parameters()) p.requires_grad_(false);
    }
    const at::Tensor prompt = torch::zeros({64}, on_hpu()).requires_grad_(true);  // learns, before all
    const auto body = [&](const at::Tensor& x) { return torch::relu(net->fc2(torch::relu(net->fc1(x)))); };
    Task with = task;
    with.forward = [&](const at::Tensor& x) {
      const at::Tensor h = x.flatten(1) + prompt;
      return net->fc3(checkpointed ? checkpoint(body, h) : body(h));
    };
    backward_step(with, plugin);
    EXPECT_TRUE(prompt.grad().defined());
    for (const auto& [name, state] : fp8_states(*task.model)) {
      const Fp8StateValues v = state->values();
      EXPECT_EQ(v.step, 1) << name;
      EXPECT_NE(v.forward.scale[0], 1.0f) << name;
      EXPECT_NE(v.forward.scale[1], 1.0f) << name;
      EXPECT_NE(v.backward.scale[0], 1.0f) << name;
    }
    const torch::NoGradGuard no_grad;  // evaluation leaves no trace
    const auto region = plugin.forward_context();
    task.forward(task.x * 100);
    for (const auto& [name, state] : fp8_states(*task.model)) EXPECT_EQ(state->values().step, 1) << name;
  }
}

// Indices among the results have no gradient; the others do.
TEST(ActivationCheckpoint, ResultsWithoutGradient) {
  const Task task = mlp_task();
  const HPUPrecisionPlugin plugin = converted(task, habana_hybrid());
  auto net = std::dynamic_pointer_cast<MnistNetImpl>(task.model);
  const CheckpointedFunction top = [&](const std::vector<at::Tensor>& in) {
    const auto [values, indices] = net->fc1(in[0]).topk(3, 1);
    return std::vector<at::Tensor>{indices, values};
  };
  const at::Tensor x = task.x.flatten(1);
  std::vector<at::Tensor> results;
  {
    const auto region = plugin.forward_context();
    results = checkpoint(top, {x});
  }
  EXPECT_FALSE(results[0].requires_grad());
  ASSERT_TRUE(results[1].requires_grad());
  const at::Tensor loss = results[1].square().sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = net->fc1->weight.grad().clone();
  EXPECT_GT(once.abs().max().item<float>(), 0.0f);
  EXPECT_NO_THROW(loss.backward());
  EXPECT_TRUE(throws_with({"[checkpoint] backward ran twice", "retain_graph"}, [&] { results[1].sum().backward(); }));
}

}  // namespace
}  // namespace fp8::te
