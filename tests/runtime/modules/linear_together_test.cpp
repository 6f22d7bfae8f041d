// SPDX-License-Identifier: Apache-2.0
// Linears of one input in high precision: the bits that each gives, together only where each would be our own product
// of few rows. Of converted ones: tests/quant/handlers/linear_together_test.cpp.
#include "fp8/runtime/modules/linear_together.h"

#include <torch/csrc/jit/frontend/tracer.h>

#include "fp8/runtime/dispatch/own_ops.h"
#include "fp8/runtime/leaf/leaf.h"
#include "support/hpu_test.h"
#include "support/values.h"

namespace fp8::runtime {
namespace {

std::vector<torch::nn::Linear> linears(const std::vector<std::int64_t>& rows, bool bias, at::ScalarType dtype) {
  torch::manual_seed(5);
  std::vector<torch::nn::Linear> made;
  for (const std::int64_t n : rows) {
    made.emplace_back(torch::nn::LinearOptions(1024, n).bias(bias));
    made.back()->to(dtype);
    made.back()->to(test::kHpu);
  }
  return made;
}

bool go_together(const at::Tensor& x, const std::vector<torch::nn::Linear>& all) {
  auto weights = collected(all, [](const auto& linear) { return linear->weight; });
  return !few_rows_products(x, weights).empty();
}

void expect_each(const at::Tensor& x, const std::vector<torch::nn::Linear>& all) {
  const auto y = linear_together(x, all);
  ASSERT_EQ(y.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    torch::nn::Linear linear = all[i];
    EXPECT_TRUE(same_bits(y[i], linear->forward(x))) << i << ", x " << x.sizes();
  }
}

TEST(LinearTogetherInBf16, GivesTheBitsOfEach) {
  const torch::NoGradGuard no_grad;
  for (const bool bias : {false, true}) {
    const auto large = linears({512, 640, 513}, bias, at::kBFloat16), mixed = linears({512, 16}, bias, at::kBFloat16);
    for (const std::vector<std::int64_t>& sizes :
         {std::vector<std::int64_t>{1, 1, 1024}, {2, 1, 1024}, {1, 3, 1024}, {2, 1024}, {1024}, {0, 1, 1024}}) {
      const at::Tensor x = hpu(torch::randn(sizes).to(at::kBFloat16));
      const std::int64_t rows = x.numel() / 1024;
      EXPECT_EQ(go_together(x, large), x.dim() > 1 && (rows == 1 || rows == 2)) << x.sizes();
      EXPECT_FALSE(go_together(x, mixed));
      expect_each(x, large);
      expect_each(x, mixed);
    }
  }
}

TEST(LinearTogetherInBf16, OtherTypesAndDevicesGoOneByOne) {
  const torch::NoGradGuard no_grad;
  const auto f32 = linears({512, 640}, true, at::kFloat), bf16 = linears({512, 640}, true, at::kBFloat16);
  expect_each(hpu(torch::randn({1, 1, 1024})), f32);
  expect_each(hpu(torch::randn({1, 1024, 1}).to(at::kBFloat16).transpose(1, 2)), bf16);
  for (auto linear : bf16) linear->to(at::kCPU);
  expect_each(torch::randn({1, 1, 1024}).to(at::kBFloat16), bf16);
  expect_each(hpu(torch::randn({1, 1, 1024})), {f32[0]});
  EXPECT_TRUE(linear_together(hpu(torch::randn({1, 1, 1024})), {}).empty());
}

TEST(LinearTogetherInBf16, GradientsAreThoseOfEach) {
  const auto all = linears({512, 640}, true, at::kBFloat16);
  const at::Tensor x = hpu(torch::randn({1, 1, 1024}).to(at::kBFloat16));
  const auto y = linear_together(x, all);
  EXPECT_TRUE(y[0].requires_grad());
  (y[0].sum() + y[1].sum()).backward();
  for (const auto& linear : all) {
    ASSERT_TRUE(linear->weight.grad().defined());
    EXPECT_TRUE(same_bits(linear->weight.grad()[3], x[0][0]));
  }
}

struct Modules final : LeafListener {
  std::vector<std::string> seen;
  void leaf_begins(const LeafRecord& leaf) override {
    if (!leaf.module.empty()) seen.push_back(std::string(leaf.module) + " " + std::string(leaf.op));
  }
};

/// Answers for several at once, and counts how often.
struct Together final : OpHandler, TogetherHandler {
  int calls = 0;
  std::vector<std::string> alone;  ///< modules

