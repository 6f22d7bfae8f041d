// SPDX-License-Identifier: Apache-2.0
// Gradients of a quantized Linear: dx = dy . dequantized w, db = sum of dy; the second derivative is refused by name.
#include <ATen/autocast_mode.h>

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert.h"
#include "support/fp8_reference.h"
#include "support/hpu_test.h"

namespace fp8::quant {
namespace {

using test::hpu;
using test::same_bits;
using test::throws_with;

struct Frozen {
  torch::nn::Linear linear{nullptr};
  at::Tensor values;
  explicit Frozen(bool bias, ActivationScaling activations = ActivationScaling::dynamic_token,
                  at::ScalarType dtype = at::kFloat) {
    torch::manual_seed(31);
    linear = torch::nn::Linear(torch::nn::LinearOptions(24, 10).bias(bias));
    linear->to(dtype);
    linear->to(test::kHpu);
    values = test::quantize_by_amax(linear->weight, 10).values;
    PlanOptions o;
    o.activations = activations;
    o.weights = WeightGranularity::channel;
    torch::nn::Sequential holder;
    holder->push_back("m", linear);
    convert(*holder, o);
    linear->weight.set_requires_grad(false);
  }
};

TEST(StraightThrough, InputAndBiasLearn) {
  for (auto activations : {ActivationScaling::none, ActivationScaling::dynamic_token}) {
    for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{24}, {5, 24}, {2, 3, 24}}) {
      Frozen f(true, activations);
      const at::Tensor plain = hpu(torch::randn(sizes)), x = plain.clone().requires_grad_(true);
      const at::Tensor y = f.linear(x);
      {
        const torch::NoGradGuard no_grad;
        EXPECT_TRUE(same_bits(y, f.linear(plain)));
      }
      const at::Tensor dy = hpu(torch::randn(y.sizes()));
      y.backward(dy);
      const at::Tensor d = dy.cpu().to(at::kDouble);
      EXPECT_TRUE(at::allclose(x.grad().cpu().to(at::kDouble), d.matmul(f.values), 1e-5, 1e-6));
      EXPECT_TRUE(at::allclose(f.linear->bias.grad().cpu().to(at::kDouble), d.reshape({-1, 10}).sum(0), 1e-5, 1e-6));
      EXPECT_FALSE(f.linear->weight.grad().defined());
    }
  }
}

TEST(StraightThrough, TheGradientHasTheInputsType) {
  Frozen f(true);
  at::Tensor x = hpu(torch::randn({3, 24})).requires_grad_(true);
  at::autocast::set_autocast_enabled(at::kHPU, true);
  at::autocast::set_autocast_dtype(at::kHPU, at::kBFloat16);
  const at::Tensor y = f.linear(x);
  at::autocast::set_autocast_enabled(at::kHPU, false);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(f.linear->bias.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(x.grad().cpu().to(at::kDouble), f.values.sum(0).expand({3, 24}), 0.02,
                           0.02));  // w and the sum in bf16
}

TEST(StraightThrough, BackwardTwiceWithARetainedGraph) {
  Frozen f(false);
  const at::Tensor x = hpu(torch::randn({4, 24})).requires_grad_(true);
  const at::Tensor y = f.linear(x).sum();
  const auto first = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true)[0];
  const auto second = torch::autograd::grad({y}, {x})[0];
  EXPECT_TRUE(same_bits(first, second));
}

TEST(StraightThrough, ASecondDerivativeIsRefusedByName) {
  Frozen f(true);
  const at::Tensor x = hpu(torch::randn({4, 24})).requires_grad_(true);
  const at::Tensor y = f.linear(x).pow(2).sum();
  const auto g = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];  // first order passes
  EXPECT_TRUE(throws_with({"fp8 product of fp8::quant has no second derivative"},
                          [&] { (g.pow(2).sum() + x.sum()).backward(); }));
  const auto b = torch::autograd::grad({y}, {f.linear->bias}, {}, true, true)[0];
  EXPECT_TRUE(throws_with({"no second derivative"}, [&] { (b.pow(2).sum() + x.sum()).backward(); }));
}

TEST(StraightThrough, NothingIsRecordedWithoutNeed) {
  Frozen f(true);
  f.linear->bias.set_requires_grad(false);
  EXPECT_FALSE(f.linear(hpu(torch::randn({4, 24}))).requires_grad());
}

}  // namespace
}  // namespace fp8::quant
