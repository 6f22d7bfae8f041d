// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/mlp.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

namespace fp8::models {
namespace {

double value_of(Activation activation, double x) {
  switch (activation) {
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu:
      return x * (1 + std::erf(x / std::sqrt(2))) / 2;
    case Activation::gelu_tanh:
      return x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2;
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::relu2:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::tanh:
      return std::tanh(x);
  }
  return 0;
}

constexpr Activation kAll[] = {Activation::silu, Activation::gelu,  Activation::gelu_tanh,
                               Activation::relu, Activation::relu2, Activation::tanh};

TEST(Mlp, Activations) {
  const auto x = at::linspace(-5, 5, 41);
  for (const auto activation : kAll) {
    const auto y = activate(activation, x);
    for (std::int64_t i = 0; i < 41; ++i)
      EXPECT_NEAR(y[i].item<double>(), value_of(activation, x[i].item<double>()), 2e-6);
  }
}

Mlp made(DecoderConfig& config, torch::nn::Module& parent) {
  config.shape.hidden = 6;
  Mlp mlp(config, config.mlp, parent);
  std::int64_t k = 0;
  for (const auto& item : parent.named_parameters())
    item.value().set_data(
        ((at::arange(item.value().numel(), at::kFloat) + 7 * k++) * 0.61).sin().view(item.value().sizes()));
  return mlp;
}

TEST(Mlp, GateTimesUp) {
  const at::NoGradGuard no_grad;
  const auto x = (at::arange(12, at::kFloat) * 0.3).cos().view({2, 6});
  for (const auto activation : kAll) {
    DecoderConfig separate, fused;
    for (auto* config : {&separate, &fused}) config->mlp = {.activation = activation, .inner = 5};
    fused.names.gate_up = "gate_up_proj";
    torch::nn::Module a("A"), b("B");
    auto one = made(separate, a), other = made(fused, b);
    const auto pa = a.named_parameters();
    const auto gate = at::linear(x, pa["gate_proj.weight"]), up = at::linear(x, pa["up_proj.weight"]);
    const auto expected = at::linear(activate(activation, gate) * up, pa["down_proj.weight"]);
    EXPECT_TRUE(at::allclose(one.forward(x), expected, 1e-5, 1e-6));
    auto pb = b.named_parameters();
    pb["gate_up_proj.weight"].set_data(at::cat({pa["gate_proj.weight"], pa["up_proj.weight"]}));
    pb["down_proj.weight"].set_data(pa["down_proj.weight"]);
    EXPECT_TRUE(at::allclose(other.forward(x), expected, 1e-5, 1e-6));
  }
}

TEST(Mlp, PlainWithBiases) {
  const at::NoGradGuard no_grad;
  DecoderConfig config;
  config.mlp = {.gated = false, .activation = Activation::relu, .up_bias = true, .down_bias = true, .inner = 5};
  config.names.up = "in.fc", config.names.down = "out.fc";
  torch::nn::Module parent("P");
  auto mlp = made(config, parent);
  const auto p = parent.named_parameters();
  EXPECT_EQ(p.size(), 4);
  const auto x = (at::arange(12, at::kFloat) * 0.3).cos().view({2, 6});
  const auto expected =
      at::linear(at::relu(at::linear(x, p["in.fc.weight"], p["in.fc.bias"])), p["out.fc.weight"], p["out.fc.bias"]);
  EXPECT_TRUE(at::allclose(mlp.forward(x), expected, 1e-5, 1e-6));
}

}  // namespace
}  // namespace fp8::models
