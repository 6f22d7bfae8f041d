// SPDX-License-Identifier: Apache-2.0
// The attention family as C++ functions: grouped queries, defaults, gradients against autograd in f64, the vendor's
// rules; and that the operators themselves have no gradient.
#include "fp8/runtime/ops/attention/attention_ops.h"

#include "sdpa_reference.h"

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
       {std::vector<std::int64_t>{5, 7}, {2, 1, 5, 7}, {2, 6, 5, 7}, {6, 5, 7}, {2, 1, 1, 7}}) {
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
  FusedSdpaOptions options;
  options.valid_seq_len = lengths;
  EXPECT_REFUSED(fused_sdpa(q, q, q, options), "Valid sequence length is supported only in inference");
  options.is_causal = true;
  options.seq_padding_type = "Right";
  EXPECT_REFUSED(fused_sdpa(learning, q, q, options), "Valid sequence length is supported only in inference");
  const at::Tensor p = probabilities(wide(q), wide(q), 1 / std::sqrt(8.0),
                                     causal_mask(5, 5) + padding_mask({3, 5}, 5, false).unsqueeze(1));
  expect_near(fused_sdpa(q, q, q, options), at::matmul(p, wide(q)), 2e-6, "right padding");
  FusedSdpaOptions fast;
  fast.softmax_mode = "Fast";
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
    FusedSdpaOptions options;
    options.recompute = recompute;
    const auto r = fp8_fused_sdpa(q, k, v, options, scales, true, recompute);
    EXPECT_EQ(r.out.scalar_type(), at::kBFloat16);
    expect_near(r.out, exact, 0x1p-8, "out");
    EXPECT_NEAR(r.amax_s.item<float>(), p.max().item<double>(), 1e-5);
    if (!recompute) continue;
    EXPECT_NEAR(r.amax_o.item<float>(), exact.abs().max().item<double>(), 1e-3);
  }
  at::Tensor learning = at::ones({1, 1, 2, 4}, on_hpu()).requires_grad_(true);
  EXPECT_REFUSED(fp8_fused_sdpa(learning, learning, learning, {}, {}), "[fp8_fused_sdpa] has no gradient");
  FusedSdpaOptions whole;
  whole.recompute = false;
  EXPECT_REFUSED(fp8_fused_sdpa(q, k, v, whole, scales, false, true), "[fp8_fused_sdpa]", "amax_o");
}

TEST(FusedRmsNorm, HasTheGradientsOfTheFormula) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
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

}  // namespace
}  // namespace fp8::test
