// SPDX-License-Identifier: Apache-2.0
// FusedAttention: torch's attention and its gradients with fp8 off; in fp8 against exact cases and the f64 formula,
// with scales, dropout and state of its own.
#include <cmath>

#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/transformer_engine/modules/attention.h"
#include "fp8/transformer_engine/modules/fp8_module.h"
#include "transformer_engine/modules/attention_formula.h"
#include "transformer_engine/modules/module_checks.h"

namespace fp8::te {
namespace {

using recipes::DelayedScaling;
using recipes::RecipeFormat;
using test::f64;
using test::formula;
using test::near_by;
using test::on_hpu;
using test::same_bits;
using test::throws_with;

struct Gradients {
  at::Tensor out, dq, dk, dv;
};

/// f(q, k, v) and the gradients of sum(out * g).
template <class F>
Gradients attention_step(const at::Tensor& q0, const at::Tensor& k0, const at::Tensor& v0, const at::Tensor& g, F&& f) {
  const auto leaf = [](const at::Tensor& t) { return t.detach().clone().requires_grad_(true); };
  const at::Tensor q = leaf(q0), k = leaf(k0), v = leaf(v0), out = f(q, k, v);
  out.backward(g.to(out.options()));
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

auto in_region(FusedAttention& m, const recipes::Recipe& recipe, const at::Tensor& mask = {}, bool causal = false) {
  return [&m, recipe, mask, causal](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    const fp8_autocast region(true, recipe);
    return m(q, k, v, mask, causal);
  };
}

::testing::AssertionResult same(const Gradients& a, const Gradients& b) {
  for (const auto& [x, y] :
       {std::pair(a.out, b.out), std::pair(a.dq, b.dq), std::pair(a.dk, b.dk), std::pair(a.dv, b.dv)}) {
    if (auto r = same_bits(x, y); !r) return r;
  }
  return ::testing::AssertionSuccess();
}

TEST(TeFusedAttention, OffIsFusedSdpaWithItsGradients) {
  torch::manual_seed(2);
  const at::Tensor q = torch::randn({2, 4, 7, 8}, on_hpu()), k = torch::randn({2, 2, 7, 8}, on_hpu()),
                   v = torch::randn({2, 2, 7, 8}, on_hpu()), g = torch::randn({2, 4, 7, 8}, on_hpu());
  const at::Tensor visible = torch::ones({7, 7}, at::kBool).tril();
  const Gradients exact = attention_step(
      test::f64_leaf(q), test::f64_leaf(k), test::f64_leaf(v), g,
      [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) { return formula(a, b, c, visible); });
  for (const bool recompute : {false, true}) {
    FusedAttention m(FusedAttentionOptions{.enable_recompute = recompute});
    const Gradients got = attention_step(
        q, k, v, g,
        [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) { return m(a, b, c, at::Tensor(), true); });
    for (const auto& [x, y] : {std::pair(got.out, exact.out), std::pair(got.dq, exact.dq), std::pair(got.dk, exact.dk),
                               std::pair(got.dv, exact.dv)}) {
      EXPECT_TRUE(torch::allclose(x.cpu().to(at::kDouble), y, 1e-4, 1e-5));
    }
  }
}

// q = 0: every P is 1/16. Values of v and dO have one bit, so nothing is rounded on the way to o = mean(v) and dv =
// mean(dO).
TEST(TeFusedAttention, IsExactWhereNothingIsRounded) {
  torch::manual_seed(3);
  const auto powers = [] {
    return torch::pow(2.0, torch::randint(0, 3, {2, 3, 16, 8}, at::kFloat)) *
           (torch::randint(0, 2, {2, 3, 16, 8}, at::kFloat) * 2 - 1);
  };
  const at::Tensor v = test::hpu(powers()), g = test::hpu(powers()), k = test::hpu(powers()), q = torch::zeros_like(v);
  DelayedScaling hybrid = DelayedScaling::habana();
  hybrid.fp8_format = RecipeFormat::HYBRID;
  for (const recipes::Recipe& recipe : {recipes::Recipe(DelayedScaling::habana()), recipes::Recipe(hybrid)}) {
    for (const bool recompute : {false, true}) {
      FusedAttention m(FusedAttentionOptions{.enable_recompute = recompute});
      for (int i = 0; i < 3; ++i) {
        const Gradients s = attention_step(q, k, v, g, in_region(m, recipe));
        EXPECT_TRUE(same_bits(s.out, v.mean(2, true).expand_as(v)));
        EXPECT_TRUE(same_bits(s.dv, g.mean(2, true).expand_as(g)));
        EXPECT_EQ(s.dk.abs().max().item<float>(), 0.0f);
      }
    }
  }
}

TEST(TeFusedAttention, IsNearF32InBothPasses) {
  torch::manual_seed(4);
  DelayedScaling hybrid = DelayedScaling::habana(), narrow = DelayedScaling::nvidia();
  hybrid.fp8_format = RecipeFormat::HYBRID;
  narrow.fp8_format = RecipeFormat::E4M3;
  recipes::CurrentScaling current_e4m3;
  current_e4m3.fp8_format = RecipeFormat::E4M3;
  const at::Tensor visible = torch::ones({33, 33}, at::kBool).tril();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t groups : {4, 2}) {
      const auto random = [&](std::int64_t heads) { return torch::randn({2, heads, 33, 16}, on_hpu()).to(dtype); };
      const at::Tensor q = random(4), k = random(groups), v = random(groups), g = random(4);
      const Gradients exact = attention_step(
          test::f64_leaf(q), test::f64_leaf(k), test::f64_leaf(v), g,
          [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) { return formula(a, b, c, visible); });
      for (const recipes::Recipe& recipe :
           {recipes::Recipe(hybrid), recipes::Recipe(DelayedScaling::habana()),
            recipes::Recipe(DelayedScaling::nvidia()), recipes::Recipe(narrow),
            recipes::Recipe(recipes::CurrentScaling{}), recipes::Recipe(current_e4m3)}) {
        const bool e5m2 = recipes::format_of(recipe) == RecipeFormat::E5M2;
        for (const bool recompute : {false, true}) {
          for (const bool as_mask : {false, true}) {
            FusedAttention m(FusedAttentionOptions{.enable_recompute = recompute});
            Gradients s;
            for (int i = 0; i < 3; ++i)
              s = attention_step(q, k, v, g,
                                 in_region(m, recipe, as_mask ? test::hpu(visible) : at::Tensor(), !as_mask));
            EXPECT_EQ(s.out.scalar_type(), dtype);
            EXPECT_TRUE(near_by(s.out, exact.out, e5m2 ? 0.25 : 0.125, e5m2 ? 0.125 : 0.0675))
                << recipes::describe(recipe) << dtype;
            for (const auto& [x, y] :
                 {std::pair(s.dq, exact.dq), std::pair(s.dk, exact.dk), std::pair(s.dv, exact.dv)}) {
              EXPECT_EQ(x.scalar_type(), dtype);
              EXPECT_TRUE(near_by(x, y, 0.25, 0.125, 0.01)) << recipes::describe(recipe) << dtype << recompute;
            }
          }
        }
      }
    }
  }
}

// After one step the scales are those of the six tensors: q, k, v, P and dO, dS.
TEST(TeFusedAttention, SixTensorsHaveScalesOfTheirOwn) {
  torch::manual_seed(5);
  const at::Tensor q = torch::randn({1, 2, 16, 8}, on_hpu()), k = torch::randn({1, 2, 16, 8}, on_hpu()) * 2,
                   v = torch::randn({1, 2, 16, 8}, on_hpu()) * 3, g = torch::randn({1, 2, 16, 8}, on_hpu()) * 4;
  FusedAttention m;
  attention_step(q, k, v, g, in_region(m, DelayedScaling::nvidia()));
  const auto values = m->fp8_states()[0]->values();
  const auto amax = [](const at::Tensor& t) { return t.abs().max().item<float>(); };
  EXPECT_EQ(values.forward.scale[0], 448.0f / amax(q));
  EXPECT_EQ(values.forward.scale[1], 448.0f / amax(k));
  EXPECT_EQ(values.forward.scale[2], 448.0f / amax(v));
  EXPECT_EQ(values.backward.scale[0], 57344.0f / amax(g));
  const at::Tensor p = torch::softmax(torch::matmul(f64(q), f64(k).transpose(-2, -1)) / std::sqrt(8.0), -1),
                   dp = torch::matmul(f64(g), f64(v).transpose(-2, -1));
  EXPECT_NEAR(values.forward.scale[3], 448.0 / amax(p.to(at::kFloat)), 448.0 / amax(p.to(at::kFloat)) * 0.1);
  const double ds = (p * (dp - (p * dp).sum(-1, true))).abs().max().item<double>();
  EXPECT_NEAR(values.backward.scale[1], 57344.0 / ds, 57344.0 / ds * 0.2);
}

TEST(TeFusedAttention, GroupsOfHeadsAreRepeatedHeads) {
  torch::manual_seed(6);
  const at::Tensor q = torch::randn({2, 6, 5, 8}, on_hpu()), k = torch::randn({2, 2, 5, 8}, on_hpu()),
                   v = torch::randn({2, 2, 5, 8}, on_hpu()), g = torch::randn({2, 6, 5, 8}, on_hpu());
  const at::Tensor mask = torch::rand({2, 1, 5, 5}, on_hpu()).lt(0.8).logical_or(torch::eye(5, on_hpu()).ne(0));
  FusedAttention grouped, repeated;
  for (int i = 0; i < 2; ++i) {
    const Gradients a = attention_step(q, k, v, g, in_region(grouped, DelayedScaling::nvidia(), mask));
    const Gradients b = attention_step(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), g,
                                       in_region(repeated, DelayedScaling::nvidia(), mask));
    EXPECT_TRUE(same_bits(a.out, b.out));
    EXPECT_TRUE(same_bits(a.dq, b.dq));
    EXPECT_TRUE(torch::allclose(a.dk, b.dk.unflatten(1, {2, 3}).sum(2), 1e-5, 1e-5));
    EXPECT_TRUE(torch::allclose(a.dv, b.dv.unflatten(1, {2, 3}).sum(2), 1e-5, 1e-5));
  }
}

