// SPDX-License-Identifier: Apache-2.0
// One fp8 product, forward and backward: the vendor's worked numbers, the timing of delayed scales, and what each
// recipe computes.
#include "fp8/transformer_engine/products/fp8_linear.h"

#include "fp8/transformer_engine/convert/convert_training.h"
#include "fp8/transformer_engine/modules/attention.h"
#include "fp8/transformer_engine/modules/linear.h"
#include "fp8/transformer_engine/products/fp8_weight.h"
#include "support/hpu_test.h"

namespace fp8::te {
namespace {

using recipes::DelayedScaling;
using recipes::RecipeFormat;
using torch::autograd::grad;
using Recipes = std::vector<recipes::Recipe>;
using Forward = std::function<at::Tensor(const at::Tensor&)>;

DelayedScaling habana(RecipeFormat format) {
  DelayedScaling d = DelayedScaling::habana();
  d.fp8_format = format;
  return d;
}

/// A 16x16 layer whose weights are all `w`, without bias.
Linear constant_layer(double w) {
  Linear layer(LinearOptions{.in_features = 16, .out_features = 16, .bias = false});
  const torch::NoGradGuard no_grad;
  layer->weight.fill_(w);
  return layer;
}

struct Step {
  at::Tensor y, dx, dw;
};

/// One forward and backward of x = all `x`, with loss = sum(y) * loss_scale.
Step step(Linear& layer, double x, const recipes::Recipe& recipe, double loss_scale = 1.0) {
  const at::Tensor input = torch::full({16, 16}, x, on_hpu()).requires_grad_(true);
  layer->zero_grad();
  const at::Tensor y = test::within(fp8_autocast(true, recipe), [&] { return layer(input); });
  (y.sum() * loss_scale).backward();
  return {y.detach(), input.grad(), layer->weight.grad().clone()};
}

at::Tensor all(double value) { return torch::full({16, 16}, value, on_hpu()); }

// The vendor's numbers: inputs 0.47 and weights 3.26 become 0.5 and 3.5 in E5M2, 0.46875 and 3.25 in E4M3.
TEST(Fp8Linear, RoundsAsTheVendorSays) {
  Linear e5m2 = constant_layer(3.26);
  for (int i = 0; i < 2; ++i) {
    const Step s = step(e5m2, 0.47, habana(RecipeFormat::E5M2));
    EXPECT_TRUE(same_bits(s.y, all(16 * 0.5 * 3.5)));
    EXPECT_TRUE(same_bits(s.dx, all(16 * 3.5)));
    EXPECT_TRUE(same_bits(s.dw, all(16 * 0.5)));
  }
  Linear hybrid = constant_layer(3.26);
  for (int i = 0; i < 2; ++i) {
    const Step s = step(hybrid, 0.47, habana(RecipeFormat::HYBRID));
    EXPECT_TRUE(same_bits(s.y, all(16 * 0.46875 * 3.25)));
    EXPECT_TRUE(same_bits(s.dx, all(16 * 3.5)));  // backward reads E5M2 copies
    EXPECT_TRUE(same_bits(s.dw, all(16 * 0.5)));
  }
  DelayedScaling nvidia = DelayedScaling::nvidia();
  nvidia.power_of_two_scale = true;
  Linear mixed = constant_layer(3.26);
  const Step s = step(mixed, 0.47, nvidia);
  EXPECT_TRUE(same_bits(s.dx, all(16 * 3.25)));  // backward reads the forward's codes
  EXPECT_TRUE(same_bits(s.dw, all(16 * 0.46875)));
  nvidia.override_linear_precision[2] = true;  // the weight's gradient alone is of the unrounded operands
  Linear exact = constant_layer(3.26);
  const Step e = step(exact, 0.47, nvidia);
  EXPECT_TRUE(same_bits(e.dx, s.dx));
  EXPECT_TRUE(torch::allclose(e.dw, all(16 * 0.47), 1e-6, 0));
}

// 109000 is beyond both formats: unscaled it saturates in the first step; the second step's scale fits.
TEST(Fp8Linear, SecondStepFitsWhatTheFirstSaturated) {
  for (const auto& [format, forward, backward] :
       {std::tuple(RecipeFormat::E5M2, 114688.0, 114688.0), std::tuple(RecipeFormat::HYBRID, 106496.0, 114688.0)}) {
    const double w = format == RecipeFormat::E5M2 ? 3.5 : 3.25;
    Linear layer = constant_layer(3.26);
    Step s = step(layer, 109000, habana(format));
    EXPECT_FALSE(same_bits(s.y, all(16 * forward * w)));
    EXPECT_FALSE(same_bits(s.dw, all(16 * backward)));
    EXPECT_TRUE(same_bits(s.dx, all(16 * 3.5)));
    s = step(layer, 109000, habana(format));
    EXPECT_TRUE(same_bits(s.y, all(16 * forward * w)));
    EXPECT_TRUE(same_bits(s.dw, all(16 * backward)));

    Linear heavy = constant_layer(109000);
    s = step(heavy, 0.47, habana(format));
    EXPECT_FALSE(same_bits(s.dx, all(16 * backward)));
    s = step(heavy, 0.47, habana(format));
    EXPECT_TRUE(same_bits(s.dx, all(16 * backward)));

    Linear steep = constant_layer(3.26);  // the gradient is 2^17
    s = step(steep, 0.47, habana(format), 131072);
    EXPECT_FALSE(same_bits(s.dx, all(16 * 131072.0 * 3.5)));
    s = step(steep, 0.47, habana(format), 131072);
    EXPECT_TRUE(same_bits(s.dx, all(16 * 131072.0 * 3.5)));
    EXPECT_TRUE(same_bits(s.dw, all(16 * 131072.0 * 0.5)));
  }
}

TEST(Fp8Linear, EveryRecipeIsNearTheExactProducts) {
  torch::manual_seed(3);
  const at::Tensor x0 = torch::randn({3, 37, 72}, on_hpu()), g = torch::randn({3, 37, 45}, on_hpu());
  for (const auto& recipe : Recipes{habana(RecipeFormat::HYBRID), DelayedScaling::nvidia(), recipes::CurrentScaling{},
                                    recipes::BlockScaling{}, recipes::MXFP8{}})
    for (const auto activation : {at::kFloat, at::kBFloat16}) {
      Linear layer(72, 45);
      Step fp8, exact;
      for (int i = 0; i < 3; ++i)
        for (const bool on : {false, true}) {
          const at::Tensor x = x0.detach().clone().requires_grad_(true);
          layer->zero_grad();
          at::Tensor y;
          {
            const runtime::autocast::AutocastGuard cast(at::kBFloat16, activation == at::kBFloat16);
            const fp8_autocast region(on, recipe);
            y = layer(x);
          }
          EXPECT_EQ(y.scalar_type(), activation);
          y.backward(g.to(y.scalar_type()));
          const Step found{y.detach().to(at::kFloat), x.grad(), layer->weight.grad().clone()};
          (on ? fp8 : exact) = found;
          EXPECT_EQ(layer->weight.grad().scalar_type(), at::kFloat);
          EXPECT_TRUE(torch::allclose(layer->bias.grad(), g.sum({0, 1}), 1e-2, 1e-2));
        }
      const auto error = [](const at::Tensor& a, const at::Tensor& b) {
        return ((a - b).norm() / b.norm()).item<double>();
      };
      EXPECT_LT(error(fp8.y, exact.y), 0.06) << recipes::describe(recipe);
      EXPECT_LT(error(fp8.dx, exact.dx), 0.12) << recipes::describe(recipe);
      EXPECT_LT(error(fp8.dw, exact.dw), 0.12) << recipes::describe(recipe);
    }
}

// Gradients that the first step's scale of 1 takes to zero in E5M2 (below 2^-17).
TEST(Fp8Linear, TheBiasGradientIsOfTheUnquantizedOne) {
  Linear layer(16, 8);
  const at::Tensor g = torch::full({37, 8}, 1e-6, on_hpu());
  const at::Tensor y = test::within(fp8_autocast(true, DelayedScaling::nvidia()),
                                    [&] { return layer(torch::ones({37, 16}, on_hpu())); });
  y.backward(g);
  EXPECT_EQ(layer->weight.grad().abs().max().item<float>(), 0.0f);
  EXPECT_TRUE(torch::allclose(layer->bias.grad(), torch::full({8}, 37e-6, on_hpu()), 1e-6, 0));
}

TEST(Fp8Linear, OffIsBitEqualToTorch) {
  torch::manual_seed(1);
  Linear layer(24, 40);
  const at::Tensor x = torch::randn({5, 24}, on_hpu());
  EXPECT_TRUE(same_bits(layer(x), torch::nn::functional::linear(x, layer->weight, layer->bias)));
  const fp8_autocast region(false);
  EXPECT_TRUE(same_bits(layer(x), torch::nn::functional::linear(x, layer->weight, layer->bias)));
}

// torch::nn::Linear adds its bias in place where the input has three dimensions.
TEST(Fp8Linear, ResultsMayBeChangedInPlace) {
  Linear layer(LinearOptions{.in_features = 16, .out_features = 8, .bias = false});
  const at::Tensor x = torch::randn({2, 3, 16}, on_hpu());
  at::Tensor y;
  {
    const fp8_autocast region(true, recipes::CurrentScaling{});
    y = layer(x);
    y += 1;
  }
  y.sum().backward();
  EXPECT_TRUE(layer->weight.grad().defined());
}

TEST(Fp8Linear, EmptyBatchNaNAndZeroGradient) {
  Linear layer(16, 8);
  const recipes::Recipe recipe = DelayedScaling::nvidia();
  const auto run = [&](const at::Tensor& input, double loss_scale) {
    const at::Tensor x = input.detach().requires_grad_(true);
    layer->zero_grad();
    const at::Tensor y = test::within(fp8_autocast(true, recipe), [&] { return layer(x); });
    (y.sum() * loss_scale).backward();
    return std::pair(y.detach(), x.grad());
  };
  const auto [empty, empty_grad] = run(torch::empty({0, 16}, on_hpu()), 1.0);
  EXPECT_EQ(empty.sizes(), at::IntArrayRef({0, 8}));
  EXPECT_EQ(layer->weight.grad().abs().max().item<float>(), 0.0f);
  const auto values = layer->fp8_states()[0]->values();
  EXPECT_EQ(values.forward.scale[0], 1.0f);  // nothing was seen of the input
  const at::Tensor x = torch::randn({1, 16}, on_hpu());
  run(x, 0.0);
  EXPECT_EQ(layer->weight.grad().abs().max().item<float>(), 0.0f);
  const float before = layer->fp8_states()[0]->values().forward.scale[0];
  const auto [nan, nan_grad] = run(torch::full({1, 16}, NAN, on_hpu()), 1.0);
  EXPECT_TRUE(nan.isnan().all().item<bool>());
  EXPECT_EQ(layer->fp8_states()[0]->values().forward.scale[0], before);  // it leaves no trace in the history
  const auto [inf, inf_grad] = run(torch::full({1, 16}, INFINITY, on_hpu()), 1.0);
  EXPECT_TRUE(inf.isfinite().all().item<bool>());  // saturates
  EXPECT_EQ(layer->fp8_states()[0]->values().forward.scale[0], before);
  const auto [fine, grad] = run(x, 1.0);
  EXPECT_TRUE(fine.isfinite().all().item<bool>());
}

// Recipes without a history: nothing, zeros, one row, NaN and infinities.
TEST(Fp8Linear, EdgesOfRecipesThatLookAtTheTensor) {
  for (const auto& recipe : Recipes{recipes::CurrentScaling{}, recipes::BlockScaling{}, recipes::MXFP8{}}) {
    Linear layer(16, 8);
    const auto run = [&](const at::Tensor& input, double loss_scale) {
      const at::Tensor x = input.detach().requires_grad_(true);
      layer->zero_grad();
      const at::Tensor y = test::within(fp8_autocast(true, recipe), [&] { return layer(x); });
      (y.sum() * loss_scale).backward();
      EXPECT_EQ(x.grad().sizes(), x.sizes());
      return y.detach();
    };
    const auto gradient = [&] { return layer->weight.grad().abs().max().item<float>(); };
    EXPECT_EQ(run(torch::empty({0, 16}, on_hpu()), 1.0).sizes(), at::IntArrayRef({0, 8})) << recipes::describe(recipe);
    EXPECT_EQ(gradient(), 0.0f);
    EXPECT_EQ(run(torch::zeros({1, 16}, on_hpu()), 1.0).abs().max().item<float>(), 0.0f) << recipes::describe(recipe);
    EXPECT_EQ(gradient(), 0.0f);
    EXPECT_TRUE(run(torch::full({1, 16}, NAN, on_hpu()), 1.0).isnan().all().item<bool>()) << recipes::describe(recipe);
    run(torch::full({1, 16}, INFINITY, on_hpu()), 1.0);
    EXPECT_TRUE(run(torch::randn({1, 16}, on_hpu()), 0.0).isfinite().all().item<bool>()) << recipes::describe(recipe);
    EXPECT_EQ(gradient(), 0.0f);  // of zero gradients
  }
}

// ---- edges

TEST(Fp8Linear, NothingToSumGivesTheBias) {
  for (const auto& recipe : Recipes{DelayedScaling::nvidia(), recipes::CurrentScaling{}}) {
    const auto state = std::make_shared<Fp8State>("empty", 2, 1);
    const at::Tensor x = torch::empty({2, 3, 0}, on_hpu()).requires_grad_(true),
                     w = torch::empty({5, 0}, on_hpu()).requires_grad_(true);
    const at::Tensor b = torch::arange(5, on_hpu(at::kFloat)).requires_grad_(true);
    const at::Tensor no_rows = torch::empty({0, 4}, on_hpu()).requires_grad_(true),
                     x4 = torch::ones({2, 4}, on_hpu()).requires_grad_(true);
    at::Tensor y, none;
    {
      const fp8_autocast region(true, recipe);
      y = fp8_linear(x, w, b, state);
      none = fp8_linear(x4, no_rows, std::nullopt, state);
    }
    EXPECT_TRUE(same_bits(y.detach(), b.detach().expand({2, 3, 5}).contiguous()));
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_EQ(w.grad().sizes(), w.sizes());
    EXPECT_TRUE(same_bits(b.grad(), torch::full({5}, 6.0, on_hpu())));
    EXPECT_EQ(none.sizes(), at::IntArrayRef({2, 0}));
    none.sum().backward();
    EXPECT_TRUE(same_bits(x4.grad(), torch::zeros({2, 4}, on_hpu())));
  }
}

TEST(Fp8Linear, ASecondBackwardThatThrowsLeavesNoTrace) {
  Linear layer(16, 8);
  const at::Tensor y = test::within(fp8_autocast(true, habana(RecipeFormat::HYBRID)),
                                    [&] { return layer(torch::randn({4, 16}, on_hpu())); });
  y.backward(torch::ones_like(y));
  const auto before = layer->fp8_states()[0]->values();
  EXPECT_REFUSED(y.backward(torch::full_like(y, 64.0)), "second time");
  const auto after = layer->fp8_states()[0]->values();
  EXPECT_EQ(after.backward.amax_history(0, 0), before.backward.amax_history(0, 0));
  EXPECT_EQ(after.backward.scale[0], before.backward.scale[0]);
}

TEST(Fp8Linear, NamesWhatDoesNotFit) {
  Linear layer(LinearOptions{.in_features = 16, .out_features = 8, .name = "up_proj"});
  const fp8_autocast region;
  EXPECT_REFUSED(layer(torch::zeros({2, 15}, on_hpu())), "up_proj", "found sizes [2, 15]", "[..., 16]");
  EXPECT_REFUSED(layer(torch::zeros({2, 16}, on_hpu(at::kLong))), "up_proj", "Long");
  EXPECT_REFUSED(layer(torch::zeros({2, 16})), "up_proj", "more than one device", "hpu:0 and cpu");
  const at::Tensor x = torch::ones({2, 16}, on_hpu());
  for (const at::Tensor& bias :
       {torch::ones({8}, on_hpu(at::kLong)), torch::ones({7}, on_hpu()), torch::ones({1, 8}, on_hpu())})
    EXPECT_REFUSED(fp8_linear(x, layer->weight.detach(), bias, layer->fp8_states()[0]), "up_proj",
                   "a bias of 8 elements of dtype Float, BFloat16 or Half");
  EXPECT_REFUSED(fp8_linear(x, layer->weight.detach(), torch::ones({8}), layer->fp8_states()[0]), "up_proj",
                 "more than one device");
  EXPECT_REFUSED(Linear l(LinearOptions{.in_features = 1, .out_features = 1, .parallel = {.tp_size = 2}}),
                 "[te::Linear] tp_size: found 2, allowed: 1");
  EXPECT_REFUSED(
      Linear l(LinearOptions{.in_features = 1, .out_features = 1, .parallel = {.parallel_mode = "diagonal"}}),
      "[te::Linear] parallel_mode", "diagonal", "column");
  EXPECT_REFUSED(Linear l(0, 4), "[te::Linear] in_features", "found 0");
}

// A second derivative through fp8 throws by name wherever it is asked for: backward() runs all of a graph,
// autograd::grad() and backward() with inputs only what leads to the tensors asked for, and a gradient that hangs loose
// there would be dropped in silence.

/// d loss / d of, with a graph of its own.
at::Tensor gradient(const at::Tensor& loss, const at::Tensor& of) {
  return grad({loss}, {of}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
}

/// Every way to ask for a second derivative of loss(f(x)), f of weight w.
void expect_no_second_derivative(const Forward& f, const at::Tensor& w, const std::string& name) {
  const std::vector<std::string> message = {"'" + name + "': ", "has no second derivative"};
  const at::Tensor x = torch::randn({4, 16}, on_hpu()).requires_grad_(true),
                   s = torch::ones({}, on_hpu()).requires_grad_(true);
  const auto curved = [&] { return f(x).square().sum(); };
  for (const auto& [of, by] : {std::pair(x, x), std::pair(x, w), std::pair(w, x), std::pair(w, w)}) {
    // The other term alone would be a plausible, wrong result.
    EXPECT_TRUE(throws_with(message, [&] { grad({gradient(curved(), of).square().sum() + by.square().sum()}, {by}); }));
    EXPECT_TRUE(throws_with(
        message, [&] { grad({gradient(curved(), of).square().sum()}, {by}, {}, true, false, /*allow_unused=*/true); }));
  }
  // By what the gradient that comes in depends on, and no input of f does.
  EXPECT_TRUE(throws_with(message, [&] { grad({gradient((s * f(x)).sum(), x).square().sum() + s.square()}, {s}); }));
  const auto penalized = [&] {
    const at::Tensor y = f(x);
    return y.sum() + (gradient(y.sum(), x).norm() - 1).square();
  };
  EXPECT_TRUE(throws_with(message, [&] { penalized().backward(); }));
  EXPECT_TRUE(throws_with(message, [&] { penalized().backward({}, false, false, std::vector<at::Tensor>{w}); }));
  // First derivatives are what they are without create_graph, and what does not go through f has second ones.
  const at::Tensor dx = gradient(curved(), x);
  EXPECT_TRUE(same_bits(dx.detach(), grad({curved()}, {x})[0]));
  const at::Tensor z = torch::full({}, 3.0, on_hpu()).requires_grad_(true);
  EXPECT_EQ(grad({gradient(curved() + z.pow(3), z)}, {z})[0].item<float>(), 18.0f);
}

TEST(SecondDerivative, OfAModuleThrowsByName) {
  Linear layer(LinearOptions{.in_features = 16, .out_features = 16, .name = "up_proj"});
  const auto f = [&](const at::Tensor& x) {
    const fp8_autocast region(true, recipes::CurrentScaling{});
    return layer(x);
  };
  expect_no_second_derivative(f, layer->weight, "up_proj");
}

TEST(SecondDerivative, OfAConvertedModuleThrowsByName) {
  torch::nn::Sequential model = hpu(torch::nn::Sequential(torch::nn::Linear(16, 16)));
  convert_for_training(*model);
  const auto f = [&](const at::Tensor& x) {
    const fp8_autocast region(true, recipes::DelayedScaling::nvidia());
    return model->forward(x);
  };
  expect_no_second_derivative(f, model->parameters()[0], "0");
}

TEST(SecondDerivative, OfAWeightHeldInFp8ThrowsByName) {
  Linear layer{nullptr};
  {
    const quantized_model_init init;
    layer = Linear(LinearOptions{.in_features = 16, .out_features = 16, .name = "held"});
  }
  const at::Tensor x = torch::randn({4, 16}, on_hpu()).requires_grad_(true);
  const auto loss = [&](bool fp8) {
    const fp8_autocast region(fp8, recipes::CurrentScaling{});
    return layer(x).square().sum();
  };
  const auto second = [&](bool fp8) {
    return grad({gradient(loss(fp8), x).square().sum()}, {layer->weight}, {}, true, false, /*allow_unused=*/true)[0];
  };
  EXPECT_REFUSED(second(true), "'held'", "has no second derivative");
  // With fp8 off it is the product of the decoded values, which has one.
  const at::Tensor w = fp8_weight(layer->weight)->values().detach().clone().requires_grad_(true);
  const at::Tensor plain = torch::nn::functional::linear(x, w, layer->bias).square().sum();
  EXPECT_TRUE(torch::allclose(second(false), grad({gradient(plain, x).square().sum()}, {w})[0], 1e-6, 1e-6));
}

TEST(SecondDerivative, OfAttentionThrowsByName) {
  const auto tensor = [] { return torch::randn({1, 2, 8, 16}, on_hpu()).requires_grad_(true); };
  const at::Tensor q = tensor(), k = tensor(), v = tensor();
  FusedAttention attention;
  const auto loss = [&](bool fp8) {
    const fp8_autocast region(fp8, recipes::CurrentScaling{});
    return attention(q, k, v).square().sum();
  };
  for (const bool fp8 : {true, false}) {
    const std::string name = fp8 ? "the fp8 attention of fp8::te" : "fused_sdpa";
    EXPECT_REFUSED(gradient(loss(fp8), q).square().sum().backward(), name, "no second derivative");
    for (const auto& by : {q, k, v})
      EXPECT_REFUSED(grad({gradient(loss(fp8), q).square().sum() + by.square().sum()}, {by}), name,
                     "no second derivative");
  }
}

// Its parameters are no inputs of its node: what does not run backward() of all would leave them out.
TEST(SecondDerivative, OfACheckpointedFunctionThrowsAndSoDoesAPartOfTheFirst) {
  Linear layer(16, 16);
  const at::Tensor x = torch::randn({4, 16}, on_hpu()).requires_grad_(true);
  const auto loss = [&] {
    const fp8_autocast region(true, recipes::CurrentScaling{});
    return checkpoint([&](const at::Tensor& t) { return layer(t); }, x).square().sum();
  };
  EXPECT_REFUSED(loss().backward({}, false, /*create_graph=*/true), "[checkpoint]", "no second derivative");
  EXPECT_REFUSED(grad({loss()}, {x}), "[checkpoint]", "autograd::grad()", "allowed: backward()");
  EXPECT_REFUSED(grad({loss() + layer->weight.square().sum()}, {layer->weight, x}), "[checkpoint]");
  EXPECT_REFUSED(loss().backward({}, false, false, std::vector<at::Tensor>{x}), "[checkpoint]");
  EXPECT_FALSE(layer->weight.grad().defined());
  loss().backward();
  EXPECT_TRUE(layer->weight.grad().defined());
}

}  // namespace
}  // namespace fp8::te
