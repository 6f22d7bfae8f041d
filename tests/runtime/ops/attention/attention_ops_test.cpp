// SPDX-License-Identifier: Apache-2.0
// The attention family as C++ functions: grouped queries, defaults, gradients against autograd in f64, the vendor's
// rules; and that the operators themselves have no gradient.
#include "fp8/runtime/ops/attention/attention_ops.h"

#include "runtime/ops/attention/sdpa_reference.h"
#include "support/operator_call.h"

namespace fp8::test {
namespace {

using namespace runtime::ops;  // NOLINT: the functions under test

void expect_near(const at::Tensor& got, const at::Tensor& exact, double relative, const char* what) {
  ASSERT_EQ(got.sizes(), exact.sizes()) << what;
  EXPECT_EQ(got.device(), kHpu) << what;
  EXPECT_LE((wide(got) - exact).abs().max().item<double>(), relative * exact.abs().max().item<double>()) << what;
}

TEST(FusedSdpa, GroupedQueriesWithEveryMask) {
  const at::Tensor q = random_hpu({2, 6, 5, 8}, at::kFloat, 1), k = random_hpu({2, 3, 7, 8}, at::kFloat, 2),
                   v = random_hpu({2, 3, 7, 4}, at::kFloat, 3), grad = random_hpu({2, 6, 5, 4}, at::kFloat, 4);
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{5, 7}, {2, 1, 5, 7}, {2, 6, 5, 7}, {6, 5, 7}, {2, 1, 1, 7}})
    for (const bool recompute : {false, true}) {
      const at::Tensor mask = random_hpu(sizes, at::kFloat, 5);
      at::Tensor a = q.detach().clone().requires_grad_(true), b = k.detach().clone().requires_grad_(true),
                 c = v.detach().clone().requires_grad_(true);
      FusedSdpaOptions options;
      options.mask = mask, options.recompute = recompute;
      const at::Tensor out = fused_sdpa(a, b, c, options);
      out.backward(grad);
      const at::Tensor q64 = wide(q).requires_grad_(true), k64 = wide(k).requires_grad_(true),
                       v64 = wide(v).requires_grad_(true);
      const at::Tensor p = probabilities(q64, k64.repeat_interleave(2, 1), 1 / std::sqrt(8.0), wide(mask)),
                       exact = at::matmul(p, v64.repeat_interleave(2, 1));
      const auto g = torch::autograd::grad({exact}, {q64, k64, v64}, {wide(grad)});
      expect_near(out, exact.detach(), 2e-6, "out");
      expect_near(a.grad(), g[0], 5e-6, "dq");
      expect_near(b.grad(), g[1], 5e-6, "dk");
      expect_near(c.grad(), g[2], 5e-6, "dv");
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(same_bits(fused_sdpa(a, b, c, options), out));
    }
  EXPECT_REFUSED(fused_sdpa(q, random_hpu({2, 4, 7, 8}, at::kFloat, 2), v, {}), "[fused_sdpa]", "multiple", "6 and 4");
}

TEST(FusedSdpa, OneKeyHeadNeedsNoGroups) {
  const at::Tensor q = random_hpu({2, 6, 5, 8}, at::kFloat, 1), k = random_hpu({2, 1, 7, 8}, at::kFloat, 2);
  expect_near(fused_sdpa(q, k, k, {}), at::matmul(probabilities(wide(q), wide(k), 1 / std::sqrt(8.0)), wide(k)), 2e-6,
              "out");
}

TEST(FusedSdpa, DropoutInTheBackwardIsThatOfTheForward) {
  // With v the identity the output is the dropped P, so dv = dropped(P)^T . grad can be told from out.
  for (const bool recompute : {false, true}) {
    const at::Tensor q = random_hpu({1, 2, 30, 8}, at::kFloat, 1), k = random_hpu({1, 2, 20, 8}, at::kFloat, 2),
                     grad = random_hpu({1, 2, 30, 20}, at::kFloat, 3);
    at::Tensor v = at::eye(20).expand({1, 2, 20, 20}).contiguous().to(kHpu).requires_grad_(true);
    FusedSdpaOptions options;
    options.dropout_p = 0.5, options.recompute = recompute;
    torch::manual_seed(1);
    const at::Tensor out = fused_sdpa(q, k, v, options);
    out.backward(grad);
    expect_near(v.grad(), at::matmul(wide(out).transpose(-2, -1), wide(grad)), 1e-5, "dv");
    const at::Tensor p = probabilities(wide(q), wide(k), 1 / std::sqrt(8.0)), kept = wide(out) != 0;
    expect_near(out, at::where(kept, p * 2, at::zeros_like(p)), 1e-5, "out");
    EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 0.5, 0.06);
  }
}