TEST(TeFusedAttention, DropoutIsOfTheGeneratorAndSurvivesCheckpointing) {
  const at::Tensor q = torch::randn({1, 2, 16, 8}, on_hpu()), g = torch::randn({1, 2, 16, 8}, on_hpu());
  for (const recipes::Recipe& recipe :
       {recipes::Recipe(DelayedScaling::nvidia()), recipes::Recipe(DelayedScaling::habana()),
        recipes::Recipe(recipes::CurrentScaling{})}) {
    for (const bool recompute : {false, true}) {
      const FusedAttentionOptions options{.attention_dropout = 0.4, .enable_recompute = recompute};
      FusedAttention a(options), b(options);
      for (int i = 0; i < 3; ++i) {
        const at::Tensor x = q * (3 - i);
        torch::manual_seed(7);
        const Gradients plain = attention_step(x, q, q, g, in_region(a, recipe));
        torch::manual_seed(7);
        const Gradients again =
            attention_step(x, q, q, g, [&](const at::Tensor& t, const at::Tensor& k, const at::Tensor& v) {
              const fp8_autocast region(true, recipe);
              const CheckpointedFunction f = [&b](const std::vector<at::Tensor>& in) {
                return std::vector<at::Tensor>{b(in[0], in[1], in[2])};
              };
              return checkpoint(f, std::vector<at::Tensor>{t, k, v})[0];
            });
        EXPECT_TRUE(same(plain, again)) << recipes::describe(recipe) << i;
        const auto va = a->fp8_states()[0]->values(), vb = b->fp8_states()[0]->values();
        EXPECT_TRUE((va.forward.amax_history == vb.forward.amax_history).all());
        EXPECT_TRUE((va.backward.amax_history == vb.backward.amax_history).all());
        EXPECT_EQ(va.step, i + 1);
      }
      a->eval();
      const fp8_autocast region(true, recipe);
      EXPECT_TRUE(same_bits(a(q, q, q), a(q, q, q)));
    }
  }
}

