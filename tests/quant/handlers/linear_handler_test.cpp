// SPDX-License-Identifier: Apache-2.0
// Results of quantized products against the f64 product of the operands' dequantized values, both made by the scalar
// reference.
#include "fp8/quant/handlers/linear_handler.h"

#include <ATen/autocast_mode.h>

#include "fp8/quant/model/convert.h"
#include "support/fp8_reference.h"
#include "support/hpu_test.h"

namespace fp8::quant {
namespace {

/// |got - want| <= rounding of got's dtype + f32 accumulation, per element; magnitudes: sum of |products|.
::testing::AssertionResult close(const at::Tensor& got, const at::Tensor& want, const at::Tensor& magnitudes) {
  const double step = got.scalar_type() == at::kFloat ? 0x1p-24 : got.scalar_type() == at::kHalf ? 0x1p-11 : 0x1p-8;
  const at::Tensor y = got.detach().cpu().to(at::kDouble);
  if (y.sizes() != want.sizes())
    return ::testing::AssertionFailure() << "sizes " << y.sizes() << ", expected " << want.sizes();
  const at::Tensor bound = want.abs() * step * 1.01 + magnitudes * 0x1p-20 + 1e-30;
  const double worst = ((y - want).abs() / bound).max().item<double>();
  if (worst <= 1.0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "off by " << worst << " times the bound";
}

constexpr ActivationScaling kActivations[] = {ActivationScaling::none, ActivationScaling::static_tensor,
                                              ActivationScaling::dynamic_token};

/// f() in a region of torch's autocast to bf16.
template <class F>
at::Tensor in_bf16_region(F&& f) {
  at::autocast::set_autocast_enabled(at::kHPU, true);
  at::autocast::set_autocast_dtype(at::kHPU, at::kBFloat16);
  const at::Tensor y = f();
  at::autocast::set_autocast_enabled(at::kHPU, false);
  return y;
}

struct Case {
  ActivationScaling activations;
  Granularity weights;
  recipes::Dialect dialect;
  at::ScalarType dtype;
};

/// Converts a module of a model under this name, with a measurement of its input.
template <class Module>
void convert_measured(const char* name, const Module& module, float input_amax, ActivationScaling activations,
                      Granularity weights, recipes::Dialect dialect) {
  PlanOptions o{
      .activations = activations, .weights = weights, .dialect = dialect, .measurements = measure::MeasurementFile{}};
  o.measurements->modules.push_back({name, {{input_amax}}, std::nullopt, std::nullopt});
  torch::nn::Sequential holder;
  holder->push_back(name, module);
  convert(*holder, o);
}

/// A converted Linear and what it should give.
struct Quantized {
  torch::nn::Linear linear{nullptr};
  at::Tensor values;  ///< f64, dequantized weight
  Case c;
  float max, input_amax = 0;
  Quantized(const Case& which, bool bias, std::int64_t in = 48, std::int64_t out = 20)
      : c(which), max(which.dialect == recipes::Dialect::gaudi2 ? 240.0f : 448.0f) {
    torch::manual_seed(11);
    linear = torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
    linear->to(c.dtype);
    linear->to(test::kHpu);
    values = test::quantize_by_amax(linear->weight, c.weights == Granularity::tensor ? 1 : out, max).values;
    input_amax = 2.5f;
    convert_measured("m", linear, input_amax, c.activations, c.weights, c.dialect);
  }
  at::Tensor input_values(const at::Tensor& x) const {
    if (c.activations == ActivationScaling::none) return f64(x);
    if (c.activations == ActivationScaling::static_tensor)
      return test::quantize_reference(x, {input_amax / max}, max).values;
    return test::quantize_by_amax(x, x.numel() / x.size(-1), max).values;
  }
  void expect(const at::Tensor& y, const at::Tensor& x) const {
    const at::Tensor xv = input_values(x);
    at::Tensor want = xv.matmul(values.t());
    if (linear->bias.defined()) want = want + f64(linear->bias);
    EXPECT_TRUE(close(y, want,
                      xv.abs().matmul(values.t().abs()) +
                          (linear->bias.defined() ? f64(linear->bias).abs() : torch::zeros({}, at::kDouble))))
        << "activations " << name_of(c.activations) << ", weights " << name_of(c.weights) << ", " << c.dtype << ", x "
        << x.sizes();
  }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (auto activations : kActivations)
    for (auto weights : {Granularity::tensor, Granularity::channel})
      for (auto dialect : {recipes::Dialect::ocp, recipes::Dialect::gaudi2})
        for (auto dtype : {at::kFloat, at::kBFloat16}) cases.push_back({activations, weights, dialect, dtype});
  return cases;
}

TEST(Fp8Handler, LinearOfEveryRankAndScheme) {
  for (const Case& c : all_cases())
    for (bool bias : {false, true}) {
      Quantized q(c, bias);
      for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{48}, {5, 48}, {2, 3, 48}}) {
        const at::Tensor x = hpu(torch::randn(sizes).to(c.dtype));
        const torch::NoGradGuard no_grad;
        const at::Tensor y = q.linear(x);
        EXPECT_EQ(y.scalar_type(), c.dtype);
        // A 3-D bf16 result is rounded twice: nn::Linear adds the bias afterwards.
        if (!bias || c.dtype == at::kFloat || x.dim() == 2) q.expect(y, x);
        const c10::InferenceMode inference;
        EXPECT_TRUE(same_bits(q.linear(x), y));
      }
    }
}

TEST(Fp8Handler, AThreeDimensionalInputIsRowsOfATwoDimensionalOne) {
  Quantized q({ActivationScaling::dynamic_token, Granularity::channel, recipes::Dialect::ocp, at::kFloat}, false);
  const at::Tensor x = hpu(torch::randn({4, 3, 48}));
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(same_bits(q.linear(x).reshape({12, 20}), q.linear(x.reshape({12, 48}))));
  EXPECT_TRUE(same_bits(q.linear(x)[2][1], q.linear(x[2][1])));
  const at::Tensor strided = hpu(torch::randn({48, 12})).t();
  EXPECT_TRUE(same_bits(q.linear(strided), q.linear(strided.contiguous())));
}

TEST(Fp8Handler, EmptyInputsGiveEmptyOrBias) {
  for (auto activations : kActivations) {
    Quantized q({activations, Granularity::channel, recipes::Dialect::ocp, at::kFloat}, true);
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(q.linear(hpu(torch::zeros({0, 48}))).sizes(), (std::vector<std::int64_t>{0, 20}));
    EXPECT_EQ(q.linear(hpu(torch::zeros({2, 0, 48}))).sizes(), (std::vector<std::int64_t>{2, 0, 20}));
    EXPECT_TRUE(same_bits(q.linear(hpu(torch::zeros({1, 48})))[0], q.linear->bias));
    EXPECT_REFUSED(q.linear(hpu(torch::zeros({3, 47}))), "20");
  }
}

TEST(Fp8Handler, AnOcpWeightKeepsItsValuesWhereTheDeviceIsGaudi2) {
  for (auto activations : kActivations) {
    const Quantized q({activations, Granularity::channel, recipes::Dialect::ocp, at::kFloat}, true);
    const at::Tensor codes = q.linear->weight.view(at::kByte);
    ASSERT_GT((codes.bitwise_and(0x7F) >= 0x78).sum().item<std::int64_t>(), 0)
        << "codes that Gaudi2 itself reads as infinity and NaN";
    const at::Tensor x = hpu(torch::randn({5, 48}));
    const torch::NoGradGuard no_grad;
    const at::Tensor y = q.linear.ptr()->forward(x);
    const runtime::DeviceKindScope gaudi2(runtime::DeviceKind::gaudi2);
    EXPECT_TRUE(same_bits(q.linear.ptr()->forward(x), y));
    q.expect(y, x);
  }
}

TEST(Fp8Handler, TellsThePrintersItsScaleAndTheDtypeOfItsValues) {
  const Quantized q({ActivationScaling::none, Granularity::tensor, recipes::Dialect::ocp, at::kBFloat16}, false);
  EXPECT_EQ(values_dtype(q.linear->weight), at::kBFloat16);
  std::ostringstream expected;
  expected << "weight of 'm': " << runtime::find_tag(q.linear->weight)->handler->describe() << ", scale_inv "
           << q.values.abs().max().item<float>() / 448.0f;
  EXPECT_EQ(describe_weight(q.linear->weight), expected.str());
  EXPECT_TRUE(same_bits(q.linear->weight.to(at::kCPU, at::kDouble), q.values.to(at::kBFloat16).to(at::kDouble)));
  std::ostringstream text;
  text << q.linear->weight;
  EXPECT_THAT(text.str(), HasSubstr("HPUFloat8_e4m3fnType{20,48}"));
}

TEST(Fp8Handler, NaNAndInfInARowStayInTheRow) {
  Quantized q({ActivationScaling::dynamic_token, Granularity::tensor, recipes::Dialect::ocp, at::kFloat}, false);
  at::Tensor x = torch::randn({4, 48});
  const at::Tensor clean = x.clone();
  x[1][3] = NAN;
  x[2][5] = INFINITY;
  const torch::NoGradGuard no_grad;
  const at::Tensor y = q.linear(hpu(x)).cpu(), z = q.linear(hpu(clean)).cpu();
  EXPECT_TRUE(y[1].isnan().all().item<bool>());
  EXPECT_TRUE(y[2].isnan().all().item<bool>());  // not a saturated number
  EXPECT_TRUE(same_bits(y[0], z[0]));
  EXPECT_TRUE(same_bits(y[3], z[3]));
}

TEST(Fp8Handler, AnAutocastRegionDecidesTheResultsType) {
  for (auto activations : kActivations) {
    Quantized q({activations, Granularity::channel, recipes::Dialect::ocp, at::kFloat}, true);
    const at::Tensor x = hpu(torch::randn({5, 48}));
    const torch::NoGradGuard no_grad;
    const at::Tensor y = in_bf16_region([&] { return q.linear(x); });
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    q.expect(y, activations == ActivationScaling::none ? x.to(at::kBFloat16) : x);
  }
}

/// One weight of any shape, converted under the name "w".
at::Tensor converted(const at::Tensor& w, const char* type, Granularity weights,
                     ActivationScaling activations = ActivationScaling::none) {
  at::Tensor parameter = hpu(w).clone();
  PlanOptions o{.activations = activations, .weights = weights, .include = {"w"}};
  convert(std::vector<measure::WeightModule>{{"w", type, parameter, std::nullopt}}, o);
  return parameter;
}

TEST(Fp8Handler, EmbeddingRowsAreTheDequantizedRows) {
  torch::manual_seed(12);
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor w = torch::randn({9, 6}).to(dtype);
    for (auto granularity : {Granularity::tensor, Granularity::channel}) {
      const at::Tensor p = converted(w, "Embedding", granularity);
      const at::Tensor ids = hpu(torch::tensor({{8, 0, 3}, {3, 3, 1}}, at::kLong));
      const at::Tensor values = test::quantize_by_amax(w, granularity == Granularity::tensor ? 1 : 9).values;
      // One rounding of the f32 product; f64 -> f32 -> bf16 is the same chain.
      EXPECT_TRUE(
          same_bits(at::embedding(p, ids),
                    values.index_select(0, ids.cpu().reshape({-1})).reshape({2, 3, 6}).to(at::kFloat).to(dtype)));
      EXPECT_REFUSED(at::embedding(p, hpu(torch::tensor({9}, at::kLong))), "index");
    }
  }
}

