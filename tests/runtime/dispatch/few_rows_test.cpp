// SPDX-License-Identifier: Apache-2.0
// Which products of bf16 rows our own kernel takes, and what they give.
#include <gtest/gtest.h>

#include "fp8/runtime/dispatch/own_ops.h"
#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

constexpr std::int64_t kN = 1030, kK = 1024;

class FewRows : public testing::Test {
 protected:
  at::Tensor weight = torch::randn({kN, kK}).to(at::kBFloat16), bias = torch::randn({kN}).to(at::kBFloat16);
  /// Rounded once from sums in f64, whose order does not show; half a step of bf16 apart at most, and some for f32.
  static void expect_close(const at::Tensor& y, const at::Tensor& exact) {
    const at::Tensor values = y.cpu().to(at::kDouble);
    EXPECT_TRUE(((values - exact).abs() <= exact.abs() * std::ldexp(1.0, -8) + 1e-3).all().item<bool>());
  }
  bool takes(const at::Tensor& input, const at::Tensor& weight_t, const std::optional<at::Tensor>& b = {}) {
    return few_rows_product(input, weight_t, b).has_value();
  }
};

TEST_F(FewRows, LinearOfOneTokenAndOfTwo) {
  const at::Tensor w = test::hpu(weight), b = test::hpu(bias);
  for (std::int64_t m : {1, 2}) {
    const at::Tensor x = torch::randn({1, m, kK}).to(at::kBFloat16);
    const at::Tensor exact = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
    EXPECT_TRUE(takes(test::hpu(x)[0], w.t()));
    expect_close(at::linear(test::hpu(x), w), exact);
    EXPECT_TRUE(takes(test::hpu(x)[0], w.t(), b));
    expect_close(at::linear(test::hpu(x), w, b), exact + bias.to(at::kDouble));
  }
}

TEST_F(FewRows, ARowHasTheSameBitsAloneAndAmongOthers) {
  const at::Tensor w = test::hpu(weight), x = test::hpu(torch::randn({2, kK}).to(at::kBFloat16));
  const at::Tensor all = at::mm(x, w.t());
  for (std::int64_t i = 0; i < 2; ++i)
    EXPECT_TRUE(test::same_bits(all.slice(0, i, i + 1), at::mm(x.slice(0, i, i + 1), w.t())));
}

TEST_F(FewRows, GradientsAreThoseOfTheCpu) {
  const at::Tensor x = torch::randn({2, kK}).to(at::kBFloat16);
  const auto gradients = [&](c10::Device device) {
    const at::Tensor a = x.to(device).requires_grad_(), w = weight.to(device).requires_grad_();
    at::linear(a, w).to(at::kFloat).sum().backward();
    return std::pair(a.grad().cpu(), w.grad().cpu());
  };
  const auto ours = gradients(c10::kHPU), cpu = gradients(c10::kCPU);
  EXPECT_TRUE(test::same_bits(ours.first, cpu.first));
  EXPECT_TRUE(test::same_bits(ours.second, cpu.second));
}

TEST_F(FewRows, WhatIsNoSuchProductIsLeftToTheOthers) {
  const at::Tensor w = test::hpu(weight), b = test::hpu(bias), x = test::hpu(torch::randn({2, kK}).to(at::kBFloat16));
  EXPECT_FALSE(takes(test::hpu(torch::randn({3, kK}).to(at::kBFloat16)), w.t()));
  EXPECT_FALSE(takes(x.slice(0, 0, 0), w.t()));
  EXPECT_FALSE(takes(x.to(at::kFloat), w.t()));
  EXPECT_FALSE(takes(x, w.to(at::kFloat).t()));
  EXPECT_FALSE(takes(x.cpu(), weight.t()));
  EXPECT_FALSE(takes(x, w.t().contiguous()));
  EXPECT_FALSE(takes(x, w.slice(0, 0, 100).t()));
  EXPECT_FALSE(takes(x, w.t(), b.slice(0, 0, 1)));
  EXPECT_FALSE(takes(x, w.t(), b.to(at::kFloat)));
  EXPECT_FALSE(takes(x, w.t(), test::hpu(torch::randn({2, kN}).to(at::kBFloat16))));
  EXPECT_FALSE(takes(x.slice(1, 0, kK / 2), w.t()));
  EXPECT_FALSE(takes(test::hpu(torch::randn({kK, 2}).to(at::kBFloat16)).t(), w.t()));
  EXPECT_FALSE(takes(test::hpu(torch::randn({1, kK}).to(at::kBFloat16)).expand({2, kK}), w.t()));
  EXPECT_THROW(at::mm(x.slice(1, 0, kK / 2), w.t()), c10::Error);
  // Scaled sums are not these: alpha and beta reach who knows them.
  const at::Tensor scaled = at::addmm(b, x, w.t(), 1, 2);
  expect_close(scaled, at::addmm(bias.to(at::kDouble), x.cpu().to(at::kDouble), weight.t().to(at::kDouble), 1, 2));
}

TEST_F(FewRows, PartsOfLargerTensorsAreTaken) {
  const at::Tensor wide = torch::randn({kN, kK + 64}).to(at::kBFloat16),
                   rows = torch::randn({3, kK + 8}).to(at::kBFloat16);
  const at::Tensor w = wide.slice(1, 32, 32 + kK), x = rows.slice(1, 8, 8 + kK).slice(0, 1, 3);
  const at::Tensor w_hpu = test::hpu(wide).slice(1, 32, 32 + kK),
                   x_hpu = test::hpu(rows).slice(1, 8, 8 + kK).slice(0, 1, 3);
  EXPECT_TRUE(takes(x_hpu, w_hpu.t()));
  expect_close(at::mm(x_hpu, w_hpu.t()), at::mm(x.to(at::kDouble), w.t().to(at::kDouble)));
}

}  // namespace
}  // namespace fp8::runtime
