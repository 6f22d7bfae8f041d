// SPDX-License-Identifier: Apache-2.0
// mixture_of_experts on codes. With small integers as codes, scales that are powers of two and relu every sum is exact,
// so the ten forms are compared with the formula bit by bit, roundings to fp8 and bf16 included.
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/ops/moe/moe_ops.h"
#include "runtime/ops/moe/moe_problem.h"

namespace fp8::test {
namespace {

using at::Tensor;

/// Multipliers out. Per output where a vector has more than one value.
struct Scales {
  double hidden = 0.5;
  std::vector<double> intermediate = {4, 8, 2, 16};
  double w1 = 0.25, w2 = 0.5, w3 = 2;
};

/// v as fp8 and back, element by element.
Tensor through_fp8(const Tensor& v, bool e5m2, double max) {
  Tensor out = v.clone().contiguous();
  double* values = out.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < out.numel(); ++i) values[i] = value_of(code_of(values[i], e5m2, max), e5m2);
  return out;
}

Tensor to_bf16(const Tensor& exact) {
  Tensor out = exact.clone().contiguous();
  double* values = out.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < out.numel(); ++i) values[i] = rounded(values[i], kBf16);
  return out.to(at::kBFloat16);
}

/// y by the formula; `quantize` is what happens to an expert's intermediate.
Tensor exact_result(const MoeProblem& p, const Scales& s,
                    const std::function<Tensor(const Tensor&, std::size_t)>& quantize) {
  Tensor y = at::zeros({p.tokens, p.hidden}, at::kDouble);
  for (std::size_t e = 0; e < p.w1.size(); ++e) {
    const Tensor x = values_of(p.x) * s.hidden;
    const Tensor h = quantize(p.intermediate(e, x, values_of(p.w1[e]) * s.w1, values_of(p.w2[e]) * s.w2), e);
    y = y + p.weight_of(static_cast<std::int64_t>(e)).unsqueeze(1) * at::matmul(h, values_of(p.w3[e]) * s.w3);
  }
  return to_bf16(y);
}

/// Scale arguments: a tensor or a float for one, lists for experts.
at::IValue one(double v, bool scalars) { return scalars ? at::IValue(v) : at::IValue(at::full({1}, v, on_hpu())); }
at::IValue list(const std::vector<double>& v, bool scalars) {
  if (scalars) return c10::List<double>(v);
  c10::List<Tensor> tensors;
  for (const double value : v) tensors.push_back(at::full({1}, value, on_hpu(at::kBFloat16)));
  return tensors;
}

Tensor run(const MoeProblem& p, const Scales& s, bool permuted, bool fused, bool scalars, bool dynamic) {
  torch::jit::Stack stack = p.inputs(permuted, fused);
  const std::vector<double> w1(p.w1.size(), s.w1), w2(p.w1.size(), s.w2), w3(p.w1.size(), s.w3);
  stack.push_back(one(s.hidden, scalars));
  if (!dynamic) stack.push_back(list(s.intermediate, scalars));
  stack.push_back(list(w1, scalars));
  if (!fused) stack.push_back(list(w2, scalars));
  stack.push_back(list(w3, scalars));
  p.add_tail(stack, permuted);
  stack.insert(stack.end(), {64, 4});  // chunk_size, total_experts
  const std::string name =
      std::string("fp8") + (fused ? "_fused_weights" : "") + (scalars ? "_scalars" : "") + (dynamic ? "_dynamic" : "");
  return call("mixture_of_experts", name.c_str(), stack)[0];
}

void expect_all_forms(const MoeProblem& p, bool e5m2, double max) {
  for (const bool fused : {false, true}) {
    Scales s;
    if (fused) s.w2 = s.w1;  // one value for both
    const Tensor expected = exact_result(p, s, [&](const Tensor& h, std::size_t e) {
      return through_fp8(h / s.intermediate[e], e5m2, max) * s.intermediate[e];
    });
    for (const bool scalars : {false, true})
      for (const bool permuted : {false, true})
        EXPECT_TRUE(same_bits(run(p, s, permuted, fused, scalars, false), expected)) << fused << scalars << permuted;
  }
}

