// SPDX-License-Identifier: Apache-2.0
// Regions: which is in force, what they hand down, how they end, and what of them the nodes made inside keep.
#include "fp8/transformer_engine/region/fp8_autocast.h"

#include "fp8/runtime/graph/hpu_graph.h"
#include "fp8/transformer_engine/modules/attention.h"
#include "fp8/transformer_engine/modules/linear.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using recipes::DelayedScaling;

at::Tensor torch_linear(Linear& layer, const at::Tensor& x) {
  return torch::nn::functional::linear(x, layer->weight, layer->bias);
}
float input_scale(Linear& layer) { return layer->fp8_states()[0]->values().forward.scale[0]; }

TEST(Regions, TheInnermostDecidesAndInheritsTheRecipe) {
  Linear layer(16, 16);
  const at::Tensor x = torch::randn({4, 16}, on_hpu());
  EXPECT_FALSE(is_fp8_enabled());
  {
    const fp8_autocast outer(true, DelayedScaling::nvidia());
    EXPECT_TRUE(is_fp8_enabled());
    {
      const fp8_autocast off(false);
      EXPECT_FALSE(is_fp8_enabled());
      EXPECT_TRUE(same_bits(layer(x), torch_linear(layer, x)));
      const fp8_autocast on;
      EXPECT_TRUE(is_fp8_enabled());
      EXPECT_EQ(recipes::describe(current_region()->recipe()), recipes::describe(DelayedScaling::nvidia()));
    }
    EXPECT_TRUE(is_fp8_enabled());
    std::thread([] { EXPECT_FALSE(is_fp8_enabled()); }).join();  // a region is of its thread
  }
  EXPECT_FALSE(is_fp8_enabled());
}

TEST(Regions, EndWithAnExceptionWithoutMovingScales) {
  Linear layer(16, 16);
  const at::Tensor x = torch::full({4, 16}, 7.0, on_hpu());
  const auto forward = [&](bool fails) {
    const fp8_autocast outer(true, DelayedScaling::nvidia());
    const fp8_autocast inner;
    layer(x);
    if (fails) throw std::runtime_error("the user's");
  };
  EXPECT_REFUSED(forward(true), "the user's");
  EXPECT_FALSE(is_fp8_enabled());
  EXPECT_EQ(input_scale(layer), 1.0f);
  forward(false);
  EXPECT_EQ(input_scale(layer), 448.0f / 7.0f);
}

TEST(Regions, EndOutOfOrder) {
  auto outer = std::make_unique<fp8_autocast>(true), inner = std::make_unique<fp8_autocast>(false),
       innermost = std::make_unique<fp8_autocast>(true);
  outer.reset();
  EXPECT_TRUE(is_fp8_enabled());
  innermost.reset();
  EXPECT_FALSE(is_fp8_enabled());
  EXPECT_NE(current_region(), nullptr);
  inner.reset();
  EXPECT_EQ(current_region(), nullptr);
}

// What was in force at forward counts, not what is when and where backward runs.
TEST(Regions, BackwardRunsAfterThemAndOnOtherThreads) {
  const at::Tensor x0 = torch::randn({8, 16}, on_hpu());
  const auto gradient = [&](auto&& backward) {
    torch::manual_seed(2);
    Linear layer(16, 16);
    const at::Tensor x = x0.detach().clone().requires_grad_(true);
    const at::Tensor y = test::within(fp8_autocast(true, recipes::CurrentScaling{}), [&] { return layer(x); });
    backward(y.square().sum());
    return x.grad();
  };
  const at::Tensor expected = gradient([](const at::Tensor& loss) { loss.backward(); });
  EXPECT_TRUE(
      same_bits(expected, gradient([](const at::Tensor& loss) { std::thread([&] { loss.backward(); }).join(); })));
  EXPECT_TRUE(same_bits(expected, gradient([](const at::Tensor& loss) {
                          const fp8_autocast other(false);
                          loss.backward();
                        })));
  EXPECT_TRUE(same_bits(expected, gradient([](const at::Tensor& loss) {
                          const fp8_autocast other(true, recipes::MXFP8{});
                          loss.backward();
                        })));
}

TEST(Regions, AsDecorators) {
  const auto f = in_fp8_autocast(
      [](bool fails) {
        if (fails) throw std::runtime_error("the user's");
        return is_fp8_enabled() ? recipes::describe(current_region()->recipe()) : std::string();
      },
      Fp8AutocastOptions{.recipe = recipes::MXFP8{}});
  for (int call = 0; call < 2; ++call) EXPECT_EQ(f(false), recipes::describe(recipes::MXFP8{}));
  EXPECT_REFUSED(f(true), "the user's");
  EXPECT_FALSE(is_fp8_enabled());
}

TEST(Regions, CalibratingRecordsAndLeavesTheNumbers) {
  Linear layer(16, 16);
  const at::Tensor x = torch::randn({4, 16}, on_hpu());
  for (const bool calibrating : {false, true}) {
    test::within(fp8_autocast(Fp8AutocastOptions{
                     .enabled = false, .recipe = DelayedScaling::nvidia(), .calibrating = calibrating}),
                 [&] { EXPECT_TRUE(same_bits(layer(x), torch_linear(layer, x))); });
    const auto scale = layer->fp8_states()[0]->values().forward.scale;
    if (!calibrating) continue;
    EXPECT_EQ(scale[0], 448.0f / x.abs().max().item<float>());
    EXPECT_EQ(scale[1], 448.0f / layer->weight.abs().max().item<float>());
  }
}

