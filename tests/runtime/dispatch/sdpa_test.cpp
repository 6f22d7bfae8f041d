// SPDX-License-Identifier: Apache-2.0
// Scaled dot product attention takes the path the CPU takes: bit equal forward and backward.
#include <cmath>

#include "fp8/runtime/dispatch/own_ops.h"
#include "fp8/runtime/kernels/attention.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

struct Attention {
  const char* name;
  std::vector<std::int64_t> q, k;
  bool causal = false, gqa = false;
  int mask = 0;  ///< 0 none, 1 boolean, 2 additive
  std::optional<double> scale = std::nullopt;
  at::ScalarType dtype = at::kFloat;
};

/// Result and gradients of q, k, v (and of an additive mask).
std::vector<at::Tensor> run(const Attention& a, at::Device device, bool grad) {
  torch::manual_seed(31);
  const auto make = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(a.dtype).to(device).requires_grad_(grad); };
  at::Tensor q = make(a.q), k = make(a.k), v = make(a.k);
  std::optional<at::Tensor> mask;
  if (a.mask == 1) mask = (at::rand({a.q[2], a.k[2]}) > 0.3).to(device);
  if (a.mask == 2) mask = at::randn({a.q[2], a.k[2]}).to(a.dtype).to(device);
  if (a.mask == 1) mask->select(1, 0).fill_(true);  // no row without a key
  const at::Tensor y = at::scaled_dot_product_attention(q, k, v, mask, 0.0, a.causal, a.scale, a.gqa);
  EXPECT_EQ(y.device().type(), device.type());
  std::vector<at::Tensor> out = {y.detach().cpu()};
  if (!grad) return out;
  (y * at::arange(y.numel(), y.options()).view(y.sizes()).cos()).sum().backward();
  for (const auto& t : {q, k, v}) out.push_back(t.grad().cpu());
  return out;
}

const Attention kCases[] = {
    {"plain", {2, 3, 5, 8}, {2, 3, 5, 8}},
    {"causal", {2, 3, 17, 8}, {2, 3, 17, 8}, true},
    {"cross", {1, 2, 3, 16}, {1, 2, 9, 16}},
    {"boolean mask", {2, 3, 5, 8}, {2, 3, 7, 8}, false, false, 1},
    {"additive mask", {2, 3, 5, 8}, {2, 3, 7, 8}, false, false, 2},
    {"scale", {2, 3, 5, 8}, {2, 3, 5, 8}, false, false, 0, 0.25},
    {"grouped queries", {2, 4, 5, 8}, {2, 2, 5, 8}, false, true},
    {"causal grouped queries", {2, 4, 5, 8}, {2, 2, 5, 8}, true, true},
    {"bf16", {2, 3, 33, 16}, {2, 3, 33, 16}, true, false, 0, std::nullopt, at::kBFloat16},
    {"odd head size", {1, 1, 4, 7}, {1, 1, 4, 7}, true},
};

TEST(Sdpa, EqualsTheCpuForwardAndBackward) {
  for (const auto& a : kCases) {
    const auto got = run(a, kHpu, true), expected = run(a, at::kCPU, true);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << a.name << ", " << i;
  }
}

TEST(Sdpa, EqualsTheCpuWithoutGradients) {
  for (const auto& a : kCases) {
    EXPECT_TRUE(same_bits(run(a, kHpu, false)[0], run(a, at::kCPU, false)[0])) << a.name;
    const c10::InferenceMode inference;
    EXPECT_TRUE(same_bits(run(a, kHpu, false)[0], run(a, at::kCPU, false)[0])) << a.name;
  }
}

TEST(Sdpa, AMaskThatNeedsAGradientGetsOne) {
  const auto gradient = [](at::Device device) {
    torch::manual_seed(1);
    const at::Tensor q = at::randn({1, 2, 4, 8}).to(device), mask = at::randn({4, 4}).to(device).requires_grad_(true);
    at::scaled_dot_product_attention(q, q, q, mask).square().sum().backward();
    return mask.grad().cpu();
  };
  EXPECT_TRUE(same_bits(gradient(kHpu), gradient(at::kCPU)));
}

TEST(Sdpa, TheChoiceIsTheCpus) {
  const at::Tensor q = at::randn({1, 2, 4, 8}), mask = at::randn({4, 4});
  const auto choice = [&](at::Device device, bool mask_needs_grad) {
    return at::_fused_sdp_choice(q.to(device), q.to(device), q.to(device),
                                 mask.to(device).detach().requires_grad_(mask_needs_grad));
  };
  EXPECT_EQ(choice(kHpu, false), choice(at::kCPU, false));
  EXPECT_EQ(choice(kHpu, true), choice(at::kCPU, true));
  EXPECT_NE(choice(kHpu, false), choice(kHpu, true));
}

// Few rows over many keys take kernels/attention.h; what it computes is tested beside it.

struct RowsOverKeys {
  std::int64_t rows, keys, width;
  int mask = 0;  ///< 0 none, 1 boolean [L, S], 2 additive [B, 1, L, S]
  at::ScalarType dtype = at::kBFloat16;
  std::optional<double> scale = std::nullopt;
};

constexpr std::int64_t kB = 2, kH = 3;

std::vector<at::Tensor> operands(const RowsOverKeys& a) {
  torch::manual_seed(5);
  const at::Tensor q = at::randn({kB, kH, a.rows, a.width}).to(a.dtype),
                   k = at::randn({kB, a.keys, kH, a.width}).to(a.dtype).transpose(1, 2),  // as models split heads
      v = at::randn({kB, kH, a.keys + 7, a.width}).to(a.dtype).narrow(2, 0, a.keys);      // as caches lie
  at::Tensor mask;
  if (a.mask == 1) mask = at::rand({a.rows, a.keys}) > 0.3;
  if (a.mask == 2) mask = at::randn({kB, 1, a.rows, a.keys}).to(a.dtype);
  return {q, k, v, mask};
}

