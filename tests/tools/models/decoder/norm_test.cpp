// SPDX-License-Identifier: Apache-2.0
// Norms against their formulas in double.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "fp8/tools/models/decoder/decoder_math.h"
#include "support/matchers.h"

namespace fp8::models {
namespace {

at::Tensor counted(at::IntArrayRef sizes, double scale) {
  std::int64_t n = 1;
  for (const auto size : sizes) n *= size;
  return ((at::arange(n, at::kDouble) * 0.7321).sin() * scale + 0.1).view(sizes).to(at::kFloat);
}

Norm norm_of(const NormSpec& spec, const std::vector<std::int64_t>& shape) {
  Norm norm("Norm", shape, spec);
  if (spec.weight) norm->weight.set_data(counted(shape, 0.5));
  if (spec.bias) norm->bias.set_data(counted(shape, 0.25));
  norm->eval();
  return norm;
}

/// Of the last dimension, in double.
at::Tensor expected(const NormSpec& spec, const Norm& norm, const at::Tensor& x) {
  auto y = x.to(at::kDouble);
  if (spec.kind == NormSpec::Kind::layer) y = y - y.mean({-1}, true);
  y = y / (y.square().mean({-1}, true) + spec.eps).sqrt();
  if (spec.weight) y = y * (norm->weight.to(at::kDouble) + (spec.plus_one ? 1 : 0));
  return spec.bias ? y + norm->bias.to(at::kDouble) : y;
}

TEST(DecoderNorm, FollowsItsFormula) {
  const at::NoGradGuard no_grad;
  using Kind = NormSpec::Kind;
  for (const NormSpec& spec :
       {NormSpec{.eps = 0.01}, NormSpec{.eps = 0.01, .plus_one = true, .wide = true},
        NormSpec{.eps = 0.1, .wide = true}, NormSpec{.eps = 0.1, .weight = false},
        NormSpec{.kind = Kind::layer, .eps = 0.01, .bias = true},
        NormSpec{.kind = Kind::layer, .eps = 0.01, .bias = true, .plus_one = true},
        NormSpec{.kind = Kind::layer, .eps = 0.01}, NormSpec{.kind = Kind::layer, .weight = false}})
    for (const std::int64_t width : {1, 7, 64}) {
      const auto norm = norm_of(spec, {width});
      auto module = norm;
      const auto x = counted({2, 3, width}, 4);
      EXPECT_LE((module->forward(x) - expected(spec, norm, x)).abs().max().item<double>(), 2e-5) << width;
    }
}

TEST(DecoderNorm, EachHeadMayHaveItsWeights) {
  const at::NoGradGuard no_grad;
  for (const auto kind : {NormSpec::Kind::rms, NormSpec::Kind::layer}) {
    const NormSpec spec{.kind = kind, .eps = 0.01};
    auto norm = norm_of(spec, {3, 8});
    const auto x = counted({2, 5, 3, 8}, 2);  // [B, L, heads, D]
    EXPECT_LE((norm->forward(x) - expected(spec, norm, x)).abs().max().item<double>(), 2e-5);
  }
}

TEST(DecoderNorm, FollowsItsWeight) {
  const at::NoGradGuard no_grad;
  const NormSpec spec{.kind = NormSpec::Kind::layer, .eps = 0.01, .plus_one = true};
  auto norm = norm_of(spec, {16});
  norm->weight.set_requires_grad(false);
  const auto x = counted({2, 16}, 4);
  const auto expect_followed = [&] {
    EXPECT_LE((norm->forward(x) - expected(spec, norm, x)).abs().max().item<double>(), 2e-5);
  };
  expect_followed();
  norm->weight.mul_(3);
  expect_followed();
  norm->weight.set_data(counted({16}, 2));
  expect_followed();
}

/// Narrow: the product with the weight is of what is rounded already, as transformers' Llama computes it; wide: one
/// rounding, as its Gemma.
TEST(DecoderNorm, RoundsWhereTransformersDoes) {
  const at::NoGradGuard no_grad;
  const auto x = counted({4, 33}, 3).to(at::kBFloat16);
  for (const bool wide : {false, true}) {
    auto norm = norm_of({.eps = 0.01, .wide = wide}, {33});
    norm->weight.set_data(norm->weight.to(at::kBFloat16));
    const auto f = x.to(at::kFloat), w = norm->weight.to(at::kFloat);
    const auto y = f * (f.square().mean({-1}, true) + 0.01).rsqrt();
    const auto expected = wide ? (y * w).to(at::kBFloat16) : (y.to(at::kBFloat16).to(at::kFloat) * w).to(at::kBFloat16);
    const auto found = norm->forward(x);
    EXPECT_EQ(found.scalar_type(), at::kBFloat16);
    // The sum of squares is added in another order: the last bit of some may differ.
    EXPECT_LE((found.to(at::kFloat) - expected.to(at::kFloat)).abs().max().item<float>(), 0.016f);
    EXPECT_GE(found.eq(expected).to(at::kFloat).mean().item<float>(), 0.98f);
  }
}

// Norms in training and in evaluation; where exactly a norm rounds to bf16; rows without spread; parameters; gradients.

/// The formulas of NormSpec. A weight of A rows belongs to rows 0 to A - 1 of x, again and again.
at::Tensor norm_in_double(const NormSpec& spec, const at::Tensor& given, const at::Tensor& weight,
                          const at::Tensor& bias) {
  const at::Tensor x = given.to(at::kDouble).contiguous(), y = at::empty_like(x);
  const std::int64_t n = x.size(-1), rows = x.numel() / n;
  const auto element = [&](const at::Tensor& values, std::int64_t row, std::int64_t i, double none) {
    if (!values.defined()) return none;
    return values.flatten()[row % (values.numel() / n) * n + i].item<double>();
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    const double* from = x.const_data_ptr<double>() + row * n;
    double mean = 0, squares = 0;
    for (std::int64_t i = 0; i < n; ++i) mean += from[i] / static_cast<double>(n);
    if (spec.kind == NormSpec::Kind::rms) mean = 0;
    for (std::int64_t i = 0; i < n; ++i) squares += (from[i] - mean) * (from[i] - mean);
    const double root = std::sqrt(squares / static_cast<double>(n) + spec.eps);
    for (std::int64_t i = 0; i < n; ++i) {
      const double by = element(weight, row, i, spec.plus_one ? 0 : 1) + (spec.plus_one ? 1 : 0);
      y.mutable_data_ptr<double>()[row * n + i] = (from[i] - mean) / root * by + element(bias, row, i, 0);
    }
  }
  return y;
}

/// With random values in the place of its placeholders.
Norm filled_norm(const NormSpec& spec, const std::vector<std::int64_t>& shape, at::ScalarType dtype = at::kFloat) {
  Norm norm("LlamaRMSNorm", shape, spec);
  for (auto* values : {&norm->weight, &norm->bias})
    if (values->defined()) values->set_data(at::randn(shape).to(dtype));
  return norm;
}

/// In training and not, of a dense input and of a view.
void expect_norms_as_the_formula(const NormSpec& spec, const std::vector<std::int64_t>& shape) {
  const c10::NoGradGuard no_grad;
  Norm norm = filled_norm(spec, shape);
  std::vector<std::int64_t> sizes = {2, 5};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  const at::Tensor x = at::randn(sizes) * 3 + 0.5;
  const at::Tensor expected = norm_in_double(spec, x, norm->weight, norm->bias);
  for (const bool training : {true, false}) {
    norm->train(training);
    for (const at::Tensor& from : {x, x.transpose(0, 1).contiguous().transpose(0, 1)}) {
      const at::Tensor y = norm->forward(from);
      ASSERT_EQ(y.sizes(), x.sizes());
      EXPECT_EQ(y.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::allclose(y.to(at::kDouble), expected, 4e-6, 4e-6)) << "training " << training;
    }
  }
}

TEST(NormEdges, RmsIsTheFormula) {
  for (const double eps : {1e-6, 0.25}) {
    expect_norms_as_the_formula({.eps = eps}, {48});
    expect_norms_as_the_formula({.eps = eps, .wide = true}, {48});
    expect_norms_as_the_formula({.eps = eps, .plus_one = true, .wide = true}, {48});
    expect_norms_as_the_formula({.eps = eps, .weight = false}, {48});
  }
  expect_norms_as_the_formula({}, {1});
  expect_norms_as_the_formula({}, {67});  // no multiple of a vector's width
}

TEST(NormEdges, RmsOfHeadsHasAWeightForEach) {
  expect_norms_as_the_formula({.eps = 1e-5}, {4, 16});
  expect_norms_as_the_formula({.eps = 1e-5, .plus_one = true, .wide = true}, {4, 16});
}

TEST(NormEdges, LayerIsTheFormula) {
  using enum NormSpec::Kind;
  for (const double eps : {1e-5, 0.25}) {
    expect_norms_as_the_formula({.kind = layer, .eps = eps, .bias = true}, {48});
    expect_norms_as_the_formula({.kind = layer, .eps = eps}, {48});
    expect_norms_as_the_formula({.kind = layer, .eps = eps, .bias = true, .plus_one = true}, {48});
    expect_norms_as_the_formula({.kind = layer, .eps = eps, .weight = false}, {48});
  }
}

TEST(NormEdges, LayerOfHeadsHasAWeightForEach) {
  using enum NormSpec::Kind;
  expect_norms_as_the_formula({.kind = layer}, {4, 16});
  expect_norms_as_the_formula({.kind = layer, .bias = true}, {4, 16});
  expect_norms_as_the_formula({.kind = layer, .bias = true, .plus_one = true}, {4, 16});
}

TEST(NormEdges, RowsWithoutSpreadStayFinite) {
  const c10::NoGradGuard no_grad;
  Norm rms = filled_norm({}, {8}), layer = filled_norm({.kind = NormSpec::Kind::layer, .bias = true}, {8});
  for (const bool training : {true, false}) {
    rms->train(training);
    EXPECT_TRUE(rms->forward(at::zeros({2, 8})).eq(0).all().item<bool>());
  }
  EXPECT_TRUE(at::allclose(layer->forward(at::full({2, 8}, 4.0)), layer->bias.expand({2, 8})));
}

/// Of x = (1, 3, 5, 1) and its double, whose root of the mean square is 3 (6), and eps 0: x / 3 is (0.3333, 1, 1.6667,
/// 0.3333), in bf16 (0.333984375, 1, 1.6640625, 0.333984375).
at::Tensor norm_in_bf16(const NormSpec& spec, const std::vector<double>& weight, bool training) {
  const c10::NoGradGuard no_grad;
  Norm norm("LlamaRMSNorm", std::vector<std::int64_t>{4}, spec);
  if (spec.weight) norm->weight.set_data(at::tensor(weight).to(at::kBFloat16));
  norm->train(training);
  const at::Tensor row = at::tensor({1.0, 3.0, 5.0, 1.0});
  const at::Tensor y = norm->forward(at::stack({row, -2 * row}).to(at::kBFloat16));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(y[0].equal(-y[1]));
  return y[0].to(at::kDouble);
}

TEST(NormEdges, RoundsBeforeTheWeightUnlessItIsWide) {
  // 1.5625 * 0.333984375 = 133.59 / 256, 1.5625 * 1.6640625 = 166.41 / 64; 1.5625 / 3 = 133.33 / 256, 1.5625 * 5 / 3 =
  // 166.67 / 64: bf16 has 8 bits.
  const at::Tensor narrow = at::tensor({134.0 / 256, 1.5625, 166.0 / 64, 0.333984375}, at::kDouble);
  const at::Tensor wide = at::tensor({133.0 / 256, 1.5625, 167.0 / 64, 0.333984375}, at::kDouble);
  for (const bool training : {true, false}) {
    EXPECT_TRUE(norm_in_bf16({.eps = 0}, {1.5625, 1.5625, 1.5625, 1}, training).equal(narrow));
    EXPECT_TRUE(norm_in_bf16({.eps = 0, .wide = true}, {1.5625, 1.5625, 1.5625, 1}, training).equal(wide));
    EXPECT_TRUE(
        norm_in_bf16({.eps = 0, .plus_one = true, .wide = true}, {0.5625, 0.5625, 0.5625, 0}, training).equal(wide));
  }
  const at::Tensor bare = at::tensor({0.333984375, 1.0, 1.6640625, 0.333984375}, at::kDouble);
  EXPECT_TRUE(norm_in_bf16({.eps = 0, .weight = false}, {}, false).equal(bare));
}

TEST(NormEdges, LayerOfBf16IsRoundedOnce) {
  const c10::NoGradGuard no_grad;
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{32}, {4, 32}}) {
    const NormSpec spec = {.kind = NormSpec::Kind::layer, .bias = true};
    Norm norm = filled_norm(spec, shape, at::kBFloat16);
    const at::Tensor x = at::randn({3, 4, 32}).to(at::kBFloat16);
    const at::Tensor y = norm->forward(x), expected = norm_in_double(spec, x, norm->weight, norm->bias);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    // bf16 keeps 8 bits: half a unit in the last place is at most a relative 2^-8.
    EXPECT_TRUE(at::allclose(y.to(at::kDouble), expected, 0x1p-8, 1e-5));
  }
}

