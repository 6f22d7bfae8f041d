// SPDX-License-Identifier: Apache-2.0
// Products of every pair of layouts against f64 products of the values, and which of them share their bits.
#include "fp8/runtime/fp8_tensor/product.h"

#include <ATen/ops/scaled_dot_product_attention.h>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

using runtime::attention;
using runtime::dequantize;
using runtime::Fp8Tensor;
using runtime::ScaleLayout;
using runtime::ScaleRule;

Fp8Tensor cast(const at::Tensor& x, const ScaleLayout& layout) {
  const bool blocks = layout.has_blocks();
  return runtime::quantize(x, {.layout = layout, .rule = blocks ? ScaleRule::max_over_amax : ScaleRule::amax_over_max});
}

at::Tensor exact(const Fp8Tensor& x) { return runtime::dequantize(x, at::kFloat).cpu().to(at::kDouble); }

/// |error| <= 2 K 2^-24 sum |a b| of the sum, and a rounding of each group's and of the result.
void expect_near(const at::Tensor& got, const at::Tensor& a, const at::Tensor& b, double rounding) {
  const at::Tensor want = at::matmul(a, b), bound = at::matmul(a.abs(), b.abs());
  const at::Tensor error = (got.cpu().to(at::kDouble) - want).abs();
  const double k = static_cast<double>(a.size(-1));
  EXPECT_TRUE((error <= bound * (3 * k * std::ldexp(1.0, -24)) + want.abs() * rounding).all().item<bool>())
      << (error / bound).max().item<double>();
}

TEST(Product, OfEveryPairOfLayouts) {
  torch::manual_seed(1);
  const at::Tensor x = hpu(at::randn({21, 200}).to(at::kBFloat16)), w = hpu(at::randn({37, 200}).to(at::kBFloat16));
  const ScaleLayout one = ScaleLayout::per_tensor(), rows = ScaleLayout::per_row();
  for (const auto& a : {one, rows, ScaleLayout::blocks(1, 64), ScaleLayout::blocks(8, 64)})
    for (const auto& b : {one, rows, ScaleLayout::blocks(1, 64), ScaleLayout::blocks(16, 64)}) {
      if (a.has_blocks() && !b.has_blocks()) continue;  // no layer has these
      const Fp8Tensor qx = cast(x, a), qw = cast(w, b);
      expect_near(runtime::matmul(qx, false, qw, true, at::kFloat), exact(qx), exact(qw).t(), std::ldexp(1.0, -24));
      expect_near(runtime::matmul(qx, false, qw, true, at::kBFloat16), exact(qx), exact(qw).t(), std::ldexp(1.0, -8));
    }
}

/// The transpose of `x` in memory of its own, with its scales.
Fp8Tensor turned(const Fp8Tensor& x) {
  Fp8Tensor result = x;
  result.codes = x.codes.view(at::kByte).t().contiguous().view(x.codes.scalar_type());
  if (x.layout.has_blocks()) result.grid = x.grid.t().contiguous();
  result.layout = {x.layout.cols, x.layout.rows};
  return result;
}

