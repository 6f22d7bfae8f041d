// SPDX-License-Identifier: Apache-2.0
// Scaled dot product attention takes the path the CPU takes: bit equal forward and backward.
#include "fp8/runtime/dispatch/sdpa.h"

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