TEST(Fp8Handler, StackedExpertsHaveAScaleEachThroughEveryProduct) {
  torch::manual_seed(13);
  const at::Tensor w = torch::randn({3, 8, 16}) * torch::tensor({1.0, 0.1, 10.0}).view({3, 1, 1});
  for (auto granularity : {Granularity::tensor, Granularity::channel})
    for (auto activations : {ActivationScaling::none, ActivationScaling::dynamic_token}) {
      const at::Tensor p = converted(w, "Linear", granularity, activations);
      const at::Tensor values = test::quantize_by_amax(w, granularity == Granularity::tensor ? 3 : 24).values;
      const at::Tensor x = torch::randn({3, 5, 16});
      const at::Tensor xv = activations == ActivationScaling::none ? f64(x) : test::quantize_by_amax(x, 15).values;
      const at::Tensor want = at::bmm(xv, values.transpose(1, 2)),
                       size = at::bmm(xv.abs(), values.abs().transpose(1, 2));
      EXPECT_TRUE(close(at::bmm(hpu(x), p.transpose(1, 2)), want, size));
      EXPECT_TRUE(close(at::matmul(hpu(x), p.transpose(1, 2)), want, size));
      EXPECT_TRUE(close(at::einsum("etk,enk->etn", {hpu(x), p}), want, size));
      for (int e = 0; e < 3; ++e) EXPECT_TRUE(close(at::linear(hpu(x)[e], p[e]), want[e], size[e]));
      // Half the rows of one expert.
      EXPECT_TRUE(close(at::linear(hpu(x)[1], p[1].narrow(0, 4, 4)), want[1].narrow(1, 4, 4), size[1].narrow(1, 4, 4)));
    }
}

