// SPDX-License-Identifier: Apache-2.0
// Leaves of fp8 training and of quantized layers, whose casts, products and states no dispatcher sees: names, modules,
// bytes and flops by hand.

#include "fp8/quant/model/convert.h"
#include "fp8/transformer_engine/modules/linear.h"
#include "runtime/leaf/heard.h"
#include "support/hpu_test.h"

namespace fp8 {
namespace {

using runtime::PhaseScope;
using test::heard_of;

constexpr std::int64_t kRows = 16, kIn = 32, kOut = 48, kFlops = 2 * kRows * kIn * kOut;

te::Linear layer(const std::string& name, std::int64_t in, std::int64_t out) {
  te::LinearOptions options{.in_features = in, .out_features = out, .bias = false};
  options.name = name;
  return te::Linear(options);
}

void expect_owners(const test::HeardLeaves& found) {
  for (const auto& leaf : found.heard) EXPECT_FALSE(leaf.module.empty() && leaf.phase.empty()) << leaf.line;
}

TEST(Fp8Leaf, StepOfATrainedLayer) {
  te::Linear linear = layer("model.up", kIn, kOut);
  const auto x = torch::randn({kRows, kIn}, on_hpu()).requires_grad_();
  const auto& found = heard_of([&] {
    at::Tensor y;
    {
      const PhaseScope phase("forward");
      const te::fp8_autocast region(true, recipes::DelayedScaling::habana());
      y = linear(x);
    }
    const PhaseScope phase("backward");
    y.sum().backward();
  });
  expect_owners(found);
  found.expect_none_within_another();
  EXPECT_THAT(found.ops(), IsSupersetOf({"te::begin_forward", "te::record_amax", "te::finish_forward",
                                         "te::begin_backward", "te::finish_backward"}));
  for (const auto& leaf : found.heard) {
    EXPECT_EQ(leaf.host, leaf.op.starts_with("te::")) << leaf.line;
    if (leaf.op.starts_with("fp8::") || leaf.op.starts_with("hpu::")) {
      EXPECT_EQ(leaf.module, "model.up") << leaf.line;
    }
  }
  // y = x w^T, dx = g w, dw = g^T x: operands are codes of a byte, results f32.
  const auto products = found.of("hpu::fp8_gemm_v2");
  ASSERT_EQ(products.size(), 3U);
  std::map<bool, std::int64_t> bytes;
  for (const auto& leaf : products) {
    EXPECT_EQ(leaf.flops, kFlops);
    bytes[leaf.backward] += leaf.bytes;
  }
  constexpr std::int64_t kX = kRows * kIn, kW = kIn * kOut, kY = kRows * kOut;
  EXPECT_EQ(bytes[false], kX + kW + 4 * kY);
  EXPECT_EQ(bytes[true], (kY + kW + 4 * kX) + (kY + kX + 4 * kW));
  // x, w and g are cast once each, w and g to codes in rows and turned, and their amaxes recorded.
  std::int64_t casts = 0;
  for (const auto& leaf : found.heard) casts += leaf.op.starts_with("fp8::quantize") ? leaf.bytes : 0;
  EXPECT_EQ(casts, (4 + 1) * kX + (4 + 2) * (kW + kY));
  EXPECT_EQ(found.of("te::record_amax").size(), 3U);
}

// Recomputation runs forward within a backward node of its own: its leaves, and those of the backward that follows
// within it, belong to the layers all the same.
TEST(Fp8Leaf, RecomputedLayersKeepTheirModules) {
  te::Linear up = layer("a", kIn, kOut), down = layer("b", kOut, kIn);
  const auto x = torch::randn({kRows, kIn}, on_hpu()).requires_grad_();
  const std::function<at::Tensor(const at::Tensor&)> both = [&](const at::Tensor& t) {
    return down(torch::relu(up(t)));
  };
  const std::string path = "model";
  const auto& found = heard_of([&] {
    at::Tensor y;
    {
      const runtime::ModuleScope model(path);
      const te::fp8_autocast region(true, recipes::DelayedScaling::habana());
      y = te::checkpoint(both, x);
    }
    y.sum().backward();
  });
  found.expect_none_within_another();
  std::map<std::string, std::map<bool, int>> products;  // by module; within backward
  for (const auto& leaf : found.of("hpu::fp8_gemm_v2")) {
    EXPECT_EQ(leaf.flops, kFlops);
    ++products[leaf.module][leaf.backward];
  }
  EXPECT_EQ(products.size(), 2U);
  for (const char* name : {"a", "b"}) {
    EXPECT_EQ(products[name][false], 1) << name;
    EXPECT_EQ(products[name][true], 1 + 2) << name << ": y again, dx and dw";
  }
  for (const char* op : {"aten::relu", "aten::threshold_backward"}) {
    const auto leaves = found.of(op);
    EXPECT_EQ(leaves.size(), op == std::string("aten::relu") ? 2U : 1U) << op;
    for (const auto& leaf : leaves) EXPECT_EQ(leaf.module, "model") << op << ": of what is around the layers";
  }
  EXPECT_EQ(found.of("te::record_amax").size(), 2 * 3U) << "the second run records nothing";
}

// A quantized layer: the cast of its input and its product are the handler's, and serve the layer's path.
TEST(Fp8Leaf, ProductsAndCastsOfHandlers) {
  torch::nn::Linear linear(torch::nn::LinearOptions(kIn, kOut).bias(false));
  linear->to(test::kHpu);
  torch::nn::Sequential model;
  model->push_back("up", linear);
  quant::convert(*model, {.activations = quant::ActivationScaling::dynamic_token});
  const auto x = torch::randn({kRows, kIn}, on_hpu());
  const torch::NoGradGuard no_grad;
  const auto& found = heard_of([&] { (void)model->forward(x); });
  expect_owners(found);
  found.expect_none_within_another();
  const auto products = found.of("hpu::fp8_gemm_v2"), casts = found.of("fp8::quantize");
  ASSERT_EQ(products.size(), 1U);
  ASSERT_EQ(casts.size(), 1U);
  EXPECT_EQ(products[0].module, "up");
  EXPECT_EQ(casts[0].module, "up");
  EXPECT_EQ(products[0].flops, kFlops);
  EXPECT_EQ(products[0].bytes, kRows * kIn + kIn * kOut + 4 * kRows * kOut);
  EXPECT_EQ(casts[0].bytes, (4 + 1) * kRows * kIn + 4 * kRows) << "and a scale per row";
}

}  // namespace
}  // namespace fp8
