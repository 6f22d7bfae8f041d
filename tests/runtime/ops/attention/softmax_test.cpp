// SPDX-License-Identifier: Apache-2.0
// softmax_fp8 in its three forms against the formula in f64, and what it refuses in the vendor's words.
#include "sdpa_reference.h"

namespace fp8::test {
namespace {

using runtime::DeviceKind;
using runtime::DeviceKindScope;

at::Tensor exact(const at::Tensor& x, double factor, const at::Tensor& add = {}) {
  at::Tensor s = wide(x) * factor;
  if (add.defined()) s = s + wide(add);
  return at::softmax(s, -1);
}

/// Codes nearest to v * scale, up to a relative 1e-5 of v.
void expect_codes(const at::Tensor& y, const at::Tensor& v, double scale, double max) {
  ASSERT_EQ(y.scalar_type(), kE4M3);
  ASSERT_EQ(y.sizes(), v.sizes());
  const auto got = codes_of(y);
  const at::Tensor flat = v.contiguous();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double p = flat.const_data_ptr<double>()[i] * scale;
    ASSERT_GE(got[i], code_of(p * (1 - 1e-5), false, max)) << i;
    ASSERT_LE(got[i], code_of(p * (1 + 1e-5), false, max)) << i;
  }
}

TEST(SoftmaxFp8, EveryFormIsTheFormula) {
  const std::vector<std::int64_t> sizes = {5, 4, 3, 37};
  const at::Tensor bf16 = random_hpu(sizes, at::kBFloat16, 1) * 4, fp8 = random_codes(sizes, kE4M3, 2);
  const double in = 0.05f, out = 240.0, heads = 0.1f;
  for (const at::Tensor& x : {bf16, fp8}) {
    for (const std::vector<std::int64_t>& add_sizes :
         {std::vector<std::int64_t>{}, {5, 1, 1, 37}, {5, 4, 3, 37}, {5, 1, 3, 37}}) {
      const at::Tensor add = add_sizes.empty() ? at::Tensor() : random_hpu(add_sizes, at::kBFloat16, 3);
      const at::IValue add_arg = add.defined() ? at::IValue(add) : kNone;
      expect_codes(call("softmax_fp8", "", {x, -1, one(in), one(out), kNone, add_arg})[0], exact(x, in, add), out, 448);
      expect_codes(call("softmax_fp8", "", {x, 3, one(in), one(out), one(heads), add_arg})[0],
                   exact(x, in * heads, add), out, 448);
      expect_codes(call("softmax_fp8", "Scalar_scales", {x, -1, in, out, one(heads), add_arg})[0],
                   exact(x, in * heads, add), out, 448);
      expect_codes(call("softmax_fp8", "Scalar_scales", {x, -1, in, out, kNone, add_arg})[0], exact(x, in, add), out,
                   448);
      expect_codes(call("softmax_fp8", "Scalar", {x, -1, in, out, heads, add_arg})[0], exact(x, in * heads, add), out,
                   448);
    }
  }
}

TEST(SoftmaxFp8, WithoutScalesGivesBf16) {
  const at::Tensor x = random_hpu({7, 100}, at::kBFloat16, 1);
  for (const bool heads : {false, true}) {
    const at::Tensor y = call("softmax_fp8", "", {x, -1, kNone, kNone, heads ? at::IValue(one(0.5)) : kNone})[0],
                     v = exact(x, heads ? 0.5 : 1);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    expect_rounded(y, v, v, "bf16");
  }
}

TEST(SoftmaxFp8, SaturatesAsTheDeviceDoes) {
  const at::Tensor x = at::tensor({30.0f, 0.0f, 0.0f}).to(at::kBFloat16).to(kHpu);  // almost all on one
  for (const auto& [kind, max] : {std::pair{DeviceKind::gaudi2, 240.0}, {DeviceKind::gaudi3, 448.0}}) {
    const DeviceKindScope scope(kind);
    const at::Tensor y = call("softmax_fp8", "Scalar_scales", {x, -1, 1.0, 1000.0})[0];
    EXPECT_EQ(values_of(y)[0].item<double>(), max);
  }
}

TEST(SoftmaxFp8, ViewsEmptyAndWalledOffRows) {
  const at::Tensor x = random_hpu({6, 5, 4}, at::kBFloat16, 1).permute({2, 0, 1});
  expect_codes(call("softmax_fp8", "Scalar_scales", {x, -1, 1.0, 200.0})[0], exact(x, 1), 200, 448);
  for (const at::Tensor& empty : {at::empty({0, 4}, on_hpu(at::kBFloat16)), at::empty({4, 0}, on_hpu(at::kBFloat16))}) {
    EXPECT_EQ(call("softmax_fp8", "", {empty, -1})[0].sizes(), empty.sizes());
  }
  at::Tensor wall = at::zeros({2, 3}, at::kBFloat16);
  wall[1].fill_(-INFINITY);
  const at::Tensor y = values_of(call("softmax_fp8", "Scalar_scales",
                                      {at::ones({2, 3}, on_hpu(at::kBFloat16)), -1, 1.0, 3.0, kNone, hpu(wall)})[0]);
  EXPECT_TRUE((y[0] == 1).all().item<bool>());
  EXPECT_TRUE((y[1] == 0).all().item<bool>());
}

TEST(SoftmaxFp8, RefusesInTheVendorsWords) {
  const at::Tensor x = at::ones({2, 3, 4}, on_hpu(at::kBFloat16)), q = x.to(kE4M3),
                   add = at::ones({2, 3, 4}, on_hpu(at::kBFloat16));
  const auto softmax = [](torch::jit::Stack args) { return [args] { call("softmax_fp8", "", args); }; };
  EXPECT_TRUE(throws_with({"Input tensor must be of torch.bfloat16 or torch.float8_e4m3fn dtype."},
                          softmax({x.to(at::kFloat), -1})));
  EXPECT_TRUE(throws_with({"Output and input scales must be both given or None"}, softmax({x, -1, one(1)})));
  EXPECT_TRUE(throws_with({"then input scale must be given."}, softmax({q, -1})));
  EXPECT_TRUE(throws_with({"Input scale must be of dtype: Float"}, softmax({x, -1, one(1).to(at::kBFloat16), one(1)})));
  EXPECT_TRUE(throws_with({"Input fused_add must be of dtype: BFloat16"},
                          softmax({x, -1, one(1), one(1), kNone, add.to(at::kFloat)})));
  EXPECT_TRUE(throws_with({"FusedAdd available only for Float8 output"}, softmax({x, -1, kNone, kNone, kNone, add})));
  EXPECT_TRUE(throws_with({"same rank"}, softmax({x, -1, one(1), one(1), kNone, add[0]})));
  EXPECT_TRUE(throws_with({"same first and last dim"}, softmax({x, -1, one(1), one(1), kNone, add.slice(0, 0, 1)})));
  EXPECT_TRUE(
      throws_with({"dim other than first and last"}, softmax({x, -1, one(1), one(1), kNone, add.slice(1, 0, 2)})));
  EXPECT_TRUE(throws_with({"[softmax_fp8]", "last dimension", "got dim 0"}, softmax({x, 0})));
  EXPECT_TRUE(throws_with({"[softmax_fp8]", "one element, got 4"},
                          softmax({x, -1, at::ones({4}, on_hpu()), at::ones({4}, on_hpu())})));
}

}  // namespace
}  // namespace fp8::test
