// SPDX-License-Identifier: Apache-2.0
// TorchScript models: scripted code, traced graphs and frozen ones compute what the typed module computes after
// conversion.
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/script.h>

#include "fp8/quant/model/convert.h"
#include "support/fp8_reference.h"
#include "support/models_for_tests.h"

namespace fp8::quant {
namespace {

using test::hpu;
using test::same_bits;
using test::throws_with;

/// The MLP of script_mlp() as typed modules, converted.
at::Tensor typed_result(const torch::jit::Module& script, const at::Tensor& x, const PlanOptions& options) {
  torch::nn::Linear up(16, 24), down(torch::nn::LinearOptions(24, 8).bias(false));
  up->to(test::kHpu), down->to(test::kHpu);
  up->weight.data().copy_(script.attr("up").toModule().attr("weight").toTensor());
  up->bias.data().copy_(script.attr("up").toModule().attr("bias").toTensor());
  down->weight.data().copy_(script.attr("down").toModule().attr("weight").toTensor());
  torch::nn::Sequential model;
  model->push_back("up", up);
  model->push_back("down", down);
  convert(*model, options);
  return down(torch::relu(up(x)));
}

TEST(ConvertScript, ScriptedModulesComputeWhatTypedOnesDo) {
  for (auto activations : {ActivationScaling::none, ActivationScaling::dynamic_token}) {
    PlanOptions o;
    o.activations = activations;
    const torch::NoGradGuard no_grad;
    auto model = test::script_mlp();
    const at::Tensor x = hpu(torch::randn({5, 16}));
    const at::Tensor expected = typed_result(model, x, o);
    const auto report = convert(model, o);
    EXPECT_EQ(report.converted.size(), 2u);
    EXPECT_EQ(model.attr("up").toModule().attr("weight").toTensor().scalar_type(), at::kFloat8_e4m3fn);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(model.forward({x}).toTensor(), expected)) << "run " << i;
  }
}

TEST(ConvertScript, FrozenAfterConversion) {
  const torch::NoGradGuard no_grad;
  auto model = test::script_mlp();
  const at::Tensor x = hpu(torch::randn({5, 16}));
  convert(model, {});
  model.eval();
  const at::Tensor expected = model.forward({x}).toTensor();
  auto frozen = torch::jit::freeze(model);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(frozen.forward({x}).toTensor(), expected)) << "run " << i;
}

/// freeze() merges constants that are equal; the codes of these are, their scales are not.
TEST(ConvertScript, FreezingKeepsWeightsApartWhoseCodesAgree) {
  const torch::NoGradGuard no_grad;
  auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const at::Tensor w = torch::randn({8, 8});
  torch::jit::Module model(c10::QualifiedName("__torch__.Pair"), unit);
  model.register_module("a", test::script_linear(hpu(w), at::Tensor(), unit));
  model.register_module("b", test::script_linear(hpu(w * 4), at::Tensor(), unit));
  model.register_attribute("training", c10::BoolType::get(), false);
  model.define("def forward(self, x):\n  return self.a.forward(x), self.b.forward(x)\n");
  convert(model, {});
  const auto modules = measure::weight_modules(model);
  ASSERT_TRUE(same_bits(test::code_bytes(modules[0].weight), test::code_bytes(modules[1].weight)));
  EXPECT_FALSE(at::equal(modules[0].weight, modules[1].weight));
  EXPECT_TRUE(at::equal(modules[0].weight, modules[0].weight));
  model.eval();
  auto frozen = torch::jit::freeze(model);
  const at::Tensor x = hpu(torch::randn({3, 8}));
  for (int i = 0; i < 3; ++i) {
    const auto y = frozen.forward({x}).toTuple()->elements();
    EXPECT_TRUE(same_bits(y[0].toTensor() * 4, y[1].toTensor()));
  }
}

TEST(ConvertScript, FrozenOrOptimizedBeforeConversionIsRefused) {
  const torch::NoGradGuard no_grad;
  auto model = test::script_mlp();
  model.eval();
  auto frozen = torch::jit::freeze(model);
  EXPECT_TRUE(
      throws_with({"[convert]", "freeze", "optimize_for_inference", "convert first"}, [&] { convert(frozen, {}); }));
}

TEST(ConvertScript, OptimizeForInferenceIsRefusedByName) {
  const torch::NoGradGuard no_grad;
  auto model = test::script_mlp();
  model.eval();
  convert(model, {});
  EXPECT_TRUE(
      throws_with({"module 'up'", "Float8_e4m3fn", "torch::jit::optimize_for_inference()", "torch::jit::freeze()"},
                  [&] { torch::jit::optimize_for_inference(model); }));
  EXPECT_TRUE(throws_with({"module 'up'", "transposed copy"},
                          [&] { measure::weight_modules(model)[0].weight.t().contiguous(); }));
  EXPECT_EQ(measure::weight_modules(model)[0].weight.t().cpu().sizes(),
            (std::vector<std::int64_t>{16, 24}));  // the host may look at codes
}

/// A traced module as Python's torch.jit.trace makes it: ops recorded with the weights as attributes.
TEST(ConvertScript, TracedGraphsMeetTheHandler) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(9);
  auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module conv(c10::QualifiedName("__torch__.torch.nn.modules.conv.Conv2d"), unit);
  conv.register_parameter("weight", hpu(torch::randn({6, 3, 3, 3})), false);
  conv.register_parameter("bias", hpu(torch::randn({6})), false);
  conv.register_attribute("training", c10::BoolType::get(), false);
  conv.define(
      "def forward(self, x):\n  return torch._convolution(x, self.weight, self.bias, [2, 2], [1, 1], [1, 1], False, "
      "[0, 0], 1, False, False, True, True)\n");
  torch::nn::Conv2d typed(torch::nn::Conv2dOptions(3, 6, 3).stride(2).padding(1));
  typed->to(test::kHpu);
  typed->weight.data().copy_(conv.attr("weight").toTensor());
  typed->bias.data().copy_(conv.attr("bias").toTensor());
  torch::nn::Sequential holder(typed);
  convert(*holder, {});
  torch::jit::Module root(c10::QualifiedName("__torch__.Root"), unit);
  root.register_module("conv", conv);
  root.register_attribute("training", c10::BoolType::get(), false);
  root.define("def forward(self, x):\n  return self.conv.forward(x)\n");
  EXPECT_EQ(convert(root, {}).converted.at(0).type, "Conv2d");
  const at::Tensor x = hpu(torch::randn({2, 3, 8, 8}));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(root.forward({x}).toTensor(), typed(x)));
}

}  // namespace
}  // namespace fp8::quant
