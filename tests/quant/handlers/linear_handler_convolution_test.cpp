// SPDX-License-Identifier: Apache-2.0
// Quantized convolutions against the f64 convolution of the operands' dequantized values.
#include <ATen/autocast_mode.h>

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert.h"
#include "support/fp8_reference.h"
#include "support/hpu_test.h"

namespace fp8::quant {
namespace {

using test::hpu;
using test::same_bits;

struct Geometry {
  std::int64_t stride, padding, dilation, groups;
};
constexpr Geometry kGeometries[] = {{1, 0, 1, 1}, {2, 1, 1, 1}, {1, 2, 2, 2}, {3, 1, 1, 4}};

struct Convolution {
  torch::nn::Conv2d conv{nullptr};
  at::Tensor values;
  float input_amax = 3.0f;
  ActivationScaling activations;
  Geometry g;
  Convolution(const Geometry& geometry, ActivationScaling a, WeightGranularity weights, bool bias)
      : activations(a), g(geometry) {
    torch::manual_seed(21);
    conv = torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 12, 3)
                                 .stride(g.stride)
                                 .padding(g.padding)
                                 .dilation(g.dilation)
                                 .groups(g.groups)
                                 .bias(bias));
    conv->to(test::kHpu);
    values = test::quantize_by_amax(conv->weight, weights == WeightGranularity::tensor ? 1 : 12).values;
    PlanOptions o;
    o.activations = a;
    o.weights = weights;
    o.measurements = measure::MeasurementFile{};
    o.measurements->modules.push_back({"conv", {{input_amax}}, std::nullopt, std::nullopt});
    torch::nn::Sequential holder;
    holder->push_back("conv", conv);
    convert(*holder, o);
  }
  at::Tensor input_values(const at::Tensor& x) const {
    if (activations == ActivationScaling::none) return x.cpu().to(at::kDouble);
    if (activations == ActivationScaling::static_tensor)
      return test::quantize_reference(x, {input_amax / 448.0f}, 448.0f).values;
    return test::quantize_by_amax(x, 1).values;  // one scale for all of it
  }
  at::Tensor reference(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) const {
    return at::conv2d(x, w, bias, at::IntArrayRef{g.stride, g.stride}, at::IntArrayRef{g.padding, g.padding},
                      at::IntArrayRef{g.dilation, g.dilation}, g.groups);
  }
  void expect(const at::Tensor& y, const at::Tensor& x, double step = 0x1p-24) const {
    const at::Tensor bias = conv->bias.defined() ? conv->bias.detach().cpu().to(at::kDouble) : at::Tensor();
    const at::Tensor xv = input_values(x), want = reference(xv, values, bias);
    const at::Tensor bound =
        want.abs() * step * 1.01 + reference(xv.abs(), values.abs(), bias.defined() ? bias.abs() : bias) * 0x1p-20;
    ASSERT_EQ(y.sizes(), want.sizes());
    EXPECT_LE(((y.detach().cpu().to(at::kDouble) - want).abs() / bound).max().item<double>(), 1.0)
        << "stride " << g.stride << ", groups " << g.groups << ", activations " << name_of(activations);
  }
};

TEST(Fp8Convolution, EveryGeometryAndScheme) {
  for (const Geometry& g : kGeometries) {
    for (auto a : {ActivationScaling::none, ActivationScaling::static_tensor, ActivationScaling::dynamic_token}) {
      for (auto weights : {WeightGranularity::tensor, WeightGranularity::channel}) {
        Convolution c(g, a, weights, g.groups != 2);
        const at::Tensor x = hpu(torch::randn({2, 8, 9, 10}));
        const torch::NoGradGuard no_grad;
        c.expect(c.conv(x), x);
        EXPECT_TRUE(same_bits(c.conv(x[0]), c.conv(x.narrow(0, 0, 1))[0]));  // without a batch dimension
      }
    }
  }
}

TEST(Fp8Convolution, AnEmptyBatchGivesAnEmptyResult) {
  for (auto a : {ActivationScaling::none, ActivationScaling::static_tensor, ActivationScaling::dynamic_token}) {
    Convolution c(kGeometries[1], a, WeightGranularity::channel, true);
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(c.conv(hpu(torch::zeros({0, 8, 9, 10}))).sizes(), (std::vector<std::int64_t>{0, 12, 5, 5}));
  }
}

TEST(Fp8Convolution, AnAutocastRegionDecidesTheResultsType) {
  for (auto a : {ActivationScaling::none, ActivationScaling::static_tensor}) {
    Convolution c(kGeometries[1], a, WeightGranularity::channel, true);
    const at::Tensor x = hpu(torch::randn({2, 8, 9, 10}));
    const torch::NoGradGuard no_grad;
    at::autocast::set_autocast_enabled(at::kHPU, true);
    at::autocast::set_autocast_dtype(at::kHPU, at::kBFloat16);
    const at::Tensor y = c.conv(x);
    at::autocast::set_autocast_enabled(at::kHPU, false);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    if (a == ActivationScaling::static_tensor) c.expect(y, x, 0x1p-8);
  }
}

TEST(Fp8Convolution, GradientsPassStraightThrough) {
  for (const Geometry& g : kGeometries) {
    for (auto a : {ActivationScaling::static_tensor, ActivationScaling::dynamic_token, ActivationScaling::none}) {
      Convolution c(g, a, WeightGranularity::channel, true);
      const at::Tensor x = hpu(torch::randn({2, 8, 9, 10}));
      at::Tensor plain;
      {
        const torch::NoGradGuard no_grad;
        plain = c.conv(x);
      }
      c.conv->weight.set_requires_grad(false);
      const at::Tensor learns = x.clone().requires_grad_(true);
      const at::Tensor y = c.conv(learns);
      EXPECT_TRUE(same_bits(y, plain)) << "the gradient mode changes no result";
      const at::Tensor dy = hpu(torch::randn(y.sizes()));
      y.backward(dy);
      const at::Tensor xd = torch::zeros(x.sizes(), at::kDouble).requires_grad_(true);
      c.reference(xd, c.values, {}).backward(dy.cpu().to(at::kDouble));
      EXPECT_TRUE(at::allclose(learns.grad().cpu().to(at::kDouble), xd.grad(), 1e-4, 1e-5));
      EXPECT_TRUE(at::allclose(c.conv->bias.grad().cpu().to(at::kDouble),
                               dy.cpu().to(at::kDouble).sum(at::IntArrayRef{0, 2, 3}), 1e-4, 1e-5));
    }
  }
}

}  // namespace
}  // namespace fp8::quant