TEST(TeFusedAttention, GoesOnBitForBitAfterSaveAndLoad) {
  torch::manual_seed(8);
  const at::Tensor q = torch::randn({1, 2, 6, 8}, on_hpu());
  for (const recipes::Recipe& recipe :
       {recipes::Recipe(DelayedScaling::nvidia()), recipes::Recipe(DelayedScaling::habana())}) {
    FusedAttention a, b;
    for (int i = 0; i < 2; ++i) attention_step(q, q, q, q, in_region(a, recipe));
    test::load(b, test::saved(a));
    EXPECT_TRUE(same(attention_step(q * 5, q, q, q, in_region(a, recipe)),
                     attention_step(q * 5, q, q, q, in_region(b, recipe))));
  }
}

// Gaudi2 has no product of E4M3 with E5M2. A backward pass outside of the scope is the same device's.
TEST(TeFusedAttention, KnowsItsDevice) {
  torch::manual_seed(9);
  const at::Tensor q = torch::randn({1, 2, 6, 8}, on_hpu());
  FusedAttention m;
  DelayedScaling hybrid = DelayedScaling::nvidia(), e4m3 = DelayedScaling::nvidia();
  e4m3.fp8_format = RecipeFormat::E4M3;
  Gradients inside, outside;
  FusedAttention other;
  {
    const runtime::DeviceKindScope gaudi2(runtime::DeviceKind::gaudi2);
    EXPECT_TRUE(
        throws_with({"fp8_format: found HYBRID on GAUDI2", "E5M2, E4M3"}, [&] { in_region(m, hybrid)(q, q, q); }));
    for (int i = 0; i < 2; ++i) inside = attention_step(q, q, q, q, in_region(m, e4m3));
    EXPECT_EQ(m->fp8_states()[0]->values().forward.scale[0], 240.0f / q.abs().max().item<float>());
  }
  for (int i = 0; i < 2; ++i) {
    outside = attention_step(q, q, q, q, [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
      const runtime::DeviceKindScope gaudi2(runtime::DeviceKind::gaudi2);
      return in_region(other, e4m3)(a, b, c);
    });
  }
  EXPECT_TRUE(same(inside, outside));
}