TEST(Fp8Handler, SlicesOfALinearTakeTheirOwnScales) {
  torch::manual_seed(14);
  const at::Tensor w = torch::randn({12, 16}) * torch::logspace(-1, 1, 12).unsqueeze(1), x = torch::randn({5, 16});
  const at::Tensor p = converted(w, "Linear", Granularity::channel);
  const at::Tensor values = test::quantize_by_amax(w, 12).values;
  const auto parts = p.chunk(3, 0);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor v = values.narrow(0, 4 * i, 4);
    EXPECT_TRUE(close(at::linear(hpu(x), parts[static_cast<std::size_t>(i)]), f64(x).matmul(v.t()),
                      f64(x).abs().matmul(v.t().abs())));
  }
  const at::Tensor left = hpu(torch::randn({3, 12}));  // x @ w: no transposed kernel, the weight is dequantized
  EXPECT_TRUE(close(at::matmul(left, p), f64(left).matmul(values), f64(left).abs().matmul(values.abs())));
}

TEST(Fp8Handler, DescribesItsScheme) {
  const at::Tensor p = converted(torch::randn({4, 4}), "Linear", Granularity::channel);
  EXPECT_EQ(runtime::find_tag(p)->handler->describe(), "E4M3 channel weights, high precision activations, ocp");
  EXPECT_TRUE(runtime::find_tag(p)->handler->owns_values());
}