  at::Tensor linear(const LinearCall& call) override {
    alone.push_back(call.tag.module_names());
    return call.original();
  }
  at::Tensor convolution(const ConvolutionCall& call) override { return call.original(); }
  at::Tensor dequantize(const WeightTag&, const WeightView&, const at::Tensor& weight) override { return weight; }
  bool owns_values() const override { return false; }
  TogetherHandler* together() override { return this; }
  std::string describe() const override { return "counted"; }
  std::vector<at::Tensor> linear_together(const at::Tensor& x, at::ArrayRef<WholeWeight> weights) override {
    ++calls;
    std::vector<at::Tensor> results;
    for (const auto& w : weights) results.push_back(at::zeros({x.size(0), x.size(1), w.weight.size(0)}, x.options()));
    return results;
  }
};

TEST(LinearTogether, WhoeverListensSeesEach) {
  const torch::NoGradGuard no_grad;
  const auto all = linears({512, 640}, false, at::kBFloat16);
  const auto handler = std::make_shared<Together>();
  const at::Tensor x = hpu(torch::randn({1, 1, 1024}).to(at::kBFloat16));
  tag_weight(all[0]->weight, "q", handler);
  tag_weight(all[1]->weight, "k", handler);
  EXPECT_EQ(linear_together(x, all).size(), 2u);
  EXPECT_EQ(handler->calls, 1);
  EXPECT_TRUE(handler->alone.empty());
  Modules modules;
  test::within(Listening(modules), [&] { linear_together(x, all); });
  EXPECT_EQ(modules.seen, (std::vector<std::string>{"q aten::mm", "k aten::mm"}));
  EXPECT_EQ(handler->alone, (std::vector<std::string>{"q", "k"}));
  const auto callback = at::addThreadLocalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; }));
  linear_together(x, all);
  at::removeCallback(callback);
  EXPECT_EQ(handler->alone.size(), 4u);
  EXPECT_EQ(handler->calls, 1);
}

TEST(LinearTogether, ATraceHasEach) {
  const torch::NoGradGuard no_grad;
  auto all = linears({512, 640}, false, at::kBFloat16);
  const auto handler = std::make_shared<Together>();
  for (auto& linear : all) {
    linear->weight.set_requires_grad(false);  // a trace takes it in as a constant
    tag_weight(linear->weight, "q", handler);
  }
  const at::Tensor x = hpu(torch::randn({1, 1, 1024}).to(at::kBFloat16));
  const auto traced = torch::jit::tracer::trace(
      {x},
      [&](torch::jit::Stack in) {
        const auto y = linear_together(in[0].toTensor(), all);
        return torch::jit::Stack{y[0], y[1]};
      },
      [](const at::Tensor&) { return ""; });
  EXPECT_EQ(handler->calls, 0);
  EXPECT_EQ(handler->alone.size(), 2u);
  const std::string graph = traced.first->graph->toString();
  std::size_t products = 0;
  for (auto at = graph.find("aten::matmul"); at != std::string::npos; at = graph.find("aten::matmul", at + 1))
    ++products;
  EXPECT_EQ(products, 2u) << graph;
  linear_together(x, all);
  EXPECT_EQ(handler->calls, 1);
}

}  // namespace
}  // namespace fp8::runtime
