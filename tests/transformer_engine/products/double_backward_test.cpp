// SPDX-License-Identifier: Apache-2.0
// A second derivative through fp8 throws by name wherever it is asked for: backward() runs all of a graph,
// autograd::grad() and backward() with inputs only what leads to the tensors asked for, and a gradient that hangs loose
// there would be dropped in silence.
#include <torch/torch.h>

#include "fp8/transformer_engine/convert/convert_training.h"
#include "fp8/transformer_engine/modules/attention.h"
#include "fp8/transformer_engine/modules/fp8_module.h"
#include "fp8/transformer_engine/modules/linear.h"
#include "fp8/transformer_engine/products/fp8_weight.h"
#include "support/hpu_test.h"

namespace fp8::te {
namespace {

using test::kHpu;
using test::on_hpu;
using test::same_bits;
using test::throws_with;
using torch::autograd::grad;
using Forward = std::function<at::Tensor(const at::Tensor&)>;

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
  torch::nn::Sequential model(torch::nn::Linear(16, 16));
  model->to(kHpu);
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
  EXPECT_TRUE(throws_with({"'held'", "has no second derivative"}, [&] { second(true); }));
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
    EXPECT_TRUE(throws_with({name, "no second derivative"}, [&] { gradient(loss(fp8), q).square().sum().backward(); }));
    for (const auto& by : {q, k, v})
      EXPECT_TRUE(throws_with({name, "no second derivative"},
                              [&] { grad({gradient(loss(fp8), q).square().sum() + by.square().sum()}, {by}); }));
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
  EXPECT_TRUE(throws_with({"[checkpoint]", "no second derivative"},
                          [&] { loss().backward({}, false, /*create_graph=*/true); }));
  EXPECT_TRUE(throws_with({"[checkpoint]", "autograd::grad()", "allowed: backward()"}, [&] { grad({loss()}, {x}); }));
  EXPECT_TRUE(
      throws_with({"[checkpoint]"}, [&] { grad({loss() + layer->weight.square().sum()}, {layer->weight, x}); }));
  EXPECT_TRUE(throws_with({"[checkpoint]"}, [&] { loss().backward({}, false, false, std::vector<at::Tensor>{x}); }));
  EXPECT_FALSE(layer->weight.grad().defined());
  loss().backward();
  EXPECT_TRUE(layer->weight.grad().defined());
}

}  // namespace
}  // namespace fp8::te