TEST(Product, OfTransposedOperands) {
  torch::manual_seed(2);
  const at::Tensor g = hpu(at::randn({64, 48}).to(at::kBFloat16)), w = hpu(at::randn({48, 32}).to(at::kBFloat16)),
                   x = hpu(at::randn({64, 32}).to(at::kBFloat16));
  const struct {
    ScaleLayout left, right;
  } cases[] = {
      {ScaleLayout::per_tensor(), ScaleLayout::per_tensor()},
      {ScaleLayout::blocks(16, 16), ScaleLayout::blocks(16, 16)},  // as weights
      {ScaleLayout::blocks(1, 16), ScaleLayout::blocks(16, 16)},   // a gradient and a weight
      {ScaleLayout::blocks(1, 16), ScaleLayout::blocks(16, 1)},    // a gradient and a weight, MX
      {ScaleLayout::blocks(1, 48), ScaleLayout::blocks(20, 1)},    // no groups that both have
      {ScaleLayout::blocks(1, 48), ScaleLayout::blocks(48, 3)},
      {ScaleLayout::per_row(), ScaleLayout::blocks(6, 5)},  // groups that are no multiple of 4
  };
  for (const auto& [left, right] : cases) {
    const Fp8Tensor a = cast(g, left), b = cast(w, right);
    const at::Tensor y = runtime::matmul(a, false, b, false, at::kFloat);
    expect_near(y, exact(a), exact(b), std::ldexp(1.0, -24));
    const Fp8Tensor at = turned(a), bt = turned(b);
    if (left == ScaleLayout::per_row()) continue;  // its transpose is per column, which has no blocks
    EXPECT_TRUE(same_bits(runtime::matmul(a, false, bt, true, at::kFloat), y)) << left.cols << " " << right.rows;
    EXPECT_TRUE(same_bits(runtime::matmul(at, true, b, false, at::kFloat), y)) << left.cols << " " << right.rows;
    EXPECT_TRUE(same_bits(runtime::matmul(at, true, bt, true, at::kFloat), y)) << left.cols << " " << right.rows;
  }
  for (const auto& layout : {ScaleLayout::blocks(16, 1), ScaleLayout::blocks(64, 1), ScaleLayout::blocks(16, 16)}) {
    const Fp8Tensor a = cast(g, layout), b = cast(x, layout);  // a weight's gradient: groups of tokens
    expect_near(runtime::matmul(a, true, b, false, at::kFloat), exact(a).t(), exact(b), std::ldexp(1.0, -24));
    expect_near(runtime::matmul(a, true, b, false, at::kBFloat16), exact(a).t(), exact(b), std::ldexp(1.0, -8));
  }
}

TEST(Product, OfAPartOfAWeight) {
  torch::manual_seed(5);
  const at::Tensor g = hpu(at::randn({9, 40}).to(at::kBFloat16)), x = hpu(at::randn({9, 24}).to(at::kBFloat16));
  const Fp8Tensor whole = cast(hpu(at::randn({48, 24}).to(at::kBFloat16)), ScaleLayout::blocks(16, 8));
  Fp8Tensor part = whole;  // rows 8 to 48: it begins within a block
  part.codes = whole.codes.narrow(0, 8, 40);
  part.layout.first_row = 8;
  const at::Tensor values = exact(whole).narrow(0, 8, 40);
  const Fp8Tensor qx = cast(x, ScaleLayout::blocks(1, 8)), qg = cast(g, ScaleLayout::blocks(1, 8));
  expect_near(runtime::matmul(qx, false, part, true, at::kFloat), exact(qx), values.t(), std::ldexp(1.0, -24));
  expect_near(runtime::matmul(qg, false, part, false, at::kFloat), exact(qg), values, std::ldexp(1.0, -24));
}

/// x . w^T of the kernel itself, told whether all scales are powers of two.
at::Tensor by_kernel(const Fp8Tensor& x, const Fp8Tensor& w, bool power_of_two) {
  const at::Tensor a = x.codes.cpu(), b = w.codes.cpu(), a_scale = x.grid.cpu().to(at::kFloat),
                   b_scale = w.grid.cpu().to(at::kFloat), y = at::empty({a.size(0), b.size(0)}, at::kFloat);
  kernels::GemmArgs g;
  g.m = a.size(0), g.n = g.y_stride = b.size(0), g.k = g.a_stride = a.size(1);
  g.a = a.const_data_ptr(), g.a_type = kernels::Storage::E4M3;
  g.w = static_cast<const std::uint8_t*>(b.const_data_ptr());
  g.a_scale_inv = a_scale.const_data_ptr<float>(), g.w_scale_inv = b_scale.const_data_ptr<float>();
  g.blocks.cols = w.layout.cols, g.blocks.rows = w.layout.rows;
  g.power_of_two_scales = power_of_two;
  g.y = y.mutable_data_ptr();
  kernels::gemm(g);
  return y;
}