TEST(FusedSdpa, TheVendorsRules) {
  const at::Tensor q = random_hpu({2, 3, 5, 8}, at::kFloat, 1), lengths = at::tensor({3, 5}, at::kInt).to(kHpu);
  at::Tensor learning = q.detach().clone().requires_grad_(true);
  FusedSdpaOptions options{.valid_seq_len = lengths};
  EXPECT_REFUSED(fused_sdpa(q, q, q, options), "Valid sequence length is supported only in inference");
  options.is_causal = true;
  options.seq_padding_type = "Right";
  EXPECT_REFUSED(fused_sdpa(learning, q, q, options), "Valid sequence length is supported only in inference");
  const at::Tensor p = probabilities(wide(q), wide(q), 1 / std::sqrt(8.0),
                                     causal_mask(5, 5) + padding_mask({3, 5}, 5, false).unsqueeze(1));
  expect_near(fused_sdpa(q, q, q, options), at::matmul(p, wide(q)), 2e-6, "right padding");
  FusedSdpaOptions fast{.softmax_mode = "Fast"};
  EXPECT_REFUSED(fused_sdpa(learning, q, q, fast),
                 "Optimized softmax mode is supported in recompute training mode only in causal");
  fast.recompute = false;
  EXPECT_EQ(error_of([&] { fused_sdpa(learning, q, q, fast); }), "");
}

TEST(FusedSdpa, SecondDerivativesThrowByName) {
  at::Tensor q = random_hpu({1, 1, 3, 4}, at::kFloat, 1).requires_grad_(true);
  const at::Tensor g = torch::autograd::grad({fused_sdpa(q, q, q, {}).sum()}, {q}, {}, true, true)[0];
  EXPECT_REFUSED(g.sum().backward(), "fused_sdpa has no second derivative");
}

TEST(Fp8FusedSdpa, RunsCodesAndMeasuresTheRest) {
  const at::Tensor q = random_codes({2, 6, 5, 16}, kE4M3, 1), k = random_codes({2, 3, 9, 16}, kE4M3, 2),
                   v = random_codes({2, 3, 9, 16}, kE4M3, 3);
  const Fp8SdpaScales scales{one(0.125), one(0.25), one(0.5), one(128), std::nullopt, one(1.0 / 128)};
  const at::Tensor p = probabilities(wide(q), wide(k).repeat_interleave(2, 1), 0.25 * 0.125 * 0.25),
                   cast = rounded_fp8(p * 128, false, 448) / 128,
                   exact = at::matmul(cast, wide(v).repeat_interleave(2, 1) * 0.5);
  for (const bool recompute : {false, true}) {
    const auto r = fp8_fused_sdpa(q, k, v, {.recompute = recompute}, scales, true, recompute);
    EXPECT_EQ(r.out.scalar_type(), at::kBFloat16);
    expect_near(r.out, exact, 0x1p-8, "out");
    EXPECT_NEAR(r.amax_s.item<float>(), p.max().item<double>(), 1e-5);
    if (!recompute) continue;
    EXPECT_NEAR(r.amax_o.item<float>(), exact.abs().max().item<double>(), 1e-3);
  }
  at::Tensor learning = at::ones({1, 1, 2, 4}, on_hpu()).requires_grad_(true);
  EXPECT_REFUSED(fp8_fused_sdpa(learning, learning, learning, {}, {}), "[fp8_fused_sdpa] has no gradient");
  EXPECT_REFUSED(fp8_fused_sdpa(q, k, v, {.recompute = false}, scales, false, true), "[fp8_fused_sdpa]", "amax_o");
}

TEST(FusedRmsNorm, HasTheGradientsOfTheFormula) {
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const bool fast : {false, true}) {
      at::Tensor x = random_hpu({3, 4, 16}, at::kFloat, 1).requires_grad_(true),
                 gamma = random_hpu({16}, type, 2).requires_grad_(true);
      const at::Tensor grad = random_hpu({3, 4, 16}, at::kFloat, 3), y = fused_rms_norm(x, gamma, 1e-5, fast);
      y.backward(grad);
      const at::Tensor x64 = wide(x).requires_grad_(true), g64 = wide(gamma).requires_grad_(true),
                       y64 = x64 / at::sqrt((x64 * x64).mean(-1, true) + 1e-5) * g64;
      const auto exact = torch::autograd::grad({y64}, {x64, g64}, {wide(grad)});
      expect_near(y, y64.detach(), 1e-6, "y");
      expect_near(x.grad(), exact[0], 1e-6, "dx");
      EXPECT_EQ(gamma.grad().scalar_type(), type);
      expect_near(gamma.grad(), exact[1], type == at::kFloat ? 1e-6 : 0x1p-8, "dgamma");
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(same_bits(fused_rms_norm(x, gamma, 1e-5, fast), y));
    }
}