// Interval 16 measures in steps 1, 17, ... and moves scales in 2, 18, ...
TEST(Regions, ForcedMeasurementOverrulesTheInterval) {
  DelayedScaling recipe = DelayedScaling::habana();
  recipe.interval = 16;
  const auto two_steps = [&](Linear& layer, double x, std::optional<bool> force) {
    for (int i = 0; i < 2; ++i) {
      const fp8_autocast region(Fp8AutocastOptions{.recipe = recipe, .force_measurement = force});
      const fp8_autocast inner;  // inherits it
      layer(torch::full({4, 16}, x, on_hpu()));
    }
    return input_scale(layer);
  };
  Linear layer(16, 16), never(16, 16);
  EXPECT_EQ(two_steps(layer, 1.0, std::nullopt), 32768.0f);  // 57344 / 1, the power of two below
  EXPECT_EQ(two_steps(layer, 8.0, std::nullopt), 32768.0f);
  EXPECT_EQ(two_steps(layer, 8.0, true), 4096.0f);
  EXPECT_EQ(two_steps(never, 8.0, false), 1.0f);
}

TEST(Regions, MeasurementModeIsForOutermostOnesThatSayNothing) {
  DelayedScaling recipe = DelayedScaling::habana();
  recipe.interval = 16;
  const auto two_steps = [&](Linear& layer, std::optional<bool> force) {
    for (int i = 0; i < 2; ++i) {
      const fp8_autocast region(Fp8AutocastOptions{.recipe = recipe, .force_measurement = force});
      const set_measurement_mode changes_nothing(true, false);  // the region has begun
      const fp8_autocast inner;
      layer(torch::full({4, 16}, 8.0, on_hpu()));
    }
    return input_scale(layer);
  };
  Linear layer(16, 16);
  {
    const set_measurement_mode never(/*manual=*/true, /*value=*/false);
    EXPECT_EQ(two_steps(layer, std::nullopt), 1.0f);
    {
      const set_measurement_mode by_interval(/*manual=*/false);
      Linear other(16, 16);
      EXPECT_EQ(two_steps(other, std::nullopt), 4096.0f);  // 57344 / 8, the power of two below
    }
    EXPECT_EQ(two_steps(layer, std::nullopt), 1.0f);
    std::thread([&] {
      Linear other(16, 16);
      EXPECT_EQ(two_steps(other, std::nullopt), 4096.0f);  // the mode is of its thread
    }).join();
    EXPECT_EQ(two_steps(layer, true), 4096.0f);
  }
  const set_measurement_mode always(true);
  Linear other(16, 16);
  two_steps(other, false);
  EXPECT_EQ(two_steps(other, std::nullopt), 4096.0f);  // steps 3 and 4, which the interval leaves out
}

// Graphs of fp8 training: scales move and amaxes are recorded at each replay as when the model is called.

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
  convert_for_training(*task.model, {.recipe = recipe});
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

/// Six steps of attention in fp8 with dropout: results, gradients, and the random number that comes next.
std::vector<at::Tensor> attend(const recipes::Recipe& recipe, bool recompute, std::int64_t groups, bool graphs) {
  torch::manual_seed(4);
  const at::Tensor q0 = torch::randn({2, 4, 6, 8}).to(at::kHPU), k0 = torch::randn({2, groups, 6, 8}).to(at::kHPU),
                   v0 = torch::randn({2, groups, 6, 8}).to(at::kHPU);
  FusedAttention m(FusedAttentionOptions{.attention_dropout = 0.2, .enable_recompute = recompute});
  const auto call = [&](at::TensorList x) { return std::vector<at::Tensor>{m(x[0], x[1], x[2], at::Tensor(), true)}; };
  ModuleCacher graphed{GraphFunction(call)};
  std::vector<at::Tensor> found;
  for (int i = 0; i < 6; ++i) {
    const auto leaf = [&](const at::Tensor& t) { return t.mul(1 + 0.3 * (i % 4)).requires_grad_(true); };
    const std::vector<at::Tensor> x = {leaf(q0), leaf(k0), leaf(v0)};
    at::Tensor out;
    {
      const fp8_autocast region(true, recipe);
      out = graphs ? graphed(x)[0] : call(x)[0];
    }
    out.square().sum().backward();
    found.push_back(out.detach());
    for (const at::Tensor& leaf : x) found.push_back(leaf.grad());
  }
  found.push_back(torch::rand({4}));
  if (graphs) {
    EXPECT_EQ(graphed.counts().replayed, 5);
    for (const auto& reason : graphed.refusals()) ADD_FAILURE() << reason;
  }
  return found;
}

TEST(Fp8Graph, AttentionIsReplayedWithItsDropout) {
  for (const recipes::Recipe& recipe :
       {recipes::Recipe(recipes::DelayedScaling::nvidia()), recipes::Recipe(recipes::CurrentScaling{})})
    for (const bool recompute : {false, true})
      for (const std::int64_t groups : {2, 4}) {
        SCOPED_TRACE(std::string(recipes::name_of(recipe)) + (recompute ? ", recomputed" : "") + ", " +
                     std::to_string(groups));
        const auto eager = attend(recipe, recompute, groups, false), replayed = attend(recipe, recompute, groups, true);
        for (std::size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(same_bits(eager[i], replayed[i])) << i;
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
