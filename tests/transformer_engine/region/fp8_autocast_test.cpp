// SPDX-License-Identifier: Apache-2.0
// Regions: which is in force, what they hand down, how they end, and what of them the nodes made inside keep.
#include "fp8/transformer_engine/region/fp8_autocast.h"

#include "fp8/transformer_engine/modules/linear.h"
#include "support/hpu_test.h"

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

}  // namespace
}  // namespace fp8::te