TEST(MoeFp8, StaticFormsEqualTheFormulaToTheBit) {
  expect_all_forms(exact_moe(kE4M3), false, 448);
  expect_all_forms(exact_moe(kE5M2), true, 57344);
}

TEST(MoeFp8, TheDeviceDecidesWhereTheIntermediateSaturates) {
  MoeProblem p = exact_moe(kE4M3);
  p.x = (at::randint(2, 17, {p.tokens, p.hidden})).to(at::kFloat).to(kE4M3);
  Scales s{.intermediate = {1, 1, 1, 1}};
  const auto expected = [&](double max) {
    return exact_result(p, s, [&](const Tensor& h, std::size_t) { return through_fp8(h, false, max); });
  };
  EXPECT_FALSE(same_bits(expected(240), expected(448))) << "the case must reach saturation";
  EXPECT_TRUE(same_bits(run(p, s, true, false, false, false), expected(448)));
  const runtime::DeviceKindScope gaudi2(runtime::DeviceKind::gaudi2);
  EXPECT_TRUE(same_bits(run(p, s, true, false, false, false), expected(240)));
}

TEST(MoeFp8, DynamicFormsScaleEachTokensIntermediate) {
  const MoeProblem p = exact_moe(kE4M3);
  for (const bool fused : {false, true}) {
    Scales s;
    if (fused) s.w2 = s.w1;
    const Tensor exact = exact_result(p, s, [](const Tensor& h, std::size_t) { return h; });
    const Tensor emulated = exact_result(p, s, [](const Tensor& h, std::size_t) {  // amax / 448 per row
      const Tensor scale = std::get<0>(h.abs().max(1, true)) / 448,
                   safe = at::where(scale > 0, scale, at::ones({}, at::kDouble));
      return through_fp8(h / safe, false, 448) * safe;
    });
    for (const bool scalars : {false, true}) {
      const Tensor y = run(p, s, true, fused, scalars, true);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      EXPECT_LT(relative_error(y, exact.to(at::kDouble)), 0.04) << "the scale is undone";
      // f32 and f64 scales differ in the last bit, which turns a tie here and there.
      EXPECT_LT(relative_error(y, emulated.to(at::kDouble)), 0.008);
      EXPECT_TRUE(same_bits(y, run(p, s, false, fused, scalars, true)));
    }
  }
}

TEST(MoeFp8, HiddenScalesPerTokenAndWeightScalesPerOutput) {
  MoeProblem p = exact_moe(kE4M3);
  const auto powers = [](at::IntArrayRef sizes) { return at::pow(2.0, at::randint(-2, 3, sizes)).to(at::kFloat); };
  torch::manual_seed(3);
  const Tensor d_hidden = powers({p.tokens, 1});
  std::vector<Tensor> d12, d3;
  for (std::int64_t e = 0; e < p.experts; ++e) {
    d12.push_back(hpu(powers({2 * p.inner})));
    d3.push_back(hpu(powers({p.hidden, 1})));
  }
  const std::vector<Tensor> d_intermediate(4, at::full({}, 8.0, on_hpu()));
  Tensor exact = at::zeros({p.tokens, p.hidden}, at::kDouble);
  for (std::size_t e = 0; e < p.w1.size(); ++e) {
    const Tensor d = d12[e].cpu().to(at::kDouble);
    const Tensor h = p.intermediate(e, values_of(p.x) * d_hidden, values_of(p.w1[e]) * d.slice(0, 0, p.inner),
                                    values_of(p.w2[e]) * d.slice(0, p.inner));
    exact = exact + p.weight_of(static_cast<std::int64_t>(e)).unsqueeze(1) *
                        at::matmul(through_fp8(h / 8, false, 448) * 8,
                                   values_of(p.w3[e]) * d3[e].cpu().to(at::kDouble).view({1, -1}));
  }
  const runtime::ops::MoeRoute route{hpu(p.x), hpu(p.table), hpu(p.router), true, "relu", 0, 3};
  const Tensor y = runtime::ops::call_mixture_of_experts_fp8(route, p.lists(true, true, 1), p.lists(true, true, 3),
                                                             hpu(d_hidden), d_intermediate, d12, d3);
  EXPECT_TRUE(same_bits(y, to_bf16(exact)));
}

