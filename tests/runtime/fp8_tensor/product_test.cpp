// SPDX-License-Identifier: Apache-2.0
// Products of every pair of layouts against f64 products of the values, and which of them share their bits.
#include "fp8/runtime/fp8_tensor/product.h"

#include "fp8/runtime/fp8_tensor/cast.h"
#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

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
  for (const auto& a : {one, rows, ScaleLayout::blocks(1, 64), ScaleLayout::blocks(8, 64)}) {
    for (const auto& b : {one, rows, ScaleLayout::blocks(1, 64), ScaleLayout::blocks(16, 64)}) {
      if (a.has_blocks() && !b.has_blocks()) continue;  // no layer has these
      const Fp8Tensor qx = cast(x, a), qw = cast(w, b);
      expect_near(runtime::matmul(qx, false, qw, true, at::kFloat), exact(qx), exact(qw).t(), std::ldexp(1.0, -24));
      expect_near(runtime::matmul(qx, false, qw, true, at::kBFloat16), exact(qx), exact(qw).t(), std::ldexp(1.0, -8));
    }
  }
}

TEST(Product, OfTransposedOperands) {
  torch::manual_seed(2);
  const at::Tensor g = hpu(at::randn({64, 48}).to(at::kBFloat16)), w = hpu(at::randn({48, 32}).to(at::kBFloat16)),
                   x = hpu(at::randn({64, 32}).to(at::kBFloat16));
  for (const auto& layout : {ScaleLayout::per_tensor(), ScaleLayout::blocks(16, 16)}) {
    const Fp8Tensor qg = cast(g, layout), qw = cast(w, layout), qx = cast(x, layout);
    expect_near(runtime::matmul(qg, false, qw, false, at::kFloat), exact(qg), exact(qw), std::ldexp(1.0, -24));
    expect_near(runtime::matmul(qg, true, qx, false, at::kFloat), exact(qg).t(), exact(qx), std::ldexp(1.0, -24));
  }
}

// A layer that was quantized and one that trains ask for the same product: the operator, with scales as it takes them,
// gives the bits too.
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

}  // namespace
}  // namespace fp8::test