TEST(TeFusedAttention, NamesWhatItRejects) {
  const at::Tensor q = torch::randn({1, 2, 6, 8}, on_hpu());
  FusedAttention m(FusedAttentionOptions{.name = "core"});
  EXPECT_TRUE(throws_with({"'core'", "recipe: found block", "delayed, current"},
                          [&] { in_region(m, recipes::BlockScaling{})(q, q, q); }));
  EXPECT_TRUE(throws_with({"'core'", "recipe: found mxfp8"}, [&] { in_region(m, recipes::MXFP8{})(q, q, q); }));
  EXPECT_TRUE(throws_with({"heads of q", "2, 3"}, [&] {
    in_region(m, recipes::CurrentScaling{})(q, torch::zeros({1, 3, 6, 8}, on_hpu()),
                                            torch::zeros({1, 3, 6, 8}, on_hpu()));
  }));
  EXPECT_TRUE(throws_with({"one dtype"}, [&] { in_region(m, recipes::CurrentScaling{})(q, q.to(at::kBFloat16), q); }));
  EXPECT_TRUE(throws_with({"attention_mask", "requires a gradient"}, [&] {
    in_region(m, recipes::CurrentScaling{}, torch::zeros({6, 6}, on_hpu()).requires_grad_(true))(q, q, q);
  }));
  EXPECT_TRUE(throws_with({"softmax_mode: found \"slow\""}, [&] { m(q, q, q, at::Tensor(), false, "slow"); }));
  EXPECT_TRUE(throws_with({"attention_dropout: found -1"},
                          [] { FusedAttention f(FusedAttentionOptions{.attention_dropout = -1}); }));
  const at::Tensor x = q.clone().requires_grad_(true);
  const at::Tensor y = in_region(m, recipes::CurrentScaling{})(x, q, q);
  const auto dx = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
  EXPECT_TRUE(throws_with({"fp8 attention of fp8::te has no second derivative"}, [&] { dx.sum().backward(); }));
}

