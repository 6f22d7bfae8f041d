// SPDX-License-Identifier: Apache-2.0
// Additions and multiplications against the loops that the formulas stand for, and the bytes of what ops give.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/leaf/heard.h"
#include "runtime/ops/op_call.h"
#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

using test::call;
using test::heard_of;
using test::kNone;
using test::on_hpu;

/// The one leaf of f().
template <class F>
test::Heard leaf_of(F&& f) {
  const auto& found = heard_of(f);
  EXPECT_EQ(found.heard.size(), 1U);
  return found.heard.empty() ? test::Heard{} : found.heard.front();
}

// Batch 2, 3 heads, 4 queries, 6 keys, depth 8 of q and k, 10 of v.
constexpr std::int64_t kScores = 2 * 3 * 4 * 6, kD = 8, kE = 10;

struct Heads {
  at::Tensor q = torch::randn({2, 3, 4, kD}, on_hpu()), k = torch::randn({2, 3, 6, kD}, on_hpu()),
             v = torch::randn({2, 3, 6, kE}, on_hpu()), grad = torch::randn({2, 3, 4, kE}, on_hpu());
};

TEST(LeafFlops, AttentionOfTheDevice) {
  const Heads h;
  std::vector<at::Tensor> kept;
  const auto forward =
      leaf_of([&] { kept = call("sdpa_fwd", "", {h.q, h.k, h.v, kNone, 0.0, 0.5, false, "none", kNone, "left"}); });
  EXPECT_EQ(forward.op, "hpu::sdpa_fwd");
  EXPECT_EQ(forward.flops, 2 * kScores * (kD + kE));  // q k^T, P v
  const auto elements = h.q.numel() + h.k.numel() + h.v.numel();
  EXPECT_GE(forward.bytes, 4 * (elements + h.grad.numel() + kScores));  // and what stands for the absent
  const auto backward =
      leaf_of([&] { call("sdpa_bwd", "", {h.grad, h.q, h.k, h.v, kept[1], kNone, false, 0.0, 0.5, kept[0]}); });
  EXPECT_EQ(backward.flops, 2 * kScores * (kE + kE + kD + kD));  // dP, dv, dq, dk
  EXPECT_GE(backward.bytes, 4 * (2 * elements + h.grad.numel() + kScores));
}

TEST(LeafFlops, AttentionThatMakesItsScoresAgain) {
  const Heads h;
  std::vector<at::Tensor> kept;
  const auto forward = leaf_of([&] {
    kept = call("sdpa_recomp_fwd", "", {h.q, h.k, h.v, kNone, 0.0, 0.5, false, true, "none", kNone, "left"});
  });
  EXPECT_EQ(forward.flops, 2 * kScores * (kD + kE));
  const auto backward = leaf_of([&] {
    call("sdpa_recomp_bwd", "",
         {h.grad, h.q, h.k, h.v, kNone, kept[1], kept[2], kNone, false, 0.0, 0.5, "none", kept[0]});
  });
  EXPECT_EQ(backward.flops, 2 * kScores * (kD + kE + kE + kD + kD));  // q k^T once more
}

TEST(LeafFlops, AttentionOfATen) {
  const auto q = torch::randn({2, 3, 4, kD}, on_hpu()).requires_grad_(),
             k = torch::randn({2, 3, 6, kD}, on_hpu()).requires_grad_(),
             v = torch::randn({2, 3, 6, kD}, on_hpu()).requires_grad_();
  const auto& found = heard_of([&] { at::scaled_dot_product_attention(q, k, v).sum().backward(); });
  const auto backward = found.of("aten::_scaled_dot_product_flash_attention_for_cpu_backward");
  ASSERT_EQ(backward.size(), 1U);
  EXPECT_EQ(backward[0].flops, 2 * kScores * 5 * kD);
}

TEST(LeafFlops, ConvolutionsBackward) {
  const auto x = torch::randn({2, 3, 8, 8}, on_hpu()), w = torch::randn({5, 3, 3, 3}, on_hpu());
  constexpr std::int64_t kForward = std::int64_t{2} * (2 * 5 * 6 * 6) * (3 * 3 * 3);
  for (const bool both : {true, false}) {
    const auto weight = w.clone().requires_grad_(), input = x.clone().requires_grad_(both);
    const auto& found = heard_of([&] { at::conv2d(input, weight).sum().backward(); });
    const auto backward = found.of("aten::convolution_backward");
    ASSERT_EQ(backward.size(), 1U);
    EXPECT_EQ(backward[0].flops, (both ? 2 : 1) * kForward);
  }
}

// Each element of y = x r w: x^2 and its sum, x r, .. w. Backward: n = x r; dy w; its product with n and the sum; dy n
// and the sum; n times the mean, the difference, times r.
TEST(LeafFlops, RmsNorm) {
  const auto x = torch::randn({3, 7, 16}, on_hpu()), w = torch::randn(16, on_hpu()), dy = torch::randn_like(x);
  constexpr std::int64_t kElements = 3 * 7 * 16;
  std::vector<at::Tensor> kept;
  const auto forward = leaf_of([&] { kept = call("rms_norm", "", {x, w, 1e-6}); });
  EXPECT_EQ(forward.flops, 4 * kElements);
  EXPECT_EQ(forward.bytes, 4 * (2 * kElements + 16 + 21));
  const auto backward = leaf_of([&] { call("rms_norm_backward", "", {dy, x, w, kept[1], false, 0}); });
  EXPECT_EQ(backward.flops, 9 * kElements);
  EXPECT_EQ(backward.bytes, 4 * (3 * kElements + 16 + 16 + 21));
}

TEST(LeafFlops, Rotation) {
  const auto x = torch::randn({2, 3, 4, 8}, on_hpu()), table = torch::randn({4, 8}, on_hpu());
  const auto forward = leaf_of([&] { call("rotary_pos_embedding", "", {x, table, table, kNone, 0, 0}); });
  EXPECT_EQ(forward.flops, 3 * x.numel());  // x cos, turned(x) sin, their sum
  EXPECT_EQ(forward.bytes, 4 * (2 * x.numel() + 2 * table.numel()));
  const auto backward = leaf_of([&] { call("rotary_pos_embedding_backward", "", {x, table, table, kNone, 0, 0}); });
  EXPECT_EQ(backward.flops, forward.flops);
}

// Three tokens of H = 4 to two experts each, of F = 6; one expert is another rank's: five rows.
TEST(LeafFlops, ExpertsCountTheRowsThatTheyGet) {
  const auto x = torch::randn({3, 4}, on_hpu());
  const auto table = torch::tensor({0, 1, 1, 0, 1, 2}).reshape({3, 2}).to(test::kHpu);
  const auto router = torch::ones({3, 2}, on_hpu());
  const std::vector<at::Tensor> in(2, torch::randn({4, 6}, on_hpu())), out(2, torch::randn({6, 4}, on_hpu()));
  const auto leaf =
      leaf_of([&] { call("mixture_of_experts", "", {x, table, router, in, in, out, false, "silu", 0, 1}); });
  EXPECT_EQ(leaf.op, "hpu::mixture_of_experts");
  EXPECT_EQ(leaf.flops, 5 * 3 * (2 * 4 * 6));  // gate, up and down of each row
  EXPECT_EQ(leaf.bytes, 4 * (2 * 12 + 6 + 6 * 24) + 8 * 6);
}

}  // namespace
}  // namespace fp8::runtime
