// SPDX-License-Identifier: Apache-2.0
// Attention over codes gives the bits of scaled_dot_product_attention over their values, whichever way it takes.
#include <ATen/ops/scaled_dot_product_attention.h>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/product.h"
#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

using runtime::attention;
using runtime::dequantize;
using runtime::Fp8Tensor;
using runtime::ScaleLayout;

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
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const int mask : {0, 1, 2}) {
      expect_same({1, 200, 64, dtype, at::kFloat8_e4m3fn, mask});
      expect_same({4, 333, 128, dtype, at::kFloat8_e5m2, mask});
    }
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
