// SPDX-License-Identifier: Apache-2.0
// Dropout in attention: the mask that a seed gives, the formulas with it, and the drawn seeds. And what the sdpa
// operators refuse.
#include "sdpa_reference.h"

namespace fp8::test {
namespace {

struct Inputs {
  at::Tensor q = random_hpu({2, 3, 40, 8}, at::kFloat, 1), k = random_hpu({2, 3, 50, 8}, at::kFloat, 2),
             v = random_hpu({2, 3, 50, 8}, at::kFloat, 3), grad = random_hpu({2, 3, 40, 8}, at::kFloat, 4);
};

at::Tensor seed_of(std::int32_t seed) { return at::full({1}, seed, on_hpu(at::kInt)); }

std::vector<at::Tensor> forward(const Inputs& in, double p, std::int32_t seed, bool causal = false) {
  return call("sdpa_fwd_dropout_seed", "",
              {seed_of(seed), in.q, in.k, in.v, kNone, p, 0.3, causal, "none", kNone, "left"});
}

TEST(SdpaDropout, KeepsEachElementWithProbabilityOneMinusP) {
  const Inputs in;
  for (const double p : {0.1, 0.5, 0.9}) {
    const at::Tensor dm = forward(in, p, 7)[2].cpu();
    EXPECT_EQ(dm.scalar_type(), at::kChar);
    EXPECT_EQ(dm.sizes(), at::IntArrayRef({2, 3, 40, 50}));
    EXPECT_TRUE(((dm == 0) | (dm == 1)).all().item<bool>());
    const double kept = dm.to(at::kDouble).mean().item<double>(),
                 sigma = std::sqrt(p * (1 - p) / static_cast<double>(dm.numel()));
    EXPECT_NEAR(kept, 1 - p, 4 * sigma) << p;
  }
  EXPECT_EQ(forward(in, 1.0, 7)[2].cpu().max().item<int>(), 0);
  EXPECT_EQ(forward(in, 1.0, 7)[0].cpu().abs().max().item<float>(), 0.0f);
}

TEST(SdpaDropout, IsAFunctionOfTheSeed) {
  const Inputs in;
  EXPECT_TRUE(same_bits(forward(in, 0.5, 7)[2], forward(in, 0.5, 7)[2]));
  const double agree =
      (forward(in, 0.5, 7)[2].cpu() == forward(in, 0.5, 8)[2].cpu()).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(agree, 0.5, 0.03);
}

TEST(SdpaDropout, TheFormulasHoldWithTheMask) {
  const Inputs in;
  for (const bool causal : {false, true}) {
    const auto r = forward(in, 0.3, 11, causal);
    const at::Tensor q = wide(in.q).requires_grad_(true), k = wide(in.k).requires_grad_(true),
                     v = wide(in.v).requires_grad_(true);
    const at::Tensor p = probabilities(q, k, 0.3, causal ? causal_mask(40, 50) : at::zeros({40, 50}, at::kDouble)),
                     dropped = p * r[2].cpu().to(at::kDouble) / 0.7, out = at::matmul(dropped, v);
    expect_rounded(r[0], out.detach(), at::matmul(dropped, v.abs()).detach(), "out");
    expect_rounded(r[1], p.detach(), p.detach(), "P is before dropout");
    const auto exact = torch::autograd::grad({out}, {q, k, v}, {wide(in.grad)});
    const auto got = call("sdpa_bwd", "", {in.grad, in.q, in.k, in.v, r[1], r[2], causal, 0.3, 0.3, r[0]});
    const auto saved = call("sdpa_recomp_fwd_dropout_seed", "",
                            {seed_of(11), in.q, in.k, in.v, kNone, 0.3, 0.3, causal, true, "none", kNone, "left"});
    expect_rounded(saved[0], out.detach(), at::matmul(dropped, v.abs()).detach(),
                   "the recomputing form drops the same elements");
    EXPECT_EQ(saved[3].item<int>(), 11);
    const auto again =
        call("sdpa_recomp_bwd", "",
             {in.grad, in.q, in.k, in.v, kNone, saved[1], saved[2], saved[3], causal, 0.3, 0.3, "none", saved[0]});
    for (std::size_t i = 0; i < 3; ++i) {
      const double size = exact[i].abs().max().item<double>();
      EXPECT_LE((wide(got[i]) - exact[i]).abs().max().item<double>(), 5e-6 * size) << i;
      EXPECT_LE((wide(again[i]) - exact[i]).abs().max().item<double>(), 5e-6 * size) << i;
    }
  }
}

TEST(SdpaDropout, SeedsAreDrawnFromTheGenerator) {
  const Inputs in;
  const auto run = [&](const char* name) {
    return call(name, "", {in.q, in.k, in.v, kNone, 0.5, 0.3, false, true, "none", kNone, "left"});
  };
  torch::manual_seed(3);
  const auto a = run("sdpa_recomp_fwd"), b = run("sdpa_recomp_fwd_dropout");
  torch::manual_seed(3);
  const auto c = run("sdpa_recomp_fwd_dropout");
  EXPECT_TRUE(same_bits(a[0], c[0]));
  EXPECT_TRUE(same_bits(a[3], c[3]));
  EXPECT_NE(a[3].item<int>(), b[3].item<int>());
  const auto none =
      call("sdpa_recomp_fwd", "", {in.q, in.k, in.v, kNone, 0.5, 0.3, false, false, "none", kNone, "left"});
  for (int i = 1; i < 4; ++i) EXPECT_EQ(none[i].sizes(), at::IntArrayRef({1}));
}

TEST(SdpaRefusals, NameTheArgument) {
  const at::Tensor q = at::ones({2, 3, 4, 8}, on_hpu()), k = at::ones({2, 3, 5, 8}, on_hpu());
  const auto fwd = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, const at::IValue& mask = {},
                      double p = 0, const at::IValue& valid = {}, const char* padding = "left") {
    call("sdpa_fwd", "", {a, b, c, mask, p, 1.0, false, "none", valid, padding});
  };
  EXPECT_REFUSED(fwd(q, k[0], k), "[hpu::sdpa_fwd]", "one rank");
  EXPECT_REFUSED(fwd(q[0][0], k[0][0], k[0][0]), "[hpu::sdpa_fwd]", "one rank, at least 3");
  EXPECT_REFUSED(fwd(q, k.slice(-1, 0, 4), k), "[hpu::sdpa_fwd]", "[..., S, D]");
  EXPECT_REFUSED(fwd(q.slice(0, 0, 1), k.slice(0, 0, 1), k), "[hpu::sdpa_fwd]", "batch dimensions of v");
  EXPECT_NE(error_of([&] { fwd(q, k.slice(1, 0, 2), k); }), "");
  EXPECT_REFUSED(fwd(q, k, k.to(at::kBFloat16)), "[hpu::sdpa_fwd]", "one dtype", "Float and BFloat16");
  EXPECT_REFUSED(fwd(q, k.cpu(), k), "[hpu::sdpa_fwd]", "one device", "cpu");
  EXPECT_REFUSED(fwd(q.to(at::kDouble), k.to(at::kDouble), k.to(at::kDouble)), "[hpu::sdpa_fwd]", "Double");
  EXPECT_REFUSED(fwd(q, k, k, at::ones({4, 6}, on_hpu())), "[hpu::sdpa_fwd]", "attention_mask", "[2, 3, 4, 5]",
                 "[4, 6]");
  EXPECT_REFUSED(fwd(q, k, k, at::ones({4, 5}, on_hpu(at::kInt))), "[hpu::sdpa_fwd]", "attention_mask", "Int");
  EXPECT_REFUSED(fwd(q, k, k, kNone, 1.5), "[hpu::sdpa_fwd]", "probability", "1.5");
  EXPECT_REFUSED(fwd(q, k, k, kNone, std::nan("")), "[hpu::sdpa_fwd]", "probability");
  const at::Tensor lengths = at::tensor({3, 6}, at::kInt).to(kHpu);
  EXPECT_REFUSED(fwd(q, k, k, kNone, 0, lengths), "[hpu::sdpa_fwd]", "from 0 to 5", "got 6");
  EXPECT_REFUSED(fwd(q, k, k, kNone, 0, lengths.slice(0, 0, 1)), "[hpu::sdpa_fwd]", "valid_seq_len of 2");
  EXPECT_REFUSED(fwd(q, k, k, kNone, 0, lengths.to(at::kFloat)), "[hpu::sdpa_fwd]", "valid_seq_len", "Float");
  EXPECT_REFUSED(fwd(q, k, k, kNone, 0, lengths - 2, "middle"), "[hpu::sdpa_fwd]", "left or right", "\"middle\"");