TEST(MoeFp8, BlockwiseEqualsTheFormula) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    MoeProblem p = exact_moe(kE4M3);
    p.hidden = 20;  // blocks of 8: two whole ones and a rest
    p.x = at::randint(-3, 4, {p.tokens, 20}).to(type);
    torch::manual_seed(9);
    std::vector<Tensor> d12, d3;
    const auto expanded = [](const Tensor& d, const Tensor& w) {
      return d.to(at::kDouble)
          .repeat_interleave(8, 0)
          .repeat_interleave(8, 1)
          .slice(0, 0, w.size(0))
          .slice(1, 0, w.size(1));
    };
    Tensor exact = at::zeros({p.tokens, 20}, at::kDouble);
    for (std::size_t e = 0; e < 4; ++e) {
      const auto codes = [&](std::int64_t a, std::int64_t b) {
        return at::randint(-3, 4, {a, b}).to(at::kFloat).to(kE4M3);
      };
      const auto powers = [&](std::int64_t a, std::int64_t b) {
        return at::pow(2.0, at::randint(-2, 1, {a, b})).to(at::kFloat);
      };
      p.w1[e] = codes(20, 24), p.w2[e] = codes(20, 24), p.w3[e] = codes(24, 20);
      const Tensor a = powers(3, 3), b = powers(3, 3);
      d12.push_back(hpu(at::cat({a, b}, 1)));  // [H blocks, F blocks], 24 = 3 * 8: both halves end with a block
      d3.push_back(hpu(powers(3, 3)));
      const Tensor h = p.intermediate(e, p.x.to(at::kDouble), values_of(p.w1[e]) * expanded(a, p.w1[e]),
                                      values_of(p.w2[e]) * expanded(b, p.w2[e]));
      exact = exact + p.weight_of(static_cast<std::int64_t>(e)).unsqueeze(1) *
                          at::matmul(h, values_of(p.w3[e]) * expanded(d3[e].cpu(), p.w3[e]));
    }
    const auto turned = [](std::vector<Tensor> list) {
      for (auto& t : list) t = t.t().contiguous();
      return list;
    };
    for (const bool permuted : {false, true}) {
      const runtime::ops::MoeRoute route{hpu(p.x), hpu(p.table), hpu(p.router), permuted, "relu", 0, 3};
      const Tensor y =
          runtime::ops::call_mixture_of_experts_blockwise(route, p.lists(permuted, true, 1), p.lists(permuted, true, 3),
                                                          permuted ? turned(d12) : d12, permuted ? turned(d3) : d3, 8);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      EXPECT_LT(relative_error(y, exact), type == at::kFloat ? 2.1e-3 : 5e-3) << type << permuted;
      if (type == at::kFloat) {
        EXPECT_TRUE(same_bits(y, to_bf16(exact)));
      }
    }
  }
}

TEST(MoeFp8, ThreadsDoNotChangeABit) {
  const MoeProblem p = exact_moe(kE4M3);
  MoeProblem silu = p;
  silu.activation = "silu";
  const Tensor expected = run(silu, {}, true, true, false, true);
  const int before = kernels::num_threads();
  for (const int threads : {1, 2, 3, 5}) {
    kernels::set_num_threads(threads);
    EXPECT_TRUE(same_bits(run(silu, {}, true, true, false, true), expected)) << threads;
  }
  kernels::set_num_threads(before);
}

