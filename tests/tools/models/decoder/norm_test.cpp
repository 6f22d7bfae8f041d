// SPDX-License-Identifier: Apache-2.0
// Norms against their formulas in double.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "fp8/tools/models/decoder/decoder_math.h"

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
        NormSpec{.kind = Kind::layer, .eps = 0.01}, NormSpec{.kind = Kind::layer, .weight = false}}) {
    for (const std::int64_t width : {1, 7, 64}) {
      const auto norm = norm_of(spec, {width});
      auto module = norm;
      const auto x = counted({2, 3, width}, 4);
      EXPECT_LE((module->forward(x) - expected(spec, norm, x)).abs().max().item<double>(), 2e-5) << width;
    }
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

}  // namespace
}  // namespace fp8::models