// Each product says whether the scales of both operands are powers of two; products together, as each alone.
TEST(Product, OfScalesThatArePowersOfTwo) {
  torch::manual_seed(6);
  const at::Tensor x = hpu(at::randn({40, 320}).to(at::kBFloat16)), w = hpu(at::randn({96, 320}).to(at::kBFloat16));
  const auto blocks = [](const at::Tensor& t, std::int64_t rows, std::int64_t cols, bool power_of_two) {
    return runtime::quantize(
        t, {.layout = ScaleLayout::blocks(rows, cols), .rule = ScaleRule::max_over_amax, .power_of_two = power_of_two});
  };
  const auto mx = [](const at::Tensor& t) {
    return runtime::quantize(t, {.layout = ScaleLayout::blocks(1, 32), .rule = ScaleRule::e8m0});
  };
  const struct {
    Fp8Tensor x, w;
    bool both;
  } cases[] = {{mx(x), mx(w), true},
               {blocks(x, 1, 128, true), blocks(w, 128, 128, true), true},
               {blocks(x, 1, 128, true), blocks(w, 128, 128, false), false},
               {blocks(x, 1, 128, false), blocks(w, 128, 128, true), false}};
  for (const auto& c : cases) {
    const at::Tensor y = runtime::matmul(c.x, false, c.w, true, at::kFloat);
    EXPECT_TRUE(same_bits(y.cpu(), by_kernel(c.x, c.w, c.both)));
    expect_near(y, exact(c.x), exact(c.w).t(), std::ldexp(1.0, -24));
    if (c.x.grid.scalar_type() != at::kFloat) continue;  // products together take no E8M0
    Fp8Tensor other = c.w;
    other.codes = c.w.codes.clone();
    const auto together = runtime::products_together(c.x, {c.w, other}, at::kFloat);
    ASSERT_EQ(together.size(), 2u);
    for (const at::Tensor& one : together) EXPECT_TRUE(same_bits(one, y));
    other.power_of_two = !c.w.power_of_two;
    EXPECT_TRUE(runtime::products_together(c.x, {c.w, other}, at::kFloat).empty());
  }
}

// A layer that was quantized and one that trains ask for the same product: the operator, with scales as it takes them,
// gives the bits too, unless training says that they are powers of two.
TEST(Product, OfBlocksIsTheOperators) {
  torch::manual_seed(3);
  const at::Tensor x = hpu(at::randn({9, 256}).to(at::kBFloat16)), w = hpu(at::randn({256, 256}).to(at::kBFloat16)),
                   bias = hpu(at::randn({256}));
  const Fp8Tensor qx = cast(x, ScaleLayout::blocks(1, 128)), qw = cast(w, ScaleLayout::blocks(128, 128));
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fp8::block_linear", "");
  for (const bool biased : {false, true}) {
    torch::jit::Stack stack{
        qx.codes, qx.grid, qw.codes, qw.grid, 128, 128, 0, biased ? at::IValue(bias) : kNone, code(at::kBFloat16)};
    op.callBoxed(stack);
    const auto b = biased ? std::optional<at::Tensor>(bias) : std::nullopt;
    EXPECT_TRUE(same_bits(stack[0].toTensor(), runtime::matmul(qx, false, qw, true, at::kBFloat16, b)));
  }
}

TEST(Product, OfHighPrecisionActivations) {
  torch::manual_seed(4);
  const at::Tensor x = hpu(at::randn({2, 5, 96}).to(at::kBFloat16)), w = hpu(at::randn({24, 96}));
  const at::Tensor values = x.cpu().to(at::kDouble);
  for (const auto& layout : {ScaleLayout::per_tensor(), ScaleLayout::per_row(), ScaleLayout::blocks(8, 32)}) {
    const Fp8Tensor qw = cast(w, layout);
    const at::Tensor y = runtime::linear(x, qw, at::kFloat);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 5, 24}));
    expect_near(y, values, exact(qw).t(), std::ldexp(1.0, -24));
  }
}

TEST(Product, NamesWhatDoesNotFit) {
  const Fp8Tensor x = cast(hpu(at::randn({4, 32})), ScaleLayout::per_row()),
                  w = cast(hpu(at::randn({8, 32})), ScaleLayout::per_row()),
                  short_w = cast(hpu(at::randn({8, 31})), ScaleLayout::per_tensor()),
                  blocks = cast(hpu(at::randn({8, 31})), ScaleLayout::blocks(4, 4));
  EXPECT_TRUE(throws_with({"inner dimensions"}, [&] { runtime::matmul(x, false, short_w, true, at::kFloat); }));
  EXPECT_TRUE(throws_with({"inner dimensions"}, [&] { runtime::matmul(x, false, blocks, true, at::kFloat); }));
  EXPECT_TRUE(throws_with({"along the columns"}, [&] { runtime::matmul(x, true, x, false, at::kFloat); }));
  EXPECT_TRUE(throws_with({"[linear] expected x [..., K]"}, [&] { runtime::linear(x.codes, short_w, at::kFloat); }));
  EXPECT_TRUE(
      throws_with({"bias of 8 elements"}, [&] { runtime::matmul(x, false, w, true, at::kFloat, hpu(at::ones({7}))); }));
}