// Quantized convolutions against the f64 convolution of the operands' dequantized values.

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
  Convolution(const Geometry& geometry, ActivationScaling a, Granularity weights, bool bias)
      : activations(a), g(geometry) {
    torch::manual_seed(21);
    conv = torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 12, 3)
                                 .stride(g.stride)
                                 .padding(g.padding)
                                 .dilation(g.dilation)
                                 .groups(g.groups)
                                 .bias(bias));
    conv->to(test::kHpu);
    values = test::quantize_by_amax(conv->weight, weights == Granularity::tensor ? 1 : 12).values;
    convert_measured("conv", conv, input_amax, a, weights, recipes::Dialect::ocp);
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
  for (const Geometry& g : kGeometries)
    for (auto a : kActivations)
      for (auto weights : {Granularity::tensor, Granularity::channel}) {
        Convolution c(g, a, weights, g.groups != 2);
        const at::Tensor x = hpu(torch::randn({2, 8, 9, 10}));
        const torch::NoGradGuard no_grad;
        c.expect(c.conv(x), x);
        EXPECT_TRUE(same_bits(c.conv(x[0]), c.conv(x.narrow(0, 0, 1))[0]));  // without a batch dimension
      }
}

TEST(Fp8Convolution, AnEmptyBatchGivesAnEmptyResult) {
  for (auto a : kActivations) {
    Convolution c(kGeometries[1], a, Granularity::channel, true);
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(c.conv(hpu(torch::zeros({0, 8, 9, 10}))).sizes(), (std::vector<std::int64_t>{0, 12, 5, 5}));
  }
}

TEST(Fp8Convolution, AnAutocastRegionDecidesTheResultsType) {
  for (auto a : {ActivationScaling::none, ActivationScaling::static_tensor}) {
    Convolution c(kGeometries[1], a, Granularity::channel, true);
    const at::Tensor x = hpu(torch::randn({2, 8, 9, 10}));
    const torch::NoGradGuard no_grad;
    const at::Tensor y = in_bf16_region([&] { return c.conv(x); });
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    if (a == ActivationScaling::static_tensor) c.expect(y, x, 0x1p-8);
  }
}

TEST(Fp8Convolution, GradientsPassStraightThrough) {
  for (const Geometry& g : kGeometries)
    for (auto a : {ActivationScaling::static_tensor, ActivationScaling::dynamic_token, ActivationScaling::none}) {
      Convolution c(g, a, Granularity::channel, true);
      const at::Tensor x = hpu(torch::randn({2, 8, 9, 10}));
      const at::Tensor plain = test::within(torch::NoGradGuard(), [&] { return c.conv(x); });
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

}  // namespace
}  // namespace fp8::quant