  const auto r = call("sdpa_recomp_fwd", "", {q, k, k, kNone, 0.0, 1.0, false, true, "none", kNone, "left"});
  EXPECT_REFUSED(call("sdpa_recomp_bwd", "", {r[0], q, k, k, kNone, r[1], r[2], kNone, false, 0.5, 1.0, "none", r[0]}),
                 "[hpu::sdpa_recomp_bwd]", "a seed for dropout");
  EXPECT_REFUSED(
      call("sdpa_recomp_bwd", "", {r[0], q, k, k, kNone, r[1], r[2][0], kNone, false, 0.0, 1.0, "none", r[0]}),
      "[hpu::sdpa_recomp_bwd]", "linv of sizes");
  EXPECT_REFUSED(call("sdpa_bwd", "", {r[0], q, k, k, r[1], kNone, false, 0.0, 1.0, r[0]}), "[hpu::sdpa_bwd]",
                 "P of sizes [2, 3, 4, 5]");
  EXPECT_REFUSED(call("sdpa_bwd", "", {q[0], q, k, k, at::ones({2, 3, 4, 5}, on_hpu()), kNone, false, 0.0, 1.0, r[0]}),
                 "[hpu::sdpa_bwd]", "grad of sizes");
  EXPECT_REFUSED(call("sdpa_bwd", "", {r[0], q, k, k, at::ones({2, 3, 4, 5}, on_hpu()), kNone, false, 0.5, 1.0, r[0]}),
                 "[hpu::sdpa_bwd]", "dm for dropout");
}

}  // namespace
}  // namespace fp8::test