TEST(NormEdges, ParametersAreThoseOfTheSpec) {
  const Norm norm("NemotronLayerNorm1P", std::vector<std::int64_t>{3, 8},
                  NormSpec{.kind = NormSpec::Kind::layer, .bias = true});
  EXPECT_EQ(norm->name(), "NemotronLayerNorm1P");
  EXPECT_THAT(norm->named_parameters().keys(), ElementsAre("weight", "bias"));
  for (const auto& parameter : norm->parameters()) {
    EXPECT_EQ(parameter.sizes(), at::IntArrayRef({3, 8}));
    EXPECT_TRUE(parameter.isnan().all().item<bool>());
  }
  const Norm plain("LlamaRMSNorm", std::vector<std::int64_t>{8}, NormSpec{});
  EXPECT_THAT(plain->named_parameters().keys(), ElementsAre("weight"));
  EXPECT_FALSE(plain->bias.defined());
  const Norm bare("Llama4TextL2Norm", std::vector<std::int64_t>{8}, NormSpec{.weight = false});
  EXPECT_THAT(bare->parameters(), IsEmpty());
}

TEST(NormEdges, GradientsFlowInTraining) {
  Norm norm = filled_norm({.eps = 1e-5}, {16});
  norm->train();
  const at::Tensor x = at::randn({2, 16}).requires_grad_();
  norm->forward(x).sum().backward();
  ASSERT_TRUE(x.grad().defined() && norm->weight.grad().defined());
  // d(sum of y) / d(weight_i) is the sum of x / rms over the rows.
  const at::Tensor by_hand = norm_in_double({.eps = 1e-5, .weight = false}, x.detach(), {}, {}).sum(0);
  EXPECT_TRUE(at::allclose(norm->weight.grad().to(at::kDouble), by_hand, 4e-6, 4e-6));
}

}  // namespace
}  // namespace fp8::models
