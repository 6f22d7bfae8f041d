// SPDX-License-Identifier: Apache-2.0
// FusedAttention: torch's attention and its gradients with fp8 off; in fp8 against exact cases and the f64 formula,
// with scales, dropout and state of its own.
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/transformer_engine/modules/attention.h"
#include "transformer_engine/modules/module_checks.h"

// Attention by its formula in f64 on the CPU, for the tests of the attention modules.
namespace fp8::test {
namespace {

/// softmax(scale q k^T) v in f64 on the CPU, with k and v repeated for groups of heads. visible: undefined or bool.
at::Tensor formula(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& visible = {}) {
  const std::int64_t repeat = q.size(1) / k.size(1);
  at::Tensor s =
      torch::matmul(q, k.repeat_interleave(repeat, 1).transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
  if (visible.defined()) s = s.masked_fill(visible.logical_not(), -INFINITY);
  return torch::matmul(torch::softmax(s, -1), v.repeat_interleave(repeat, 1));
}

at::Tensor f64_leaf(const at::Tensor& t) { return f64(t).requires_grad_(true); }

}  // namespace
}  // namespace fp8::test

namespace fp8::te {
namespace {

using recipes::DelayedScaling;
using recipes::RecipeFormat;
using test::formula;
using test::near_by;

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
  return [&m, recipe, mask, causal](auto... qkv) {
    const fp8_autocast region(true, recipe);
    return m(qkv..., mask, causal);
  };
}

::testing::AssertionResult same(const Gradients& a, const Gradients& b) {
  for (const auto& [x, y] :
       {std::pair(a.out, b.out), std::pair(a.dq, b.dq), std::pair(a.dk, b.dk), std::pair(a.dv, b.dv)})
    if (auto r = same_bits(x, y); !r) return r;
  return ::testing::AssertionSuccess();
}

TEST(TeFusedAttention, OffIsFusedSdpaWithItsGradients) {
  torch::manual_seed(2);
  const at::Tensor q = torch::randn({2, 4, 7, 8}, on_hpu()), k = torch::randn({2, 2, 7, 8}, on_hpu()),
                   v = torch::randn({2, 2, 7, 8}, on_hpu()), g = torch::randn({2, 4, 7, 8}, on_hpu());
  const at::Tensor visible = torch::ones({7, 7}, at::kBool).tril();
  const Gradients exact = attention_step(test::f64_leaf(q), test::f64_leaf(k), test::f64_leaf(v), g,
                                         [&](auto... qkv) { return formula(qkv..., visible); });
  for (const bool recompute : {false, true}) {
    FusedAttention m(FusedAttentionOptions{.enable_recompute = recompute});
    const Gradients got = attention_step(q, k, v, g, [&](auto... qkv) { return m(qkv..., at::Tensor(), true); });
    for (const auto& [x, y] : {std::pair(got.out, exact.out), std::pair(got.dq, exact.dq), std::pair(got.dk, exact.dk),
                               std::pair(got.dv, exact.dv)})
      EXPECT_TRUE(torch::allclose(x.cpu().to(at::kDouble), y, 1e-4, 1e-5));
  }
}

// q = 0: every P is 1/16. Values of v and dO have one bit, so nothing is rounded on the way to o = mean(v) and dv =
// mean(dO).
TEST(TeFusedAttention, IsExactWhereNothingIsRounded) {
  const auto powers = [] {
    return torch::pow(2.0, torch::randint(0, 3, {2, 3, 16, 8}, at::kFloat)) *
           (torch::randint(0, 2, {2, 3, 16, 8}, at::kFloat) * 2 - 1);
  };
  const at::Tensor v = test::hpu(powers()), g = test::hpu(powers()), k = test::hpu(powers()), q = torch::zeros_like(v);
  DelayedScaling hybrid = DelayedScaling::habana();
  hybrid.fp8_format = RecipeFormat::HYBRID;
  for (const auto& recipe : test::Recipes{DelayedScaling::habana(), hybrid})
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

TEST(TeFusedAttention, IsNearF32InBothPasses) {
  torch::manual_seed(4);
  DelayedScaling hybrid = DelayedScaling::habana(), narrow = DelayedScaling::nvidia();
  hybrid.fp8_format = RecipeFormat::HYBRID;
  narrow.fp8_format = RecipeFormat::E4M3;
  recipes::CurrentScaling current_e4m3{.fp8_format = RecipeFormat::E4M3};
  const at::Tensor visible = torch::ones({33, 33}, at::kBool).tril();
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const std::int64_t groups : {4, 2}) {
      const auto random = [&](std::int64_t heads) { return torch::randn({2, heads, 33, 16}, on_hpu()).to(dtype); };
      const at::Tensor q = random(4), k = random(groups), v = random(groups), g = random(4);
      const Gradients exact = attention_step(test::f64_leaf(q), test::f64_leaf(k), test::f64_leaf(v), g,
                                             [&](auto... qkv) { return formula(qkv..., visible); });
      for (const auto& recipe : test::Recipes{hybrid, DelayedScaling::habana(), DelayedScaling::nvidia(), narrow,
                                              recipes::CurrentScaling{}, current_e4m3}) {
        const bool e5m2 = recipes::format_of(recipe) == RecipeFormat::E5M2;
        for (const bool recompute : {false, true})
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
  for (const auto& recipe :
       test::Recipes{DelayedScaling::nvidia(), DelayedScaling::habana(), recipes::CurrentScaling{}})
    for (const bool recompute : {false, true}) {
      const FusedAttentionOptions options{.attention_dropout = 0.4, .enable_recompute = recompute};
      FusedAttention a(options), b(options);
      for (int i = 0; i < 3; ++i) {
        const at::Tensor x = q * (3 - i);
        torch::manual_seed(7);
        const Gradients plain = attention_step(x, q, q, g, in_region(a, recipe));
        torch::manual_seed(7);
        const Gradients again = attention_step(x, q, q, g, [&](auto... qkv) {
          const fp8_autocast region(true, recipe);
          const CheckpointedFunction f = [&b](const std::vector<at::Tensor>& in) {
            return std::vector<at::Tensor>{b(in[0], in[1], in[2])};
          };
          return checkpoint(f, std::vector<at::Tensor>{qkv...})[0];
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

TEST(TeFusedAttention, GoesOnBitForBitAfterSaveAndLoad) {
  torch::manual_seed(8);
  const at::Tensor q = torch::randn({1, 2, 6, 8}, on_hpu());
  for (const auto& recipe : test::Recipes{DelayedScaling::nvidia(), DelayedScaling::habana()}) {
    FusedAttention a, b;
    for (int i = 0; i < 2; ++i) attention_step(q, q, q, q, in_region(a, recipe));
    test::load(b, test::saved(a));
    EXPECT_TRUE(same(attention_step(q * 5, q, q, q, in_region(a, recipe)),
                     attention_step(q * 5, q, q, q, in_region(b, recipe))));
  }
}

// Gaudi2 has no product of E4M3 with E5M2. A backward pass outside of the scope is the same device's.
TEST(TeFusedAttention, KnowsItsDevice) {
  const at::Tensor q = torch::randn({1, 2, 6, 8}, on_hpu());
  FusedAttention m;
  DelayedScaling hybrid = DelayedScaling::nvidia(), e4m3 = DelayedScaling::nvidia();
  e4m3.fp8_format = RecipeFormat::E4M3;
  Gradients inside, outside;
  FusedAttention other;
  {
    const runtime::DeviceKindScope gaudi2(runtime::DeviceKind::gaudi2);
    EXPECT_REFUSED(in_region(m, hybrid)(q, q, q), "fp8_format: found HYBRID on GAUDI2", "E5M2, E4M3");
    for (int i = 0; i < 2; ++i) inside = attention_step(q, q, q, q, in_region(m, e4m3));
    EXPECT_EQ(m->fp8_states()[0]->values().forward.scale[0], 240.0f / q.abs().max().item<float>());
  }
  for (int i = 0; i < 2; ++i) {
    outside = attention_step(q, q, q, q, [&](auto... qkv) {
      const runtime::DeviceKindScope gaudi2(runtime::DeviceKind::gaudi2);
      return in_region(other, e4m3)(qkv...);
    });
  }
  EXPECT_TRUE(same(inside, outside));
}

TEST(TeFusedAttention, NamesWhatItRejects) {
  const at::Tensor q = torch::randn({1, 2, 6, 8}, on_hpu());
  FusedAttention m(FusedAttentionOptions{.name = "core"});
  EXPECT_REFUSED(in_region(m, recipes::BlockScaling{})(q, q, q), "'core'", "recipe: found block", "delayed, current");
  EXPECT_REFUSED(in_region(m, recipes::MXFP8{})(q, q, q), "'core'", "recipe: found mxfp8");
  EXPECT_REFUSED(in_region(m, recipes::CurrentScaling{})(q, torch::zeros({1, 3, 6, 8}, on_hpu()),
                                                         torch::zeros({1, 3, 6, 8}, on_hpu())),
                 "heads of q", "2, 3");
  EXPECT_REFUSED(in_region(m, recipes::CurrentScaling{})(q, q.to(at::kBFloat16), q), "one dtype");
  EXPECT_REFUSED(in_region(m, recipes::CurrentScaling{}, torch::zeros({6, 6}, on_hpu()).requires_grad_(true))(q, q, q),
                 "attention_mask", "requires a gradient");
  EXPECT_REFUSED(m(q, q, q, at::Tensor(), false, "slow"), "softmax_mode: found \"slow\"");
  EXPECT_REFUSED(FusedAttention f(FusedAttentionOptions{.attention_dropout = -1}), "attention_dropout: found -1");
  const at::Tensor x = q.clone().requires_grad_(true);
  const at::Tensor y = in_region(m, recipes::CurrentScaling{})(x, q, q);
  const auto dx = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
  EXPECT_REFUSED(dx.sum().backward(), "fp8 attention of fp8::te has no second derivative");
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
  for (const auto& recipe : test::Recipes{DelayedScaling::nvidia(), recipes::CurrentScaling{}}) {
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
    test::within(torch::NoGradGuard(), [&] { in_region(m, recipe)(q * 100, q, q); });
    EXPECT_EQ(m->fp8_states()[0]->values().step, before.step);
    EXPECT_EQ(m->fp8_states()[0]->values().forward.scale[0], before.forward.scale[0]);
  }
  const at::Tensor q = torch::randn({1, 2, 3, 4}, on_hpu());
  FusedAttention m;
  test::within(
      fp8_autocast(Fp8AutocastOptions{.enabled = false, .recipe = DelayedScaling::nvidia(), .calibrating = true}),
      [&] { m(q, q, q * 2); });
  EXPECT_EQ(m->fp8_states()[0]->values().forward.scale[2], 448.0f / (q * 2).abs().max().item<float>());
}

// DotProductAttention is torch's function bit for bit with fp8 off, and near it in fp8 where asked.

struct MaskCase {
  const char* type;
  std::pair<std::int64_t, std::int64_t> window = {-1, -1};
  std::int64_t queries = 9, keys = 9;
};

/// Which keys a query sees by the words of the options, one by one. Padding, behind the keys, does not count in d.
at::Tensor reference_visible(const MaskCase& c, const at::Tensor& masked_out) {
  const std::string type = c.type;
  const bool causal = type.find("causal") != std::string::npos;
  at::Tensor seen = torch::ones({2, 1, c.queries, c.keys}, at::kBool);
  for (int b = 0; b < 2; ++b) {
    const std::int64_t padding =
        type.find("padding") == 0 && c.keys != c.queries ? masked_out[b].sum().item<std::int64_t>() : 0;
    const std::int64_t d = causal && type.find("bottom_right") == std::string::npos ? 0 : c.keys - padding - c.queries;
    for (std::int64_t i = 0; i < c.queries; ++i)
      for (std::int64_t j = 0; j < c.keys; ++j) {
        bool s = !causal || j <= i + d;
        s = s && (c.window.first < 0 || j >= i + d - c.window.first) &&
            (c.window.second < 0 || j <= i + d + c.window.second);
        if (masked_out.defined()) s = s && !masked_out.expand({2, 1, c.queries, c.keys})[b][0][i][j].item<bool>();
        seen[b][0][i][j] = s;
      }
  }
  return seen;
}

TEST(TeDotProductAttention, OffIsTorchBitForBit) {
  torch::manual_seed(1);
  const std::vector<MaskCase> cases{{"no_mask"},
                                    {"no_mask", {-1, -1}, 5, 9},
                                    {"no_mask", {2, 1}},
                                    {"causal"},
                                    {"causal", {3, -1}},
                                    {"causal", {-1, -1}, 5, 9},
                                    {"causal_bottom_right", {-1, -1}, 5, 9},
                                    {"causal_bottom_right", {2, 0}, 5, 9},
                                    {"padding"},
                                    {"padding", {-1, -1}, 5, 9},
                                    {"padding_causal"},
                                    {"padding_causal_bottom_right", {-1, -1}, 5, 9},
                                    {"arbitrary"}};
  for (const MaskCase& c : cases)
    for (const std::int64_t groups : {4, 2, 1})
      for (const char* format : {"sbhd", "bshd"}) {
        const at::Tensor q = torch::randn({2, c.queries, 4, 8}, on_hpu()),
                         k = torch::randn({2, c.keys, groups, 8}, on_hpu()),
                         v = torch::randn({2, c.keys, groups, 8}, on_hpu());
        at::Tensor masked;  // the second sequence has three keys less
        if (std::string(c.type).find("padding") == 0) {
          masked = torch::zeros({2, 1, 1, c.keys}, on_hpu(at::kBool));
          masked.select(0, 1).slice(-1, c.keys - 3).fill_(true);
        }
        if (std::string(c.type) == "arbitrary")
          masked = torch::rand({2, 1, 9, 9}, on_hpu()).gt(0.7).logical_and(torch::eye(9, on_hpu()).eq(0));
        DotProductAttention m(DotProductAttentionOptions{.num_attention_heads = 4,
                                                         .kv_channels = 8,
                                                         .num_gqa_groups = groups,
                                                         .qkv_format = format,
                                                         .attn_mask_type = c.type,
                                                         .window_size = c.window});
        const at::Tensor visible = reference_visible(c, masked.defined() ? masked.cpu() : masked);
        const bool plain_causal = std::string(c.type) == "causal" && c.window.first < 0,
                   nothing = std::string(c.type) == "no_mask" && c.window.first < 0;
        const auto t = [](const at::Tensor& x) { return x.transpose(1, 2); };
        const std::optional<at::Tensor> mask =
            plain_causal || nothing ? std::nullopt : std::optional<at::Tensor>(visible.to(test::kHpu));
        at::Tensor expected =
            torch::scaled_dot_product_attention(t(q), t(k), t(v), mask, 0.0, plain_causal, std::nullopt, groups != 4)
                .transpose(1, 2)
                .flatten(2);
        at::Tensor y;
        if (std::string(format) == "sbhd") {
          y = m(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), masked).transpose(0, 1);
        } else {
          y = m(q, k, v, masked);
        }
        EXPECT_TRUE(same_bits(y, expected)) << c.type << " " << format;
        const at::Tensor exact = formula(f64(t(q)), f64(t(k)), f64(t(v)), visible).transpose(1, 2).flatten(2);
        EXPECT_TRUE(torch::allclose(y.cpu().to(at::kDouble), exact.detach(), 1e-4, 1e-5))
            << c.type << " groups " << groups;
      }
}

TEST(TeDotProductAttention, NamesWhatItRejects) {
  using O = DotProductAttentionOptions;
  const auto make = [](const O& o) { DotProductAttention m(o); };
  EXPECT_REFUSED(make({}), "num_attention_heads");
  EXPECT_REFUSED(make({.num_attention_heads = 4, .kv_channels = 8, .num_gqa_groups = 3}), "num_gqa_groups: found 3",
                 "divisors of num_attention_heads = 4");
  EXPECT_REFUSED(make({.num_attention_heads = 4, .kv_channels = 8, .qkv_format = "bhsd"}), "qkv_format: found \"bhsd\"",
                 "\"sbhd\", \"bshd\", \"thd\"");
  EXPECT_REFUSED(make({.num_attention_heads = 4, .kv_channels = 8, .attn_mask_type = "triangle"}),
                 "attn_mask_type: found \"triangle\"", "\"causal\"", "\"arbitrary\"");
  EXPECT_REFUSED(make({.num_attention_heads = 4, .kv_channels = 8, .window_size = {-2, 0}}),
                 "window_size: found (-2, 0)");
  EXPECT_REFUSED(make({.num_attention_heads = 4, .kv_channels = 8, .attention_dropout = 1.5}),
                 "attention_dropout: found 1.5");
  DotProductAttention m(O{.num_attention_heads = 4, .kv_channels = 8});
  const at::Tensor q = torch::zeros({5, 2, 4, 8}, on_hpu()), mask = torch::zeros({2, 1, 1, 5}, on_hpu(at::kBool));
  EXPECT_REFUSED(m(q, q, q, mask), "attention_mask: found one", "\"causal\": none");
  EXPECT_REFUSED(m(q, q.slice(2, 0, 2), q), "key: found sizes [5, 2, 2, 8]", "[length, batch, 4, 8]");
  DotProductAttention padded(O{.num_attention_heads = 4, .kv_channels = 8, .attn_mask_type = "padding"});
  EXPECT_REFUSED(padded(q, q, q), "attention_mask: found none", "Bool");
  EXPECT_REFUSED(padded(q, q, q, mask.view({2, 5})), "attention_mask: found sizes [2, 5]", "[2, 1, 1, 5]");
}

// fp8_dpa: in fp8 inside a region, torch's outside.
TEST(TeDotProductAttention, RunsInFp8WhereAsked) {
  torch::manual_seed(12);
  const at::Tensor q = torch::randn({7, 2, 4, 8}, on_hpu()), k = torch::randn({7, 2, 2, 8}, on_hpu());
  DotProductAttentionOptions o{.num_attention_heads = 4, .kv_channels = 8, .num_gqa_groups = 2};
  DotProductAttention high(o);
  o.fp8_dpa = true;
  DotProductAttention m(o);
  EXPECT_TRUE(same_bits(m(q, k, k), high(q, k, k)));
  const fp8_autocast region(true, recipes::CurrentScaling{});
  const at::Tensor y = m(q, k, k), exact = high(q, k, k);
  EXPECT_FALSE(same_bits(y, exact));
  EXPECT_TRUE(near_by(y, exact, 0.125, 0.0675));
}

}  // namespace
}  // namespace fp8::te