// Attention over codes gives the bits of scaled_dot_product_attention over their values, whichever way it takes.

constexpr std::int64_t kB = 2, kH = 3;

/// The first `keys` columns of a cache that has room for more.
Fp8Tensor cached(std::int64_t keys, std::int64_t width, at::ScalarType format, float scale_inv) {
  const at::Tensor all = (at::randn({kB, kH, keys + 9, width}) / scale_inv / 4).clamp(-200, 200).to(format);
  Fp8Tensor x{hpu(all).narrow(2, 0, keys)};
  x.scale_inv = scale_inv;
  return x;
}

struct Case {
  std::int64_t rows, keys, width;
  at::ScalarType dtype = at::kBFloat16, format = at::kFloat8_e4m3fn;
  int mask = 0;  ///< 0: none, 1: bool [B, 1, 1, S], 2: added [rows, S]
  std::int64_t value_width = 0;
};

void expect_same(const Case& c) {
  torch::manual_seed(c.rows * 100 + c.keys);
  const at::Tensor q = hpu(at::randn({kB, kH, c.rows, c.width}).to(c.dtype));
  const Fp8Tensor k = cached(c.keys, c.width, c.format, 0.02f);
  const Fp8Tensor v = cached(c.keys, c.value_width > 0 ? c.value_width : c.width, c.format, 0.011f);
  at::Tensor mask;
  if (c.mask == 1) mask = hpu(at::arange(c.keys).ge(at::tensor({0, 7}).view({kB, 1, 1, 1})));
  if (c.mask == 2) mask = hpu(at::randn({c.rows, c.keys}).to(c.dtype));
  const double scale = 0.21;
  const at::Tensor y = attention(q, k, v, mask, scale);
  const at::Tensor expected =
      at::scaled_dot_product_attention(q, dequantize(k, c.dtype), dequantize(v, c.dtype),
                                       mask.defined() ? std::optional(mask) : std::nullopt, 0.0, false, scale);
  EXPECT_EQ(y.scalar_type(), c.dtype);
  ASSERT_EQ(y.sizes(), expected.sizes());
  EXPECT_TRUE(y.cpu().equal(expected.cpu())) << c.rows << " x " << c.keys << " x " << c.width << ", mask " << c.mask;
}

TEST(AttentionOverCodes, IsThatOverTheirValues) {
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat})
    for (const int mask : {0, 1, 2}) {
      expect_same({1, 200, 64, dtype, at::kFloat8_e4m3fn, mask});
      expect_same({4, 333, 128, dtype, at::kFloat8_e5m2, mask});
    }
}

TEST(AttentionOverCodes, WhatTheKernelDoesNotTakeIsDequantized) {
  expect_same({1, 20, 64});    // few keys
  expect_same({17, 200, 64});  // many rows
  expect_same({2, 200, 12});   // a width of no whole vectors
  expect_same({1, 200, 64, at::kBFloat16, at::kFloat8_e4m3fn, 0, 32});
}

TEST(AttentionOverCodes, IsCloseToTheExactOne) {
  torch::manual_seed(3);
  const at::Tensor q = hpu(at::randn({kB, kH, 1, 64}));
  const Fp8Tensor k = cached(500, 64, at::kFloat8_e4m3fn, 0.02f), v = cached(500, 64, at::kFloat8_e4m3fn, 0.011f);
  const auto exact = [](const Fp8Tensor& x) {
    return x.codes.cpu().to(at::kDouble) * static_cast<double>(x.scale_inv);
  };
  const at::Tensor p = (q.cpu().to(at::kDouble).matmul(exact(k).transpose(2, 3)) * 0.125).softmax(-1);
  const at::Tensor y = attention(q, k, v, {}, 0.125).cpu().to(at::kDouble);
  EXPECT_LE((y - p.matmul(exact(v))).abs().max().item<double>(), 1e-5);
}

TEST(AttentionOverCodes, OtherScalesAreRefused) {
  const at::Tensor q = hpu(at::randn({kB, kH, 1, 64}));
  Fp8Tensor k = cached(100, 64, at::kFloat8_e4m3fn, 1);
  const Fp8Tensor v = k;
  k.layout = ScaleLayout::per_row();
  EXPECT_THROW(attention(q, k, v, {}, 1), c10::Error);
}

}  // namespace
}  // namespace fp8::test