TEST(ApplyRotary, TakesCosBeforeSinAndHasAGradient) {
  at::Tensor x = random_hpu({2, 3, 5, 8}, at::kFloat, 1).requires_grad_(true);
  const at::Tensor cos = random_hpu({1, 1, 9, 8}, at::kFloat, 2), sin = random_hpu({1, 1, 9, 8}, at::kFloat, 3),
                   grad = random_hpu({2, 3, 5, 8}, at::kFloat, 4),
                   ids = at::tensor({0, 8, 3, 3, 1, 2, 2, 7, 6, 5}, at::kLong).view({2, 5});
  const at::Tensor y = apply_rotary_pos_emb(x, cos, sin, hpu(ids));
  y.backward(grad);
  const at::Tensor x64 = wide(x).requires_grad_(true), c = wide(cos).view({9, 8}).index({ids}).unsqueeze(1),
                   s = wide(sin).view({9, 8}).index({ids}).unsqueeze(1);
  const auto halves = x64.chunk(2, -1);
  const at::Tensor exact = x64 * c + at::cat({-halves[1], halves[0]}, -1) * s;
  expect_near(y, exact.detach(), 1e-6, "y");
  expect_near(x.grad(), torch::autograd::grad({exact}, {x64}, {wide(grad)})[0], 1e-6, "dx");
}

TEST(Operators, HaveNoGradientOfTheirOwn) {
  const at::Tensor x = random_hpu({1, 2, 3, 8}, at::kBFloat16, 1).requires_grad_(true);
  const at::Tensor y = call_softmax_fp8(x, -1, std::nullopt, std::nullopt);
  EXPECT_TRUE(same_bits(y.detach(), call_softmax_fp8(x.detach(), -1, std::nullopt, std::nullopt)));
  if (y.requires_grad()) y.to(at::kFloat).sum().backward();  // upstream warns, and no gradient arrives
  EXPECT_FALSE(x.grad().defined());
  const at::Tensor codes = x.detach().to(kE4M3);
  EXPECT_TRUE(same_bits(call_sum_fp8(codes, at::OptionalIntArrayRef(), false, at::kFloat),
                        values_of(codes).to(at::kFloat).sum()));
}

// The attention family as it is registered: schemas equal to the vendor's, meta functions that say what the real ones
// give, no gradient of its own.

TEST(AttentionSchemas, EqualTheVendors) { expect_schemas("attention", 34); }

void expect_attention_agrees(at::ScalarType type) {
  const bool fp8 = c10::isFloat8Type(type);
  const at::Tensor q = at::ones({2, 3, 5, 8}, on_hpu()).to(type), k = at::ones({2, 1, 6, 8}, on_hpu()).to(type),
                   v = at::ones({2, 1, 6, 4}, on_hpu()).to(type), mask = at::zeros({5, 6}, on_hpu()),
                   out = at::ones({2, 3, 5, 4}, on_hpu()), p = at::ones({2, 3, 5, 6}, on_hpu()).to(type),
                   stat = at::ones({2, 3, 5, 1}, on_hpu()), seed = at::full({1}, 3, on_hpu(at::kInt)),
                   dm = at::ones({2, 3, 5, 6}, on_hpu(at::kChar));
  const at::IValue s = fp8 ? at::IValue(one(2)) : kNone, grad = fp8 ? out.to(kE5M2) : out;
  const double f = fp8 ? 2.0 : 0.0;
  for (const double drop : {0.0, 0.5}) {
    if (!fp8) {
      expect_meta_agrees("sdpa_fwd", "", {q, k, v, mask, drop, 0.5, true, "none", kNone, "left"});
      expect_meta_agrees("sdpa_fwd_non_dropout", "", {q, k, v, mask, drop, 0.5, true, "none", kNone, "left"});
      expect_meta_agrees("sdpa_bwd", "", {grad, q, k, v, p, dm, true, drop, 0.5, out});
      expect_meta_agrees("sdpa_recomp_bwd", "", {grad, q, k, v, mask, stat, stat, seed, true, drop, 0.5, "fast", out});
    }
    expect_meta_agrees("fp8_sdpa_fwd", "",
                       {q, k, v, mask, drop, 0.5, true, "none", s, s, s, s, kNone, s, true, kNone, "left"});
    expect_meta_agrees("fp8_sdpa_fwd_dropout", "",
                       {q, k, v, mask, drop, 0.5, true, "none", s, s, s, s, s, s, true, kNone, "left"});
    expect_meta_agrees("fp8_sdpa_fwd_dropout_seed", "",
                       {seed, q, k, v, mask, drop, 0.5, true, "none", s, s, s, s, s, s, true, kNone, "left"});
    expect_meta_agrees("fp8_sdpa_bwd", "", {grad, q, k, v, p, dm, true, drop, 0.5, s, s, s, s, s, s, s, s, true, out});
    expect_meta_agrees("fp8_sdpa_recomp_bwd", "", {grad,   q, k, v, mask, stat, stat, seed, true, drop, 0.5,
                                                   "fast", s, s, s, s,    s,    s,    s,    s,    true, out});
    for (const bool backward : {false, true})
      for (const char* mode : {"none", "fast"}) {
        if (!fp8)
          expect_meta_agrees("sdpa_recomp_fwd", "", {q, k, v, mask, drop, 0.5, true, backward, mode, kNone, "left"});
        if (!fp8)
          expect_meta_agrees("sdpa_recomp_fwd_dropout_seed", "",
                             {seed, q, k, v, mask, drop, 0.5, true, backward, mode, kNone, "left"});
        expect_meta_agrees(
            "fp8_sdpa_recomp_fwd", "",
            {q, k, v, mask, drop, 0.5, true, backward, mode, s, s, s, s, kNone, s, true, true, kNone, "left"});
        expect_meta_agrees(
            "fp8_sdpa_recomp_fwd_non_dropout", "scalar",
            {q, k, v, mask, drop, 0.5, true, backward, mode, f, f, f, f, f, f, true, true, kNone, "left"});
        expect_meta_agrees(
            "fp8_sdpa_recomp_fwd_dropout_seed", "scalar",
            {seed, q, k, v, mask, drop, 0.5, true, backward, mode, f, f, f, f, 0.0, f, true, true, kNone, "left"});
      }
  }
}

