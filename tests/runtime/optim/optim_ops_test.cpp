// SPDX-License-Identifier: Apache-2.0
// hpu::optimizer_* and hpu::fused_clip_norm: the vendor's schemas, and its math in f64.
#include "runtime/optim/optim_test.h"
#include "support/operator_call.h"

namespace fp8::runtime {
namespace {

using at::Tensor;

TEST(OptimOps, SchemasEqualTheVendors) { test::expect_schemas("optimizers", 10); }

/// hpu::<name>(args...) as scripts call it.
torch::jit::Stack call(const char* name, torch::jit::Stack args, const std::string& space = "hpu::") {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow((space + name).c_str(), "");
  op.schema().checkAndNormalizeInputs(args);
  op.callBoxed(args);
  return args;
}

Tensor scalar(double x) { return torch::full({1}, x, test::on_hpu()); }
Tensor normal(at::IntArrayRef sizes, double size = 1) { return (torch::randn(sizes) * size).to(test::kHpu); }
Tensor f64(const Tensor& t) { return t.cpu().to(at::kDouble); }
::testing::AssertionResult near(const Tensor& ours, const Tensor& expected, double relative = 1e-5,
                                double absolute = 1e-6) {
  if (torch::allclose(f64(ours), expected, relative, absolute)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "by at most " << (f64(ours) - expected).abs().max().item<double>();
}

TEST(OptimOps, AdamwHasTheDevicesFormula) {
  for (const bool decays : {true, false}) {
    torch::manual_seed(1);
    std::vector<Tensor> g{normal({9, 5}), normal({300})}, w{normal({9, 5}), normal({300})},
        m{normal({9, 5}), normal({300})}, v{normal({9, 5}).square(), normal({300}).square()};
    std::vector<Tensor> expected;
    for (int i = 0; i < 2; ++i) {
      const Tensor m1 = 0.9 * f64(m[i]) + 0.1 * f64(g[i]), v1 = 0.99 * f64(v[i]) + 0.01 * f64(g[i]).square();
      expected.push_back(f64(w[i]) * (decays ? 0.95 : 1) - 0.02 * m1 / (v1.sqrt() + 1e-6));
    }
    call("optimizer_adamw", {g, w, m, v, scalar(-0.02), 0.9, 0.99, 1e-6, scalar(0.95), decays});
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(near(w[i], expected[i])) << i;
  }
}

/// Python's: by the options of a group, each weight by its own step.
TEST(OptimOps, AdamwByTheOptionsOfAGroup) {
  const auto made = [] {
    torch::manual_seed(4);
    return std::vector<Tensor>{normal({9, 5}), normal({300}), normal({7})};
  };
  for (const bool as_torch : {true, false}) {
    std::vector<Tensor> g = made(), w = made(), m = made(), v = made();
    for (Tensor& t : v) t = t.square();
    std::vector<Tensor> gradients = made(), weights = made(), m1 = made(), v1 = v;
    for (Tensor& t : v1) t = t.clone();
    const std::vector<std::int64_t> steps = {3, 1, 3};
    call("adamw_step", {gradients, weights, m1, v1, steps, 0.01, 0.9, 0.99, 1e-6, 0.1, true, as_torch}, "fp8::");
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double root = std::sqrt(1 - std::pow(0.99, steps[i]));
      call("optimizer_adamw", {std::vector{g[i]}, std::vector{w[i]}, std::vector{m[i]}, std::vector{v[i]},
                               scalar(-0.01 * root / (1 - std::pow(0.9, steps[i]))), 0.9, 0.99,
                               as_torch ? 1e-6 * root : 1e-6, scalar(1 - 0.01 * 0.1), true});
      EXPECT_TRUE(test::same_bits(weights[i], w[i]) && test::same_bits(m1[i], m[i]) && test::same_bits(v1[i], v[i]));
    }
    EXPECT_REFUSED(call("adamw_step", {g, w, m, v, std::vector<std::int64_t>{1}, 0.1, 0.9, 0.99, 1e-6, 0.0}, "fp8::"),
                   "adamw_step", "expected 3 of steps, got 1");
    EXPECT_REFUSED(call("sgd_step", {g, w, m, std::vector<std::int64_t>{1}, 0.1}, "fp8::"), "sgd_step",
                   "expected 3 of first, got 1");
  }
}

TEST(OptimOps, AdamwRenewsTheScalesOfFp8Moments) {
  torch::manual_seed(2);
  std::vector<Tensor> g{normal({1000}, 1e-3)}, w{normal({1000})},
      m{torch::zeros({1000}, test::on_hpu(at::kFloat8_e4m3fn))},
      v{torch::zeros({1000}, test::on_hpu(at::kFloat8_e5m2))}, m_scale{scalar(1)}, v_scale{scalar(1)};
  call("optimizer_adamw", {g, w, m, v, scalar(-0.01), 0.9, 0.999, 1e-6, scalar(1), false, m_scale, v_scale});
  const double most = f64(g[0]).abs().max().item<double>();
  EXPECT_EQ(m_scale[0].item<double>(), std::exp2(std::floor(std::log2(448 / (0.1 * most)))));
  EXPECT_EQ(v_scale[0].item<double>(), std::exp2(std::floor(std::log2(57344 / (0.001 * most * most)))));
  const Tensor values = f64(m[0].cpu().to(at::kFloat)) / m_scale[0].item<double>();
  EXPECT_TRUE(torch::allclose(values, 0.1 * f64(g[0]), 0.126, 1e-9 + 0x1p-9 / m_scale[0].item<double>()));
  EXPECT_REFUSED(call("optimizer_adamw", {g, w, m, v, scalar(-0.01), 0.9, 0.999, 1e-6, scalar(1), false}),
                 "exp_avg_scales[0]", "none");
}

/// Callers with bf16 weights keep their scales in bf16; powers of two lose nothing by it.
TEST(OptimOps, AdamwTakesScalesInBf16) {
  const auto run = [](at::ScalarType type) {
    torch::manual_seed(2);
    std::vector<Tensor> g{normal({1000}, 1e-3)}, w{normal({1000})},
        m{torch::zeros({1000}, test::on_hpu(at::kFloat8_e4m3fn))},
        v{torch::zeros({1000}, test::on_hpu(at::kFloat8_e5m2))}, m_scale{scalar(1).to(type)},
        v_scale{scalar(1).to(type)};
    for (int step = 0; step < 2; ++step)
      call("optimizer_adamw", {g, w, m, v, scalar(-0.01), 0.9, 0.999, 1e-6, scalar(1), false, m_scale, v_scale});
    EXPECT_EQ(m_scale[0].scalar_type(), type);
    return std::vector<Tensor>{w[0], m[0], v[0], m_scale[0].to(at::kFloat), v_scale[0].to(at::kFloat)};
  };
  const auto bf16 = run(at::kBFloat16), f32 = run(at::kFloat);
  EXPECT_GT(f32[3].item<double>(), 1);
  for (std::size_t i = 0; i < f32.size(); ++i) EXPECT_TRUE(test::same_bits(bf16[i], f32[i])) << i;
}

TEST(OptimOps, EmaAndClipNorm) {
  torch::manual_seed(3);
  std::vector<Tensor> x{normal({40}), normal({3, 3})}, e{normal({40}), normal({3, 3})};
  const Tensor expected = 0.75 * f64(e[1]) + 0.25 * f64(x[1]);
  call("optimizer_ema", {x, e, scalar(0.75)});
  EXPECT_TRUE(near(e[1], expected, 1e-5, 1e-7));

  const Tensor before = f64(x[0]);
  const double norm = std::sqrt(before.square().sum().item<double>() + f64(x[1]).square().sum().item<double>());
  std::vector<Tensor> list{x[0], x[1], scalar(0)};
  const Tensor result = call("fused_clip_norm", {list, scalar(0.5), 2.0})[0].toTensor();
  EXPECT_NEAR(result.item<double>(), norm, 1e-5 * norm);
  EXPECT_NEAR(list[2].item<double>(), norm, 1e-5 * norm);
  EXPECT_TRUE(near(x[0], before * (0.5 / (norm + 1e-6))));
  EXPECT_REFUSED(call("fused_clip_norm", {list, scalar(1), 1.0}), "norm_type 2", "got 1");
  const Tensor kept = x[0].clone();
  EXPECT_REFUSED(call("fused_clip_norm", {x, scalar(1), 2.0}), "last tensor of grad", "[3, 3]");
  for (const double bad : {-1.0, std::nan("")}) {  // would turn gradients round, or pass over the limit
    EXPECT_REFUSED(call("fused_clip_norm", {list, scalar(bad), 2.0}),
                   "[fused_clip_norm] expected max_norm of 0 or more");
  }
  std::vector<Tensor> whole{x[0], torch::zeros({1}, test::on_hpu(at::kInt))};
  EXPECT_REFUSED(call("fused_clip_norm", {whole, scalar(0.1), 2.0}), "floating-point", "Int");
  EXPECT_TRUE(test::same_bits(x[0], kept));
}

TEST(OptimOps, LambInItsThreeParts) {
  torch::manual_seed(4);
  std::vector<Tensor> g{normal({50}), normal({6, 7})}, w{normal({50}), normal({6, 7})}, m{normal({50}), normal({6, 7})},
      v{normal({50}).square(), normal({6, 7}).square()}, wn{scalar(0), scalar(0)}, an{scalar(0), scalar(0)},
      steps{normal({50}), normal({6, 7})};
  const double norm = std::sqrt(f64(g[0]).square().sum().item<double>() + f64(g[1]).square().sum().item<double>());
  const Tensor clip = call("optimizer_lamb_fused_norm", {g, 2.0})[0].toTensor();
  EXPECT_EQ(clip.sizes(), at::IntArrayRef({1}));
  EXPECT_NEAR(clip.item<double>(), norm / 2, 1e-6 * norm);
  EXPECT_EQ(call("optimizer_lamb_fused_norm", {g, norm + 1})[0].toTensor().item<double>(), 1);

  std::vector<Tensor> low{normal({50}, 1e3).to(at::kHalf)};  // its norm times 1000 is no float16
  const Tensor divisor = call("optimizer_lamb_fused_norm", {low, 1e-3})[0].toTensor();
  EXPECT_EQ(divisor.scalar_type(), at::kFloat);
  EXPECT_NEAR(divisor.item<double>(), f64(low[0]).norm().item<double>() * 1e3, divisor.item<double>() * 1e-6);

  std::vector<Tensor> expected_step, expected_weight;
  for (int i = 0; i < 2; ++i) {
    const Tensor d = f64(g[i]) / clip.item<double>(), m1 = 0.9 * f64(m[i]) + 0.1 * d,
                 v1 = 0.99 * f64(v[i]) + 0.01 * d * d;
    expected_step.push_back(m1 / 0.1 / ((v1 / 0.01).sqrt() + 1e-6) + 0.3 * f64(w[i]));
    const double trust = (f64(w[i]).norm() / expected_step[i].norm()).item<double>();
    expected_weight.push_back(f64(w[i]) - 0.01 * trust * expected_step[i]);
  }
  const auto version = wn[0]._version();
  call("optimizer_lamb_phase1", {g, w, m, v, wn, an, steps, clip, 1, 0.9, 0.99, 1e-6, scalar(0.1), scalar(0.01), 0.3});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(near(steps[i], expected_step[i], 1e-5, 1e-5));
    EXPECT_TRUE(near(wn[i][0], f64(w[i]).norm()));
    EXPECT_TRUE(near(an[i][0], expected_step[i].norm(), 1e-5));
  }
  EXPECT_GT(wn[0]._version(), version);
  call("optimizer_lamb_phase2", {w, an, wn, steps, scalar(-0.01), 0.3, false});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(near(w[i], expected_weight[i], 1e-5, 1e-6));
}

TEST(OptimOps, LarsAndItsMomentum) {
  torch::manual_seed(5);
  std::vector<Tensor> p{normal({50}), normal({8}), torch::zeros({4}, test::on_hpu())},
      g{normal({50}), normal({8}), normal({4})};
  const double pn = f64(p[0]).norm().item<double>(), gn = f64(g[0]).norm().item<double>();
  const Tensor scaled = (f64(g[0]) + 0.1 * f64(p[0])) * 0.5 * (0.01 * pn / (gn + 0.1 * pn + 1e-8));
  const Tensor skipped = f64(g[1]) * 0.5, without_norm = f64(g[2]) * 0.5;
  call("optimizer_lars", {p, g, std::vector<std::int64_t>{1, 0, 1}, 0.01, 0.1, 1e-8, scalar(0.5)});
  EXPECT_TRUE(near(g[0], scaled));
  EXPECT_TRUE(near(g[1], skipped));
  EXPECT_TRUE(near(g[2], without_norm));

  std::vector<Tensor> list{p[0], normal({50})}, dp{g[0]};
  const Tensor buffer = 0.9 * f64(list[1]) - f64(dp[0]), moved = f64(p[0]) + buffer;
  call("optimizer_resource_apply_momentum", {list, dp, 0.9});
  EXPECT_TRUE(near(list[1], buffer));
  EXPECT_TRUE(near(p[0], moved));
}

TEST(OptimOps, SgdWithAndWithoutMomentum) {
  torch::manual_seed(6);
  std::vector<Tensor> g{normal({30})}, w{normal({30})}, b{normal({30})};
  Tensor d = f64(g[0]) + 0.2 * f64(w[0]), expected = f64(w[0]) - 0.1 * d;
  call("optimizer_sgd", {g, w, scalar(0.1), 0.2, 0.0, 0.0, false});
  EXPECT_TRUE(near(w[0], expected));
  EXPECT_REFUSED(call("optimizer_sgd", {g, w, scalar(0.1), 0.2, 0.5, 0.0, false}), "mom 0", "0.5");
  for (const int epoch : {0, 1}) {
    d = f64(g[0]) + 0.2 * f64(w[0]);
    const Tensor buffer = epoch == 0 ? d : 0.9 * f64(b[0]) + 0.5 * d;
    expected = f64(w[0]) - 0.1 * (d + 0.9 * buffer);
    call("optimizer_sgd_momentum",
         {g, w, b, torch::full({1}, epoch, test::on_hpu(at::kInt)), scalar(0.1), scalar(0.9), 0.2, 0.5, true});
    EXPECT_TRUE(near(b[0], buffer)) << epoch;
    EXPECT_TRUE(near(w[0], expected)) << epoch;
  }
}

// ---- the names of the bridge's lazy mode

TEST(OptimOps, LazyNamesHaveTheVendorsSchemas) { test::expect_schemas("optimizers of lazy mode", 6); }

TEST(OptimOps, LazyNamesDoWhatTheOthersDo) {
  const std::vector<Tensor> start{normal({4, 3}), normal({5})}, g{normal({4, 3}), normal({5})},
      m{normal({4, 3}), normal({5})};
  const auto copies = [](const std::vector<Tensor>& list) {
    return collected(list, [](const Tensor& t) { return t.clone(); });
  };
  const auto same = [](const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(test::same_bits(a[i], b[i])) << i;
  };
  auto a = copies(start), b = copies(start), am = copies(m), bm = copies(m);
  call("optimizer_ema", {g, a, scalar(0.9)});
  call("habanaOptimizerFusedEMA", {g, b, scalar(0.9)});
  same(a, b);
  call("optimizer_sgd", {g, a, scalar(0.1), 0.01, 0.0, 0.0, false});
  call("habanaOptimizerSgd", {g, b, scalar(0.1), 0.01, 0.0, 0.0, false});
  same(a, b);
  call("optimizer_sgd_momentum", {g, a, am, scalar(1), scalar(0.1), scalar(0.9), 0.01, 0.0, true});
  call("habanaOptimizerSgdMomentum", {g, b, bm, scalar(1), scalar(0.1), scalar(0.9), 0.01, 0.0, true});
  same(a, b), same(am, bm);
  const at::List<std::int64_t> masks({1, 0});
  auto ag = copies(g), bg = copies(g);
  call("optimizer_lars", {a, ag, masks, 0.001, 0.1, 1e-8, scalar(0.3)});
  call("habanaOptimizerLars", {b, bg, scalar(0.3), masks, 0.001, 0.1, 1e-8});
  same(ag, bg);
  auto av = copies(m), bv = copies(m);
  for (auto* list : {&av, &bv})
    for (Tensor& t : *list) t.square_();
  call("optimizer_adamw",
       {g, a, am, av, scalar(-0.01), 0.9, 0.99, 1e-6, scalar(0.95), true, c10::IValue(), c10::IValue()});
  call("habanaOptimizerAdamW", {g, b, bm, bv, scalar(-0.01), 0.9, 0.99, 1e-6, scalar(0.95), true});
  same(a, b), same(am, bm), same(av, bv);
}

TEST(OptimOps, FusedAdagradIsTorchsAdagrad) {
  torch::manual_seed(8);
  std::vector<Tensor> w{normal({4, 3}), normal({5})}, sums;
  std::vector<Tensor> reference;
  for (const Tensor& t : w) {
    sums.push_back(torch::zeros_like(t));
    reference.push_back(f64(t).requires_grad_(true));
  }
  torch::optim::Adagrad torchs(reference,
                               torch::optim::AdagradOptions(0.1).lr_decay(0.2).weight_decay(0.05).eps(1e-10));
  for (int step = 1; step <= 3; ++step) {
    std::vector<Tensor> g{normal({4, 3}), normal({5})};
    for (std::size_t i = 0; i < g.size(); ++i) reference[i].mutable_grad() = f64(g[i]);
    torchs.step();
    call("habanaOptimizerFusedAdagrad", {g, w, sums, scalar(step), scalar(0.1), 0.05, 0.2, 1e-10});
    for (std::size_t i = 0; i < w.size(); ++i) EXPECT_TRUE(near(w[i], reference[i].detach())) << step;
  }
  EXPECT_REFUSED(call("habanaOptimizerFusedAdagrad",
                      {std::vector<Tensor>{w[0], w[0]}, w, sums, scalar(1), scalar(0.1), 0.0, 0.0, 0.0}),
                 "habanaOptimizerFusedAdagrad", "tensor 1", "[5]");
}

TEST(OptimOps, FusedNormClipsWithoutAPlaceForTheNorm) {
  torch::manual_seed(9);
  const std::vector<Tensor> g{normal({4, 3}, 5), normal({5}, 5)};
  const Tensor a = f64(g[0]), b = f64(g[1]), norm = (a.square().sum() + b.square().sum()).sqrt();
  const Tensor total = call("fused_norm", {g, scalar(1), 2.0})[0].toTensor();
  EXPECT_TRUE(near(total, norm.reshape({1})));
  EXPECT_TRUE(near(g[0], a / (norm + 1e-6)));
  EXPECT_TRUE(near(g[1], b / (norm + 1e-6)));
  EXPECT_REFUSED(call("fused_norm", {std::vector<Tensor>{}, scalar(1), 2.0}), "fused_norm", "none");
}

TEST(OptimOps, SparseOnesAreRefusedByName) {
  const Tensor t = normal({4, 3});
  for (const char* name : {"habanaOptimizerSparseSgd", "habanaOptimizerSparseAdagrad"})
    EXPECT_REFUSED(call(name, {t, t, t, t, t, t}), name, "not built", "dense");
}

TEST(OptimOps, MemoryThatIsWrittenTwiceIsAnErrorBeforeAnythingIsWritten) {
  const Tensor line = normal({10}), one = torch::zeros({1}, test::on_hpu());
  std::vector<Tensor> g{normal({6}), normal({6})}, overlap{line.slice(0, 0, 6), line.slice(0, 4, 10)};
  const Tensor before = line.clone();
  EXPECT_REFUSED(call("optimizer_sgd", {g, overlap, scalar(0.1), 0.0, 0.0, 0.0, false}), "two with the same");
  EXPECT_TRUE(test::same_bits(line, before));

  std::vector<Tensor> first{g[0]}, spread{one.expand({6})}, buffer{normal({6})};
  const Tensor kept = buffer[0].clone();
  EXPECT_REFUSED(call("optimizer_sgd_momentum", {first, spread, buffer, torch::full({1}, 1, test::on_hpu(at::kInt)),
                                                 scalar(0.1), scalar(0.9), 0.0, 0.0, false}),
                 "weight[0] to have memory for each element");
  EXPECT_TRUE(test::same_bits(buffer[0], kept));

  const Tensor base = normal({4, 2});  // two columns share a range, and no element
  std::vector<Tensor> columns{base.select(1, 0), base.select(1, 1)},
      ones{torch::ones({4}, test::on_hpu()), torch::ones({4}, test::on_hpu())};
  const Tensor expected = f64(base) - 0.5;
  call("optimizer_sgd", {ones, columns, scalar(0.5), 0.0, 0.0, 0.0, false});
  EXPECT_TRUE(near(base, expected));
}

TEST(OptimOps, BadListsAreErrorsAndEmptyOnesWork) {
  std::vector<Tensor> one{normal({3})}, other{normal({4})}, none, same{one[0], one[0]}, two{normal({3}), normal({3})};
  call("optimizer_ema", {none, none, scalar(0.5)});
  EXPECT_REFUSED(call("optimizer_ema", {none, one, scalar(0.5)}), "[optimizer_ema]",
                 "1 tensors in model_inputs, got 0");
  EXPECT_REFUSED(call("optimizer_ema", {one, other, scalar(0.5)}), "input[0] of sizes [4], got [3]");
  EXPECT_REFUSED(call("optimizer_ema", {two, same, scalar(0.5)}), "two with the same");
  EXPECT_REFUSED(call("optimizer_ema", {one, one, normal({2})}), "decay of one element");
  std::vector<Tensor> wide{normal({3}).to(at::kDouble)};
  EXPECT_REFUSED(call("optimizer_ema", {one, wide, scalar(1)}),
                 "result[0] of dtype Float, BFloat16 or Half, got Double");
  EXPECT_REFUSED(c10::Dispatcher::singleton()
                     .findSchemaOrThrow("hpu::optimizer_lamb_fused_norm", "")
                     .typed<Tensor(at::TensorList, double)>()
                     .redispatch(c10::DispatchKeySet(c10::DispatchKey::HPU), at::TensorList(), 1.0),
                 "at least one tensor");
}

}  // namespace
}  // namespace fp8::runtime