TEST(TeFusedAttention, BitsDoNotDependOnThreads) {
  torch::manual_seed(13);
  const at::Tensor q = torch::randn({2, 4, 150, 16}, on_hpu()), k = torch::randn({2, 2, 150, 16}, on_hpu()),
                   g = torch::randn({2, 4, 150, 16}, on_hpu());
  DelayedScaling hybrid = DelayedScaling::habana();  // gradients are rounded stochastically
  hybrid.fp8_format = RecipeFormat::HYBRID;
  const int threads = kernels::num_threads();
  for (const bool recompute : {false, true}) {
    std::vector<Gradients> found;
    for (const int n : {1, 3}) {
      kernels::set_num_threads(n);
      FusedAttention m(FusedAttentionOptions{.attention_dropout = 0.1, .enable_recompute = recompute});
      torch::manual_seed(14);
      for (int i = 0; i < 2; ++i) found.push_back(attention_step(q, k, k, g, in_region(m, hybrid, {}, true)));
    }
    kernels::set_num_threads(threads);
    EXPECT_TRUE(same(found[0], found[2]));
    EXPECT_TRUE(same(found[1], found[3]));
  }
}

TEST(TeFusedAttention, ResultsMayBeChangedInPlace) {
  const at::Tensor k = torch::randn({1, 2, 6, 8}, on_hpu());
  for (const std::int64_t heads : {2, 4}) {
    const at::Tensor q = torch::randn({1, heads, 6, 8}, on_hpu()).to(at::kBFloat16).requires_grad_(true);
    FusedAttention m;
    in_region(m, recipes::CurrentScaling{})(q, k.to(at::kBFloat16), k.to(at::kBFloat16)).mul_(2).sum().backward();
    EXPECT_TRUE(q.grad().defined());
  }
}

// One token, one sequence, no sequence; a row that sees nothing is zero; without a gradient nothing is recorded.
TEST(TeFusedAttention, EdgesAreDefined) {
  for (const recipes::Recipe& recipe :
       {recipes::Recipe(DelayedScaling::nvidia()), recipes::Recipe(recipes::CurrentScaling{})}) {
    FusedAttention m;
    const at::Tensor one = torch::ones({1, 1, 1, 4}, on_hpu()) * 2;
    EXPECT_TRUE(same_bits(attention_step(one, one, one, one, in_region(m, recipe)).out, one));
    const at::Tensor none = torch::empty({0, 2, 3, 4}, on_hpu());
    EXPECT_EQ(attention_step(none, none, none, none, in_region(m, recipe)).out.sizes(), none.sizes());
    const at::Tensor q = torch::randn({1, 2, 3, 4}, on_hpu());
    at::Tensor mask = torch::ones({3, 3}, on_hpu(at::kBool));
    mask.select(0, 1).fill_(false);
    const Gradients s = attention_step(q, q, q, q, in_region(m, recipe, mask));
    EXPECT_EQ(s.out.select(2, 1).abs().max().item<float>(), 0.0f);
    EXPECT_EQ(s.dq.select(2, 1).abs().max().item<float>(), 0.0f);
    EXPECT_TRUE(s.dk.isfinite().all().item<bool>());
    const auto before = m->fp8_states()[0]->values();
    {
      const torch::NoGradGuard no_grad;
      in_region(m, recipe)(q * 100, q, q);
    }
    EXPECT_EQ(m->fp8_states()[0]->values().step, before.step);
    EXPECT_EQ(m->fp8_states()[0]->values().forward.scale[0], before.forward.scale[0]);
  }
  const at::Tensor q = torch::randn({1, 2, 3, 4}, on_hpu());
  FusedAttention m;
  {
    const fp8_autocast region(
        Fp8AutocastOptions{.enabled = false, .recipe = DelayedScaling::nvidia(), .calibrating = true});
    m(q, q, q * 2);
  }
  EXPECT_EQ(m->fp8_states()[0]->values().forward.scale[2], 448.0f / (q * 2).abs().max().item<float>());
}

}  // namespace
}  // namespace fp8::te