TEST(AttentionMeta, OthersAgreeWithTheRealOps) {
  const at::Tensor x = at::ones({2, 3, 5, 8}, on_hpu(at::kBFloat16)), table = at::ones({1, 1, 9, 8}, on_hpu()),
                   ids = at::zeros({2, 5}, on_hpu(at::kLong)), gamma = at::ones({8}, on_hpu()),
                   inverse = at::ones({2, 3, 5, 1}, on_hpu());
  expect_meta_agrees("softmax_fp8", "", {x, -1});
  expect_meta_agrees("softmax_fp8", "", {x, -1, one(1), one(1), one(1), x});
  expect_meta_agrees("softmax_fp8", "Scalar_scales", {x.to(kE4M3), 3, 1.0, 1.0});
  expect_meta_agrees("softmax_fp8", "Scalar", {x, 3, 1.0, 1.0, 1.0});
  expect_meta_agrees("sum_fp8", "", {x.to(kE5M2), std::vector<std::int64_t>{0, -1}, true});
  expect_meta_agrees("sum_fp8", "", {x.to(kE5M2), kNone, false, code(at::kFloat)});
  expect_meta_agrees("rotary_pos_embedding", "", {x, table, table, ids, 0, 1});
  expect_meta_agrees("rotary_pos_embedding_backward", "", {x, table, table, ids, 0, 0});
  expect_meta_agrees("rms_norm", "", {x, gamma, 1e-5});
  expect_meta_agrees("rms_norm_fast", "", {x, gamma.to(at::kBFloat16), 1e-5});
  expect_meta_agrees("rms_norm_backward", "", {x, x, gamma, inverse, true, 0});
  expect_meta_agrees("rms_norm_fast_backward", "", {x.to(at::kFloat), x.to(at::kFloat), gamma, inverse, true, 1});
}

TEST(AttentionMeta, AgreesWithTheRealOps) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, kE4M3, kE5M2}) expect_attention_agrees(type);
}

TEST(AttentionMeta, RefusesWhatTheRealOnesRefuse) {
  const auto meta = at::TensorOptions(at::kMeta);
  const at::Tensor q = at::empty({2, 3, 5, 8}, meta), k = at::empty({2, 3, 6, 7}, meta);
  EXPECT_REFUSED(call("sdpa_fwd", "", {q, k, k, kNone, 0.0, 1.0, false, "none", kNone, "left"}), "[..., S, D]");
  EXPECT_REFUSED(call("softmax_fp8", "", {q, -1}), "must be of torch.bfloat16");
  EXPECT_REFUSED(call("rms_norm", "", {q, k, 1e-5}), "gamma [N]");
  EXPECT_REFUSED(call("rotary_pos_embedding", "", {q, k, k, kNone, 0, 0}), "columns");
}

TEST(AttentionOps, RunInInferenceMode) {
  const c10::InferenceMode inference;
  expect_attention_agrees(kE4M3);
}

// Dropout in attention: the mask that a seed gives, the formulas with it, and the drawn seeds. And what the sdpa
// operators refuse.

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