at::Tensor attend(const RowsOverKeys& a, const std::vector<at::Tensor>& in) {
  const auto mask = in[3].defined() ? std::optional<at::Tensor>(in[3]) : std::nullopt;
  return at::scaled_dot_product_attention(in[0], in[1], in[2], mask, 0.0, false, a.scale);
}

std::vector<at::Tensor> to(const std::vector<at::Tensor>& all,
                           const std::function<at::Tensor(const at::Tensor&)>& move) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& t : all) out.push_back(t.defined() ? move(t) : t);
  return out;
}

TEST(Sdpa, FewRowsOverManyKeysAreCloseToTheExactOnes) {
  const RowsOverKeys cases[] = {{1, 64, 64},
                                {1, 700, 128},
                                {8, 300, 64, 0, at::kBFloat16, 0.3},
                                {16, 300, 16, 1},
                                {5, 300, 40, 2},
                                {1, 300, 8, 1, at::kFloat},
                                {4, 129, 20, 2, at::kFloat},
                                {3, 64, 96, 0, at::kFloat, 0.01}};
  for (const RowsOverKeys& a : cases) {
    const auto in = operands(a);
    const at::Tensor exact =
        attend(a, to(in, [](const at::Tensor& t) { return t.scalar_type() == at::kBool ? t : t.to(at::kDouble); }));
    const at::Tensor y = attend(a, to(in, [](const at::Tensor& t) { return t.to(kHpu); }));
    EXPECT_EQ(y.device().type(), c10::kHPU);
    EXPECT_EQ(y.scalar_type(), a.dtype);
    EXPECT_EQ(y.strides(), attend(a, in).strides()) << "memory as on the CPU";
    const double unit = a.dtype == at::kFloat ? 0x1p-18 : 0x1p-7;
    EXPECT_LE((y.cpu().to(at::kDouble) - exact).abs().max().item<double>(), unit) << a.rows << " x " << a.keys;
  }
}

TEST(Sdpa, FewRowsAreOurKernels) {
  const RowsOverKeys a{2, 200, 32, 0, at::kFloat};
  const auto in = operands(a);
  const at::Tensor k = in[1].contiguous(), v = in[2].contiguous(), expected = at::empty({kB, kH, a.rows, a.width});
  kernels::AttentionArgs args;
  args.type = kernels::FloatType::F32, args.batch = kB, args.heads = kH;
  args.rows = a.rows, args.keys = a.keys, args.width = a.width;
  args.q = {in[0].const_data_ptr(), kH * a.rows * a.width, a.rows * a.width, a.width};
  args.k = {k.const_data_ptr(), kH * a.keys * a.width, a.keys * a.width, a.width};
  args.v = {v.const_data_ptr(), kH * a.keys * a.width, a.keys * a.width, a.width};
  args.y = {expected.mutable_data_ptr(), kH * a.rows * a.width, a.rows * a.width, a.width};
  args.scale = static_cast<float>(1 / std::sqrt(32.0));
  kernels::attention(args);
  const auto moved = to(in, [](const at::Tensor& t) { return t.to(kHpu); });
  EXPECT_TRUE(same_bits(attend(a, moved).cpu(), expected));
  EXPECT_FALSE(same_bits(attend(a, in), expected)) << "PyTorch's sums have another order";
}

TEST(Sdpa, LogsumexpOfFewRowsIsTheCpus) {
  const RowsOverKeys a{3, 300, 64};
  const auto in = operands(a);
  const auto of = [](const std::vector<at::Tensor>& t) {
    return std::get<1>(at::_scaled_dot_product_flash_attention_for_cpu(t[0], t[1], t[2]));
  };
  const at::Tensor cpu = of(in), ours = of(to(in, [](const at::Tensor& t) { return t.to(kHpu); })).cpu();
  EXPECT_EQ(ours.sizes(), cpu.sizes());
  EXPECT_LE((ours - cpu).abs().max().item<double>(), 1e-3);  // PyTorch multiplies in bf16
}

TEST(Sdpa, WhatNeedsAGradientOrIsCausalIsTheCpusToTheBit) {
  for (const bool causal : {false, true}) {
    const Attention a{"few rows", {1, 2, 4, 16}, {1, 2, 100, 16}, causal, false, 0, std::nullopt, at::kBFloat16};
    const auto got = run(a, kHpu, !causal), expected = run(a, at::kCPU, !causal);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << causal << ", " << i;
  }
}

TEST(Sdpa, DropoutFollowsTheSeed) {
  const auto dropped = [](at::Device device) {
    torch::manual_seed(8);
    const at::Tensor q = at::randn({1, 2, 6, 8}).to(device);
    return at::scaled_dot_product_attention(q, q, q, {}, 0.5).cpu();
  };
  EXPECT_TRUE(same_bits(dropped(kHpu), dropped(at::kCPU)));
}

TEST(Sdpa, BadArgumentsThrowTheCpusText) {
  const auto text = [](at::Device device) {
    const at::Tensor q = at::randn({1, 2, 6, 8}).to(device), k = at::randn({1, 2, 6, 4}).to(device);
    return error_of([&] { at::scaled_dot_product_attention(q, k, k); });
  };
  EXPECT_NE(text(kHpu), "");
  const auto both = [](at::Device device) {
    const at::Tensor q = at::randn({1, 2, 6, 8}).to(device), mask = at::zeros({6, 6}).to(device);
    return error_of([&] { at::scaled_dot_product_attention(q, q, q, mask, 0.0, true); });
  };
  EXPECT_EQ(both(kHpu), both(at::kCPU));
}

}  // namespace
}  // namespace fp8::test