TEST(MoeFp8, AnUncalibratedExpertIsNamedOnceTokensMeetIt) {
  MoeProblem p = exact_moe(kE4M3);
  Scales s;
  s.intermediate[2] = 0;
  EXPECT_REFUSED(run(p, s, true, false, false, false), "d_scale_intermediate_hidden_states[2]", "got 0", "calibration");
  p.table.masked_fill_(p.table == 2, 1);
  EXPECT_TRUE(run(p, s, true, false, false, false).cpu().isfinite().all().item<bool>());
}

TEST(MoeFp8, MetaGivesBf16) {
  const MoeProblem p = exact_moe(kE4M3);
  const auto meta = [](std::vector<Tensor> list) {
    for (auto& t : list) t = t.to(at::kMeta);
    return list;
  };
  const runtime::ops::MoeRoute route{
      p.x.to(at::kMeta), p.table.to(at::kMeta), p.router.to(at::kMeta), true, "relu", 0, 3};
  const std::vector<Tensor> scales(4, at::empty({1}, at::kMeta));
  const Tensor y =
      runtime::ops::call_mixture_of_experts_fp8(route, meta(p.lists(true, true, 1)), meta(p.lists(true, true, 3)),
                                                at::empty({1}, at::kMeta), scales, scales, scales);
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(y.sizes(), p.x.sizes());
}

TEST(MoeFp8, BadArgumentsAreNamed) {
  const MoeProblem p = exact_moe(kE4M3);
  MoeProblem q = p;
  q.x = p.x.to(at::kFloat);
  EXPECT_REFUSED(run(q, {}, true, false, false, false), "hidden_states of dtype Float8", "Float");
  q = p, q.w3[1] = at::ones({24, 16}, at::kBFloat16);
  EXPECT_REFUSED(run(q, {}, true, false, false, false), "weights of dtype Float8", "BFloat16");
  q = p, q.w3[1] = p.w3[1].to(at::kFloat).to(kE5M2);
  EXPECT_REFUSED(run(q, {}, true, false, false, false), "weights of one dtype");
  Scales s;
  s.intermediate.pop_back();
  EXPECT_REFUSED(run(p, s, true, false, true, false), "d_scale_intermediate_hidden_states of 4 elements", "got 3");
  s.intermediate.clear();
  EXPECT_REFUSED(run(p, s, true, false, true, false), "d_scale_intermediate_hidden_states", "got none");
  const runtime::ops::MoeRoute route{hpu(p.x), hpu(p.table), hpu(p.router), true, "relu", 0, 3};
  const auto w12 = p.lists(true, true, 1), w3 = p.lists(true, true, 3);
  const std::vector<Tensor> ok(4, at::ones({1}, on_hpu()));
  const auto with = [&](const Tensor& hidden, const std::vector<Tensor>& d12) {
    runtime::ops::call_mixture_of_experts_fp8(route, w12, w3, hidden, ok, d12, ok);
  };
  EXPECT_REFUSED(with(at::ones({5}), ok), "d_scale_hidden_states of 1 or 9 elements, got 5");
  EXPECT_REFUSED(with(ok[0], std::vector<Tensor>(4, at::ones({24}))), "d_scale_w12[0] of 1 or 48 elements, got 24");
  EXPECT_REFUSED(with(ok[0], std::vector<Tensor>(3, ok[0])), "d_scale_w12 of 4 elements", "got 3");
  const runtime::ops::MoeRoute high{at::ones({9, 16}, on_hpu()), hpu(p.table), hpu(p.router), true, "relu", 0, 3};
  EXPECT_REFUSED(runtime::ops::call_mixture_of_experts_blockwise(high, w12, w3, ok, ok, 0), "block_size", "got 0");
  EXPECT_REFUSED(runtime::ops::call_mixture_of_experts_blockwise(high, w12, w3, ok, ok, 8),
                 "d_scale_w12[0] of sizes [6, 2]");
  EXPECT_REFUSED(runtime::ops::call_mixture_of_experts_blockwise(route, w12, w3, ok, ok, 8), "blockwise", "Float8");
}

}  // namespace
}  // namespace fp8::test
