// SPDX-License-Identifier: Apache-2.0
// Attention in high precision, forward and backward, with and without recomputation, against the formula in f64 and its
// gradients by autograd.
#include "fp8/runtime/kernels/thread_pool.h"
#include "runtime/ops/attention/sdpa_reference.h"

namespace fp8::test {
namespace {

using Sizes = std::vector<std::int64_t>;

struct SdpaCase {
  const char* name;
  Sizes q, k, v;
  bool causal = false;
  Sizes mask = {};  ///< sizes; empty: none
  bool bool_mask = false;
  Sizes valid = {};  ///< valid_seq_len
  const char* padding = "left";
};

const SdpaCase kCases[] = {
    {"plain", {2, 3, 9, 16}, {2, 3, 13, 16}, {2, 3, 13, 8}},
    {"three dimensions", {3, 70, 8}, {3, 70, 8}, {3, 70, 8}},
    {"causal", {1, 2, 75, 16}, {1, 2, 75, 16}, {1, 2, 75, 16}, true},
    {"causal, more keys", {2, 2, 5, 8}, {2, 2, 12, 8}, {2, 2, 12, 8}, true},
    {"causal, more queries", {2, 2, 12, 8}, {2, 2, 5, 8}, {2, 2, 5, 8}, true},
    {"many keys", {1, 1, 3, 8}, {1, 1, 700, 8}, {1, 1, 700, 24}},
    {"grouped queries", {2, 2, 3, 6, 8}, {2, 2, 1, 7, 8}, {2, 2, 1, 7, 8}},
    {"one key head", {2, 4, 6, 8}, {2, 1, 7, 8}, {2, 1, 7, 8}, true},
    {"one query head", {1, 1, 6, 8}, {2, 3, 7, 8}, {1, 3, 7, 8}},
    {"float mask", {2, 3, 6, 8}, {2, 3, 7, 8}, {2, 3, 7, 8}, false, {2, 1, 1, 7}},
    {"full float mask", {2, 3, 6, 8}, {2, 3, 7, 8}, {2, 3, 7, 8}, false, {2, 3, 6, 7}},
    {"bool mask", {2, 3, 6, 8}, {2, 3, 7, 8}, {2, 3, 7, 8}, false, {6, 7}, true},
    {"bool mask and causal", {2, 3, 6, 8}, {2, 3, 7, 8}, {2, 3, 7, 8}, true, {2, 1, 6, 7}, true},
    {"left padding", {3, 2, 9, 8}, {3, 2, 9, 8}, {3, 2, 9, 8}, true, {}, false, {9, 4, 0}, "left"},
    {"right padding", {3, 2, 9, 8}, {3, 2, 9, 8}, {3, 2, 9, 8}, true, {}, false, {0, 4, 9}, "right"},
    {"padding without causal", {2, 2, 4, 8}, {2, 2, 9, 8}, {2, 2, 9, 8}, false, {}, false, {5, 1}, "right"},
    {"one query", {2, 4, 1, 16}, {2, 4, 33, 16}, {2, 4, 33, 16}},
    {"no keys", {2, 2, 3, 8}, {2, 2, 0, 8}, {2, 2, 0, 8}},
    {"no queries", {2, 2, 0, 8}, {2, 2, 3, 8}, {2, 2, 3, 8}},
    {"no heads", {0, 2, 3, 8}, {0, 2, 3, 8}, {0, 2, 3, 8}},
};

/// Arguments on hpu, the reference in f64.
struct Problem {
  at::Tensor q, k, v, mask, lengths, grad;
  double scale = 0.3;
  at::Tensor q64, k64, v64, p64, out64, mask64;
  at::IValue mask_arg() const { return mask.defined() ? at::IValue(mask) : kNone; }
  at::IValue lengths_arg() const { return lengths.defined() ? at::IValue(lengths) : kNone; }
};

void make_mask(const SdpaCase& c, Problem& p) {
  const std::int64_t queries = c.q[c.q.size() - 2], keys = c.k[c.k.size() - 2];
  p.mask64 = at::zeros({queries, keys}, at::kDouble);
  if (c.causal) p.mask64 = p.mask64 + causal_mask(queries, keys);
  if (!c.mask.empty()) {
    torch::manual_seed(5);
    const at::Tensor seen = at::rand(c.mask) > 0.3,
                     addend = at::where(seen, at::randn(c.mask), at::full(c.mask, -HUGE_VAL, at::kFloat));
    p.mask = (c.bool_mask ? seen : addend).to(kHpu);
    p.mask64 = p.mask64 + (c.bool_mask ? at::zeros(c.mask, at::kDouble).masked_fill(seen.logical_not(), -HUGE_VAL)
                                       : addend.to(at::kDouble));
  }
  if (!c.valid.empty()) {
    p.lengths = at::tensor(c.valid, at::kLong).to(at::kInt).to(kHpu);
    p.mask64 = p.mask64 + padding_mask(c.valid, keys, std::string(c.padding) == "left").unsqueeze(1);
  }
}

Problem make(const SdpaCase& c, at::ScalarType type) {
  Problem p{.q = random_hpu(c.q, type, 1), .k = random_hpu(c.k, type, 2), .v = random_hpu(c.v, type, 3)};
  make_mask(c, p);
  p.q64 = wide(p.q).requires_grad_(true);
  p.k64 = wide(p.k).requires_grad_(true);
  p.v64 = wide(p.v).requires_grad_(true);
  if (p.k.size(-2) == 0) {
    p.out64 = at::zeros(p.q.sizes(), at::kDouble);
    return p;
  }
  p.p64 = probabilities(p.q64, p.k64, p.scale, p.mask64);
  p.out64 = at::matmul(p.p64, p.v64);
  p.grad = random_hpu(p.out64.sizes(), type, 4);
  return p;
}

class Sdpa : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(Sdpa, ForwardIsTheFormula) {
  for (const SdpaCase& c : kCases) {
    const Problem p = make(c, GetParam());
    const auto r =
        call("sdpa_fwd", "", {p.q, p.k, p.v, p.mask_arg(), 0.0, p.scale, c.causal, "none", p.lengths_arg(), c.padding});
    ASSERT_EQ(r.size(), 3u);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(r[i].scalar_type(), GetParam());
    EXPECT_EQ(r[2].scalar_type(), at::kChar);
    EXPECT_EQ(r[2].sizes(), at::IntArrayRef({1}));
    const at::Tensor zero = at::zeros_like(p.out64);
    if (p.p64.defined()) expect_rounded(r[1], p.p64.detach(), p.p64.detach(), c.name);
    const at::Tensor magnitude = p.p64.defined() ? at::matmul(p.p64, p.v64.abs()).detach() : zero;
    expect_rounded(r[0], p.out64.detach(), magnitude, c.name);
    for (const bool requires_backward : {false, true}) {
      const auto again = call(
          "sdpa_recomp_fwd", "",
          {p.q, p.k, p.v, p.mask_arg(), 0.0, p.scale, c.causal, requires_backward, "none", p.lengths_arg(), c.padding});
      expect_rounded(again[0], p.out64.detach(), magnitude, c.name);
    }
  }
}

/// P from what a recomputing forward saved.
at::Tensor from_stats(const Problem& p, const at::Tensor& m, const at::Tensor& linv) {
  const at::Tensor s = at::matmul(p.q64, p.k64.transpose(-2, -1)) * p.scale + p.mask64;
  return at::where(wide(linv) == 0, at::zeros_like(s), at::exp(s - wide(m)) * wide(linv)).detach();
}

TEST_P(Sdpa, StatisticsGiveProbabilities) {
  for (const SdpaCase& c : kCases) {
    const Problem p = make(c, GetParam());
    if (!p.p64.defined()) continue;
    for (const char* mode : {"none", "fast"}) {
      const auto r =
          call("sdpa_recomp_fwd", "",
               {p.q, p.k, p.v, p.mask_arg(), 0.0, p.scale, c.causal, true, mode, p.lengths_arg(), c.padding});
      const bool narrow = std::string(mode) == "fast" && GetParam() == at::kBFloat16;
      EXPECT_EQ(r[1].scalar_type(), GetParam());
      EXPECT_EQ(r[2].scalar_type(), narrow ? at::kBFloat16 : at::kFloat);
      EXPECT_EQ(r[3].scalar_type(), at::kInt);
      EXPECT_EQ(r[3].sizes(), at::IntArrayRef({1}));
      Sizes sizes = p.p64.sizes().vec();
      sizes.back() = 1;
      EXPECT_EQ(r[1].sizes(), at::IntArrayRef(sizes));
      EXPECT_EQ(r[2].sizes(), at::IntArrayRef(sizes));
      EXPECT_TRUE(at::allclose(from_stats(p, r[1], r[2]), p.p64.detach(), narrow ? 0x1p-8 : 2e-6, 1e-30))
          << c.name << " " << mode;
    }
  }
}

/// Gradients in f64 by autograd.
std::vector<at::Tensor> gradients(const Problem& p, const at::Tensor& grad) {
  return torch::autograd::grad({p.out64}, {p.q64, p.k64, p.v64}, {wide(grad)}, true);
}

/// |got - exact| <= relative * largest |exact|, by tensor.
void expect_near(const at::Tensor& got, const at::Tensor& exact, double relative, const std::string& what) {
  ASSERT_EQ(got.sizes(), exact.sizes()) << what;
  if (exact.numel() == 0) return;
  const double error = (wide(got) - exact).abs().max().item<double>(), size = exact.abs().max().item<double>();
  EXPECT_LE(error, relative * size + 1e-30) << what;
}

TEST_P(Sdpa, BackwardIsTheGradient) {
  // With P stored in a 16-bit dtype each product with it is off by up to half a unit; so are m and linv there.
  const double relative = GetParam() == at::kFloat ? 5e-6 : GetParam() == at::kHalf ? 2e-3 : 1.2e-2;
  for (const SdpaCase& c : kCases) {
    const Problem p = make(c, GetParam());
    if (!p.p64.defined() || !c.valid.empty()) continue;
    const auto exact = gradients(p, p.grad);
    const auto r = call("sdpa_fwd", "", {p.q, p.k, p.v, p.mask_arg(), 0.0, p.scale, c.causal, "none", kNone, "left"});
    const auto got = call("sdpa_bwd", "", {p.grad, p.q, p.k, p.v, r[1], kNone, c.causal, 0.0, p.scale, r[0]});
    const auto saved =
        call("sdpa_recomp_fwd", "", {p.q, p.k, p.v, p.mask_arg(), 0.0, p.scale, c.causal, true, "none", kNone, "left"});
    const auto again = call(
        "sdpa_recomp_bwd", "",
        {p.grad, p.q, p.k, p.v, p.mask_arg(), saved[1], saved[2], kNone, c.causal, 0.0, p.scale, "none", saved[0]});
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(got[i].scalar_type(), GetParam());
      expect_near(got[i], exact[i], relative, std::string(c.name) + ", gradient " + std::to_string(i));
      expect_near(again[i], exact[i], relative, std::string(c.name) + ", recomputed gradient " + std::to_string(i));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sdpa, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(SdpaForms, ViewsGiveTheirValues) {
  const at::Tensor q = random_hpu({2, 9, 3, 8}, at::kBFloat16, 1).transpose(1, 2),
                   k = random_hpu({2, 3, 8, 9}, at::kBFloat16, 2).transpose(2, 3),
                   v = random_hpu({2, 3, 18, 8}, at::kBFloat16, 3).slice(2, 0, 18, 2),
                   mask = random_hpu({9, 9}, at::kBFloat16, 4).t();
  const at::Tensor p = probabilities(wide(q), wide(k), 0.5, wide(mask)), exact = at::matmul(p, wide(v));
  expect_rounded(call("sdpa_recomp_fwd", "", {q, k, v, mask, 0.0, 0.5, false, false, "none", kNone, "left"})[0], exact,
                 at::matmul(p, wide(v).abs()), "views");
}

TEST(SdpaForms, TheBitsDoNotDependOnTheThreads) {
  const int before = kernels::num_threads();
  const at::Tensor q = random_hpu({1, 4, 200, 32}, at::kFloat, 1),
                   k = random_hpu({1, 2, 200, 32}, at::kFloat, 2).repeat_interleave(2, 1),
                   v = random_hpu({1, 4, 200, 32}, at::kFloat, 3), grad = random_hpu({1, 4, 200, 32}, at::kFloat, 4);
  std::vector<std::vector<at::Tensor>> results;
  for (const int threads : {1, 3, 8}) {
    kernels::set_num_threads(threads);
    auto r = call("sdpa_fwd", "", {q, k, v, kNone, 0.0, 0.2, true, "none", kNone, "left"});
    const auto b = call("sdpa_bwd", "", {grad, q, k, v, r[1], kNone, true, 0.0, 0.2, r[0]});
    r.insert(r.end(), b.begin(), b.end());
    results.push_back(r);
  }
  kernels::set_num_threads(before);
  for (const auto& r : results)
    for (std::size_t i = 0; i < r.size(); ++i) EXPECT_TRUE(same_bits(r[i], results[0][i])) << i;
}

TEST(SdpaForms, RowsThatSeeNothingGiveZerosAndNoGradient) {
  const at::Tensor q = random_hpu({1, 1, 3, 8}, at::kFloat, 1), k = random_hpu({1, 1, 4, 8}, at::kFloat, 2),
                   v = random_hpu({1, 1, 4, 8}, at::kFloat, 3);
  at::Tensor seen = at::ones({3, 4}, at::kBool);
  seen[1].fill_(false);
  const at::Tensor mask = seen.to(kHpu), grad = at::ones({1, 1, 3, 8}, on_hpu());
  const auto r = call("sdpa_recomp_fwd", "", {q, k, v, mask, 0.0, 0.3, false, true, "none", kNone, "left"});
  EXPECT_EQ(r[0].cpu()[0][0][1].abs().max().item<float>(), 0.0f);
  EXPECT_GT(r[0].cpu()[0][0][0].abs().max().item<float>(), 0.0f);
  const auto g = call("sdpa_recomp_bwd", "", {grad, q, k, v, mask, r[1], r[2], kNone, false, 0.0, 0.3, "none", r[0]});
  for (const at::Tensor& t : g) EXPECT_TRUE(at::isfinite(t.cpu()).all().item<bool>());
  EXPECT_EQ(g[0].cpu()[0][0][1].abs().max().item<float>(), 0.0f);
}

TEST(SdpaForms, ALargeNegativeMaskIsAValueNotAWall) {
  const at::Tensor q = random_hpu({1, 1, 1, 8}, at::kFloat, 1), k = random_hpu({1, 1, 4, 8}, at::kFloat, 2),
                   v = random_hpu({1, 1, 4, 8}, at::kFloat, 3);
  const at::Tensor mask = at::full({1, 4}, -1e9f, on_hpu());  // swallows the scores: every key alike
  const at::Tensor out = call("sdpa_recomp_fwd", "", {q, k, v, mask, 0.0, 0.3, false, false, "none", kNone, "left"})[0];
  EXPECT_TRUE(at::allclose(wide(out), wide(v).mean(-2, true), 1e-6, 1e-6));
}

TEST(SdpaForms, NanStaysNan) {
  at::Tensor q = at::ones({1, 1, 2, 4});
  q[0][0][1][2] = NAN;
  const at::Tensor
      k = at::ones({1, 1, 3, 4}, on_hpu()),
      out = call("sdpa_recomp_fwd", "", {hpu(q), k, k, kNone, 0.0, 1.0, false, false, "none", kNone, "left"})[0].cpu();
  EXPECT_EQ(out[0][0][0][0].item<float>(), 1.0f);
  EXPECT_TRUE(at::isnan(out[0][0][1]).all().item<bool>());
}

}  // namespace
}  // namespace fp8::test
