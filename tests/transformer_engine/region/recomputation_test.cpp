// SPDX-License-Identifier: Apache-2.0
// Recomputation by code that knows nothing of fp8, and by the operators for it: gradients and states are those without
// it.
#include "fp8/transformer_engine/region/recomputation.h"

#include "fp8/transformer_engine/modules/attention.h"
#include "fp8/transformer_engine/modules/layer_norm.h"
#include "support/operator_call.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;
using Part = std::function<at::Tensor(const at::Tensor&)>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Frees its run, as a Python object does when it goes.
struct Run : torch::CustomClassHolder {
  const std::int64_t number = call_fp8("checkpoint_begin", {}).toInt();
  ~Run() override { call_fp8("checkpoint_free", {number}); }
};

/// What torch.utils.checkpoint(use_reentrant=True) does, and everybody who writes his own. operators: with
/// fp8::checkpoint_* around the runs.
struct Again : torch::autograd::Function<Again> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Part* part, bool operators) {
    context->save_for_backward({x});
    context->saved_data["part"] = reinterpret_cast<std::int64_t>(part);
    if (!operators) return (*part)(x).detach();
    const auto run = c10::make_intrusive<Run>();
    context->saved_data["run"] = c10::IValue::make_capsule(run);
    const at::Tensor y = (*part)(x).detach();
    call_fp8("checkpoint_end", {run->number});
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& part = *reinterpret_cast<const Part*>(context->saved_data["part"].toInt());
    const at::AutoGradMode on(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    const bool operators = context->saved_data.count("run") != 0;
    const std::int64_t run =
        operators ? c10::static_intrusive_pointer_cast<Run>(context->saved_data["run"].toCapsule())->number : 0;
    if (operators) call_fp8("checkpoint_again", {run});
    const at::Tensor y = part(x);
    if (operators) call_fp8("checkpoint_end", {run});
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

const std::vector<recipes::Recipe>& recomputed_recipes() {
  static const std::vector<recipes::Recipe> all = {habana_hybrid(2), recipes::DelayedScaling::habana(), nvidia(3),
                                                   recipes::CurrentScaling{}, recipes::MXFP8{}};
  return all;
}

TEST(RecomputationByOthers, GradientsAndScalesAreThoseWithout) {
  for (const recipes::Recipe& recipe : recomputed_recipes())
    for (const auto& [nested, operators] :
         std::vector<std::pair<bool, bool>>{{false, false}, {true, false}, {false, true}, {true, true}}) {
      const Task task = mlp_task(), plain = mlp_task();
      const HPUPrecisionPlugin plugin = converted(task, recipe);
      converted(plain, recipe);
      const auto net = std::dynamic_pointer_cast<MnistNetImpl>(task.model),
                 plain_net = std::dynamic_pointer_cast<MnistNetImpl>(plain.model);
      const Part inner = [&](const at::Tensor& x) { return torch::relu(net->fc2(x)); };
      const Part outer = [&](const at::Tensor& x) {
        const at::Tensor h = torch::relu(net->fc1(x));
        return nested ? Again::apply(h, &inner, operators) : inner(h);
      };
      const auto input = [](const Task& t) { return t.x.flatten(1).detach().clone().requires_grad_(true); };
      Task with = task, without = plain;
      with.forward = [&](const at::Tensor&) { return net->fc3(Again::apply(input(task), &outer, operators)); };
      without.forward = [&](const at::Tensor&) { return plain_net->forward(input(plain)); };
      for (int step = 1; step <= 4; ++step) {
        task.model->zero_grad();
        plain.model->zero_grad();
        const std::string where = recipes::describe(recipe) + ", step " + std::to_string(step) +
                                  (nested ? ", nested" : "") + (operators ? ", operators" : "");
        EXPECT_EQ(backward_step(with, plugin), backward_step(without, plugin)) << where;
        EXPECT_TRUE(all_same(gradients_of(*task.model), gradients_of(*plain.model))) << where;
        EXPECT_TRUE(same_state(*task.model, *plain.model)) << where;
      }
    }
}

TEST(RecomputationByOthers, BackwardTwiceIsOnePass) {
  for (const recipes::Recipe& recipe : recomputed_recipes()) {
    const Task task = mlp_task(), plain = mlp_task();
    const HPUPrecisionPlugin plugin = converted(task, recipe);
    converted(plain, recipe);
    const auto net = std::dynamic_pointer_cast<MnistNetImpl>(task.model);
    const Part part = [&](const at::Tensor& x) { return net->forward(x); };
    for (int step = 1; step <= 3; ++step) {
      const at::Tensor x = task.x.detach().clone().requires_grad_(true);
      for (const Task& t : {task, plain}) {
        const at::Tensor loss = test::within(plugin.forward_context(), [&] {
          return loss_of(t, t.model == task.model ? Again::apply(x, &part, false) : t.forward(t.x));
        });
        loss.backward({}, /*retain_graph=*/true);
        loss.backward();
      }
      EXPECT_TRUE(all_same(gradients_of(*task.model), gradients_of(*plain.model)))
          << recipes::describe(recipe) << ", step " << step;
      EXPECT_TRUE(same_state(*task.model, *plain.model)) << recipes::describe(recipe) << ", step " << step;
    }
  }
}

// Microbatches whose backward passes come later: each second run multiplies what its own first run did.
TEST(RecomputationByOthers, SecondRunsFindTheirOwnFirst) {
  const Task task = mlp_task();
  const HPUPrecisionPlugin plugin = converted(task, recipes::DelayedScaling::habana());
  const auto net = std::dynamic_pointer_cast<MnistNetImpl>(task.model);
  std::vector<at::Tensor> seen;
  const Part part = [&](const at::Tensor& x) {
    at::Tensor y = net->fc2(torch::relu(net->fc1(x)));
    seen.push_back(y.detach());
    return y;
  };
  for (const double size : {1.0, 8.0, 0.125}) {
    seen.clear();
    std::vector<at::Tensor> losses;
    for (int i = 0; i < 3; ++i) {
      const auto region = plugin.forward_context();
      const at::Tensor x = (task.x.flatten(1) * (size * (i + 1))).detach().requires_grad_(true);
      losses.push_back(Again::apply(x, &part, false).square().mean());
    }
    for (const int i : {1, 0, 2}) losses[static_cast<std::size_t>(i)].backward();
    ASSERT_EQ(seen.size(), 6u);
    EXPECT_TRUE(same_bits(seen[3], seen[1]));
    EXPECT_TRUE(same_bits(seen[4], seen[0]));
    EXPECT_TRUE(same_bits(seen[5], seen[2]));
  }
}

TEST(RecomputationByOthers, OutsideOfRegionsStaysInHighPrecision) {
  const Task task = mlp_task(), plain = mlp_task();
  const HPUPrecisionPlugin plugin = converted(task, nvidia(3));
  const auto net = std::dynamic_pointer_cast<MnistNetImpl>(task.model);
  const Part part = [&](const at::Tensor& x) { return net->forward(x); };
  const at::Tensor x = task.x.detach().clone().requires_grad_(true);
  const auto train_high = [&] {
    task.model->zero_grad();
    plain.model->zero_grad();
    const at::Tensor a = loss_of(task, Again::apply(x, &part, false)), b = loss_of(plain, plain.forward(plain.x));
    {
      const torch::NoGradGuard no_grad;  // between forward and backward: an evaluation in fp8
      const auto region = plugin.forward_context();
      task.forward(task.x);
    }
    a.backward();
    b.backward();
    return all_same(gradients_of(*task.model), gradients_of(*plain.model));
  };
  EXPECT_TRUE(train_high());
  Task with = task;
  with.forward = [&](const at::Tensor&) { return Again::apply(x, &part, false); };
  backward_step(with, plugin);
  for (const auto& [name, state] : fp8_states(*task.model)) EXPECT_EQ(state->values().step, 1) << name;
  EXPECT_TRUE(train_high());
  for (const auto& [name, state] : fp8_states(*task.model)) EXPECT_EQ(state->values().step, 1) << name;
}

TEST(RecomputationByOthers, ModulesOfTransformerEngineToo) {
  for (const auto& [recipe, keep] : std::vector<std::pair<recipes::Recipe, bool>>{
           {nvidia(2), false}, {recipes::CurrentScaling{}, false}, {nvidia(2), true}}) {
    std::vector<std::vector<at::Tensor>> runs;
    for (const bool again : {false, true}) {
      torch::manual_seed(3);
      LayerNormMLP mlp(LayerNormMLPOptions{.hidden_size = 32, .ffn_hidden_size = 64});
      DotProductAttention attention(DotProductAttentionOptions{.num_attention_heads = 2,
                                                               .kv_channels = 16,
                                                               .attention_dropout = 0.0,
                                                               .qkv_format = "bshd",
                                                               .fp8_dpa = true});
      mlp->fp8_states()[0]->keep_high_precision(keep);
      const Part part = [&](const at::Tensor& x) {
        const at::Tensor h = mlp->forward(x).reshape({x.size(0), x.size(1), 2, 16});
        return attention->forward(h, h, h);
      };
      std::vector<at::Tensor> seen;
      for (int step = 0; step < 3; ++step) {
        mlp->zero_grad();
        torch::manual_seed(step);  // attention draws a seed in each run
        const at::Tensor x = hpu(torch::randn({2, 8, 32})).requires_grad_(true);
        const at::Tensor y =
            test::within(fp8_autocast(true, recipe), [&] { return again ? Again::apply(x, &part, false) : part(x); });
        y.square().mean().backward();
        seen.push_back(y.detach());
        seen.push_back(x.grad());
        for (const auto& g : gradients_of(*mlp)) seen.push_back(g);
      }
      runs.push_back(seen);
    }
    EXPECT_TRUE(all_same(runs[0], runs[1])) << recipes::describe(recipe);
  }
}

// Its first run kept gradients on: nobody can say which forward pass it repeats.
TEST(RecomputationByOthers, UnknownOnesAreRefusedByName) {
  const Task task = mlp_task();
  const HPUPrecisionPlugin plugin = converted(task, nvidia(3));
  const auto net = std::dynamic_pointer_cast<MnistNetImpl>(task.model);
  const at::Tensor x = task.x.flatten(1).detach().clone().requires_grad_(true);
  const at::Tensor y = test::within(plugin.forward_context(), [&] { return net->fc1(x); });
  y.register_hook([&](const at::Tensor& g) {
    const at::AutoGradMode on(true);
    net->fc1(x);
    return g;
  });
  EXPECT_REFUSED(y.sum().backward(), "'fc1'", "runs again in backward", "fp8::checkpoint_begin", "te::checkpoint()");
}

TEST(CheckpointOperators, RunsEndInnermostFirstAndAreForgotten) {
  const auto begin = [] { return call_fp8("checkpoint_begin", {}).toInt(); };
  const auto outer = begin(), inner = begin();
  EXPECT_REFUSED(call_fp8("checkpoint_end", {outer}), "fp8::checkpoint_end", "run", std::to_string(outer), "innermost");
  EXPECT_REFUSED(call_fp8("checkpoint_again", {inner}), "fp8::checkpoint_again", "going on");
  EXPECT_REFUSED(call_fp8("checkpoint_free", {inner}), "fp8::checkpoint_free", "going on");
  call_fp8("checkpoint_end", {inner});
  call_fp8("checkpoint_end", {outer});
  EXPECT_REFUSED(call_fp8("checkpoint_end", {outer}), "fp8::checkpoint_end", "not going on");
  for (const auto run : {outer, inner}) call_fp8("checkpoint_free", {run});
  EXPECT_REFUSED(call_fp8("checkpoint_again", {inner}), "fp8::checkpoint_again", "run", "open are none");
  EXPECT_EQ(current_region(), nullptr);
}

// Activation checkpointing: gradients and fp8 states are those without it, bit for bit, whatever the recipe, the
// nesting, what is frozen and what the function returns.

TEST(ActivationCheckpoint, GradientsAndScalesAreThoseWithout) {
  for (const auto& recipe : Recipes{habana_hybrid(2), nvidia(3), recipes::CurrentScaling{}})
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

// A frozen layer between layers that learn: its operands need scales, in the first of two runs too, where nothing
// requires a gradient.
TEST(ActivationCheckpoint, FrozenLayersGetScales) {
  for (const bool checkpointed : {false, true}) {
    const Task task = mlp_task();
    const HPUPrecisionPlugin plugin = converted(task, nvidia(3));
    auto net = std::dynamic_pointer_cast<MnistNetImpl>(task.model);
    for (const auto& layer : {net->fc1, net->fc2})
      for (auto& p : layer->parameters()) p.requires_grad_(false);
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
  test::within(plugin.forward_context(), [&] { results = checkpoint(top, {x}); });
  EXPECT_FALSE(results[0].requires_grad());
  ASSERT_TRUE(results[1].requires_grad());
  const at::Tensor loss = results[1].square().sum();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_GT(net->fc1->weight.grad().abs().max().item<float>(), 0.0f);
  EXPECT_NO_THROW(loss.backward());
  EXPECT_REFUSED(results[1].sum().backward(), "[checkpoint] backward ran twice", "retain_graph");
}

}  // namespace
}  // namespace fp8::te
