// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/optimizers.h"
#include "runtime/optim/optim_test.h"
#include "support/enum_names.h"

namespace fp8::runtime::optim {
namespace {

using test::parameters;
using test::set_grads;

TEST(FusedAdamW, WithTorchsEpsIsTorchs) {
  for (const at::Device device : {at::Device(at::kCPU), test::kHpu})
    for (const double weight_decay : {0.0, 0.1}) {
      const auto ours = parameters(device), theirs = parameters(at::kCPU);
      FusedAdamW a(
          ours,
          FusedAdamWOptions(1e-2).betas({0.8, 0.95}).eps(1e-8).weight_decay(weight_decay).eps_mode(EpsMode::torch));
      torch::optim::AdamW b(theirs,
                            torch::optim::AdamWOptions(1e-2).betas({0.8, 0.95}).eps(1e-8).weight_decay(weight_decay));
      for (int step = 0; step < 20; ++step) {
        for (const auto& params : {ours, theirs}) set_grads(params, step, step % 3 == 0 ? 1e-6 : 1);
        a.step(), b.step();
      }
      test::expect_close(ours, theirs, 2e-5, 2e-5);
    }
}

TEST(FusedAdamW, WithHabanasEpsIsTheDevices) {
  const std::pair<double, double> kWorked[] = {{1e-3, 9.6935e-4}, {1e-5, 2.4025e-4}};
  const std::pair<double, double> kTorch[] = {{1e-3, 9.9900e-4}, {1e-5, 9.0909e-4}};
  for (const bool torch_mode : {false, true})
    for (int i = 0; i < 2; ++i) {
      const auto [gradient, update] = torch_mode ? kTorch[i] : kWorked[i];
      const at::Tensor p = torch::zeros({1}, test::on_hpu()).requires_grad_();
      p.mutable_grad() = torch::full({1}, gradient, test::on_hpu());
      FusedAdamW optimizer({p}, FusedAdamWOptions().eps_mode(torch_mode ? EpsMode::torch : EpsMode::habana));
      optimizer.step();
      EXPECT_NEAR(p.item<double>(), -update, 5e-9) << gradient;
    }
}

/// Several steps in f64, with gradients small enough that eps matters.
TEST(FusedAdamW, IsTheDevicesFormulaInF64) {
  for (const bool corrected : {true, false})
    for (const double eps : {1e-6, 0.0}) {
      const auto params = parameters(test::kHpu);
      FusedAdamW optimizer(
          params, FusedAdamWOptions(1e-2).betas({0.8, 0.95}).eps(eps).weight_decay(0.3).bias_correction(corrected));
      at::Tensor w = test::f64(params[1]), m = torch::zeros_like(w), v = torch::zeros_like(w);
      for (int t = 1; t <= 6; ++t) {
        set_grads(params, t, 1e-5);
        const at::Tensor g = params[1].grad().cpu().to(at::kDouble);
        m = 0.8 * m + 0.2 * g;
        v = 0.95 * v + 0.05 * g * g;
        const double c1 = corrected ? 1 - std::pow(0.8, t) : 1, c2 = corrected ? 1 - std::pow(0.95, t) : 1;
        w = w * (1 - 1e-2 * 0.3) - 1e-2 * std::sqrt(c2) / c1 * m / (v.sqrt() + eps);
        optimizer.step();
        EXPECT_TRUE(torch::allclose(test::f64(params[1]), w, 2e-5, 2e-6)) << t << " " << eps;
      }
    }
}

TEST(FusedAdamW, F16ParametersFollowTorchs) {
  const auto ours = parameters(test::kHpu, at::kHalf), exact = parameters(at::kCPU, at::kDouble);
  test::copy_values(ours, exact);
  FusedAdamW a(ours, FusedAdamWOptions(1e-2).eps(1e-8).weight_decay(0.1).eps_mode(EpsMode::torch));
  torch::optim::AdamW b(exact, torch::optim::AdamWOptions(1e-2).eps(1e-8).weight_decay(0.1));
  for (int step = 0; step < 5; ++step) {
    set_grads(ours, step);
    for (std::size_t i = 0; i < ours.size(); ++i) exact[i].mutable_grad() = ours[i].grad().cpu().to(at::kDouble);
    a.step(), b.step();
  }
  for (const at::Tensor& p : ours) EXPECT_EQ(p.scalar_type(), at::kHalf);
  test::expect_close(ours, exact, 3e-3, 1e-3);
}

/// Largest absolute and relative error that a moment type may cause, as the device's tests have them.
struct Tolerance {
  MomentTypes types;
  double relative, absolute;
};

TEST(FusedAdamW, SmallMomentsStayWithinTheDevicesTolerances) {
  const Tolerance kTypes[] = {{at::kBFloat16, 1.6e-2, 1e-3},
                              {{at::kFloat8_e4m3fn, at::kFloat8_e5m2}, 5e-2, 1e-1},
                              {at::kFloat8_e5m2, 5e-2, 1e-1},
                              {{at::kBFloat16, at::kFloat8_e4m3fn}, 5e-2, 1e-1}};
  for (const Tolerance& t : kTypes) {
    const auto small = parameters(test::kHpu), full = parameters(test::kHpu);
    FusedAdamW a(small, FusedAdamWOptions(1e-3).moments_dtype(t.types)), b(full, FusedAdamWOptions(1e-3));
    test::run_both(small, a, full, b, 0, 5);
    for (std::size_t i = 0; i < small.size(); ++i) {
      const auto& state = static_cast<const FusedState&>(*a.state().at(small[i].unsafeGetTensorImpl())).tensors;
      EXPECT_EQ(state.at("exp_avg").scalar_type(), t.types.exp_avg);
      EXPECT_EQ(state.at("exp_avg_sq").scalar_type(), t.types.exp_avg_sq);
      EXPECT_FALSE(torch::equal(small[i].detach().cpu(), full[i].detach().cpu())) << i;  // they were really rounded
    }
    test::expect_close(small, full, t.relative, t.absolute);
  }
}

TEST(FusedAdamW, Bf16ParametersFollowF32OnesWithinTheirRounding) {
  const auto low = parameters(test::kHpu, at::kBFloat16), high = parameters(at::kCPU);
  test::copy_values(low, high);
  FusedAdamW a(low, FusedAdamWOptions(1e-2)), b(high, FusedAdamWOptions(1e-2));
  test::run_both(low, a, high, b, 0, 3);
  for (const at::Tensor& p : low) EXPECT_EQ(p.scalar_type(), at::kBFloat16);
  test::expect_close(low, high, 4e-2, 2e-3);
}

TEST(FusedAdamW, BitsDependNotOnThreadsAndSeedsChooseTheRounding) {
  const auto run = [](int threads, std::int64_t seed) {
    const test::Threads set(threads);
    const auto params = parameters(at::kCPU);
    FusedAdamW optimizer(params,
                         FusedAdamWOptions(1e-2).moments_dtype({at::kFloat8_e4m3fn, at::kFloat8_e5m2}).seed(seed));
    test::run_steps(params, optimizer, 0, 4);
    return test::values(params)[3];
  };
  EXPECT_TRUE(test::same_bits(run(1, 0), run(2, 0)));
  EXPECT_FALSE(torch::equal(run(1, 0), run(1, 1)));
}

TEST(FusedAdamW, GroupsHaveOptionsOfTheirOwn) {
  const auto ours = parameters(at::kCPU), theirs = parameters(at::kCPU);
  FusedAdamWOptions decayed = FusedAdamWOptions(1e-2).weight_decay(0.5).eps_mode(EpsMode::torch).eps(1e-8);
  FusedAdamWOptions plain = FusedAdamWOptions(decayed).weight_decay(0).lr(3e-2).betas({0.5, 0.5});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{ours[0], ours[1]});
  groups.emplace_back(std::vector<at::Tensor>{ours[2]}, plain.clone());
  groups.emplace_back(std::vector<at::Tensor>{});
  FusedAdamW a(groups, decayed);
  torch::optim::AdamW b({theirs[0], theirs[1]}, torch::optim::AdamWOptions(1e-2).weight_decay(0.5)),
      c({theirs[2]}, torch::optim::AdamWOptions(3e-2).weight_decay(0).betas({0.5, 0.5}));
  for (int step = 0; step < 5; ++step) {
    set_grads(ours, step), set_grads(theirs, step);
    a.step(), b.step(), c.step();
  }
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::allclose(ours[i], theirs[i], 2e-5, 2e-6)) << i;
}

TEST(FusedAdamW, StridedParametersAndGradientsAreUpdatedInPlace) {
  const at::Tensor base = torch::randn({8, 6}), holder = torch::randn({8, 12});
  const at::Tensor turned = base.clone().t().requires_grad_(),
                   every = holder.clone().slice(1, 0, 12, 2).detach().requires_grad_(),
                   plain = base.clone().t().contiguous().requires_grad_(),
                   dense = every.detach().contiguous().requires_grad_();
  const at::Tensor g = torch::randn({6, 8}), h = torch::randn({8, 6});
  turned.mutable_grad() = g.clone();
  plain.mutable_grad() = g.clone();
  every.mutable_grad() = h.t().clone().t();
  dense.mutable_grad() = h.clone();
  FusedAdamW({turned, every}, FusedAdamWOptions(0.1)).step();
  FusedAdamW({plain, dense}, FusedAdamWOptions(0.1)).step();
  EXPECT_TRUE(test::same_bits(turned, plain));
  EXPECT_TRUE(test::same_bits(every, dense));
}

TEST(FusedAdamW, CountsVersionsUpSoThatAutogradNotices) {
  const at::Tensor w = torch::randn({4}).requires_grad_();
  const at::Tensor y = (w * w).sum();
  w.mutable_grad() = torch::ones({4});
  FusedAdamW({w}).step();
  EXPECT_REFUSED(y.backward(), "modified by an inplace operation");
}

/// A parameter held in fp8 with one scale, with or without a copy in high precision.
class HeldCodes final : public OpHandler, public QuantizedParameter {
 public:
  HeldCodes(at::Tensor parameter, at::Tensor master, double scale)
      : parameter_(parameter), master_(master), scale_(scale) {}
  at::Tensor values() override {
    return master_.defined()
               ? master_
               : (parameter_.detach().view(at::kByte).cpu().view(at::kFloat8_e4m3fn).to(at::kFloat) / scale_)
                     .to(parameter_.device());
  }
  void assign(const at::Tensor& values) override {
    const at::Tensor codes = (values.cpu() * scale_).to(at::kFloat8_e4m3fn).to(parameter_.device());
    parameter_.detach().view(at::kByte).copy_(codes.view(at::kByte));  // bytes: the handler knows their scale
  }
  at::Tensor linear(const LinearCall& call) override { return call.original(); }
  at::Tensor convolution(const ConvolutionCall& call) override { return call.original(); }
  at::Tensor dequantize(const WeightTag&, const WeightView&, const at::Tensor& weight) override { return weight; }
  bool owns_values() const override { return true; }
  QuantizedParameter* quantized_parameter() override { return this; }
  std::string describe() const override { return "held"; }

 private:
  at::Tensor parameter_, master_;
  double scale_;
};

TEST(FusedAdamW, ParametersHeldInFp8Learn) {
  for (const bool keep : {true, false}) {
    const double scale = 64;
    const at::Tensor start = (torch::randn({16, 16}) * scale).to(at::kFloat8_e4m3fn);
    const at::Tensor p = start.to(test::kHpu),
                     master = keep ? (start.to(at::kFloat) / scale).to(test::kHpu) : at::Tensor();
    p.requires_grad_();
    tag_weight(p, "held", std::make_shared<HeldCodes>(p, master, scale));
    at::Tensor mirror = (start.to(at::kFloat) / scale).requires_grad_();
    const at::Tensor g = torch::randn({16, 16});
    p.unsafeGetTensorImpl();
    p.set_grad_dtype(at::kFloat);
    p.mutable_grad() = g.to(test::kHpu);
    mirror.mutable_grad() = g.clone();
    FusedAdamW a({p}, FusedAdamWOptions(0.05)), b({mirror}, FusedAdamWOptions(0.05));
    for (int step = 0; step < 3; ++step) {
      a.step(), b.step();
      if (!keep) {
        const at::NoGradGuard guard;
        mirror.copy_((mirror * scale).to(at::kFloat8_e4m3fn).to(at::kFloat) / scale);
      }
    }
    EXPECT_TRUE(test::same_bits(p.detach().cpu(), (mirror.detach() * scale).to(at::kFloat8_e4m3fn))) << keep;
    EXPECT_FALSE(test::same_bits(p.detach().cpu(), start));
  }
}

TEST(FusedAdamW, ModesAreReadByTheirNames) {
  test::check_names<EpsMode>();
  FusedAdamWOptions options;
  EXPECT_TRUE(options.set("eps_mode", to_value(EpsMode::torch)));
  EXPECT_EQ(options.eps_mode(), EpsMode::torch);
  EXPECT_REFUSED(options.set("eps_mode", c10::IValue("nvidia")),
                 "FusedAdamW: eps_mode is \"nvidia\", allowed are habana and torch");
}

TEST(FusedAdamW, BadOptionsNameThemselves) {
  const auto p = parameters(at::kCPU);
  const std::pair<FusedAdamWOptions, std::vector<std::string>> kBad[] = {
      {FusedAdamWOptions(-1), {"FusedAdamW: lr is -1", "0 or more"}},
      {FusedAdamWOptions(std::nan("")), {"lr is nan"}},
      {FusedAdamWOptions().betas({1, 0.9}), {"betas[0] is 1", "0 to below 1"}},
      {FusedAdamWOptions().betas({0.9, -0.1}), {"betas[1] is -0.1"}},
      {FusedAdamWOptions().eps(-1e-8), {"eps is -1e-08", "0 or more"}},
      {FusedAdamWOptions().eps(std::nan("")), {"eps is nan"}},
      {FusedAdamWOptions().weight_decay(-1), {"weight_decay is -1", "0 or more"}},
      {FusedAdamWOptions().moments_dtype(at::kHalf), {"moments_dtype is Half", "BFloat16"}},
  };
  for (const auto& [options, words] : kBad) EXPECT_TRUE(test::throws_with(words, [&] { FusedAdamW(p, options); }));
}

TEST(FusedLamb, IsItsFormulaInF64) {
  const std::vector<FusedLambOptions> kOptions = {
      FusedLambOptions(0.01), FusedLambOptions(0.01).weight_decay(0).max_grad_norm(0),
      FusedLambOptions(0.01).weight_decay(0).use_lamb(true).grad_averaging(false).bias_correction(false),
      FusedLambOptions(0.01).max_grad_norm(1e6).betas({0.5, 0.7})};
  for (const auto& o : kOptions) {
    const auto params = parameters(test::kHpu);
    FusedLamb optimizer(params, o);
    const auto [b1, b2] = o.betas();
    std::vector<at::Tensor> w, m, v;
    for (const auto& p : params) {
      w.push_back(test::f64(p));
      m.push_back(torch::zeros_like(w.back()));
      v.push_back(torch::zeros_like(w.back()));
    }
    for (int step = 1; step <= 4; ++step) {
      set_grads(params, step);
      optimizer.step();
      double norm = 0;
      for (const auto& p : params) norm += p.grad().cpu().to(at::kDouble).square().sum().item<double>();
      norm = std::sqrt(norm);
      const double clip = o.max_grad_norm() > 0 && norm > o.max_grad_norm() ? norm / o.max_grad_norm() : 1;
      for (std::size_t i = 0; i < params.size(); ++i) {
        const at::Tensor g = params[i].grad().cpu().to(at::kDouble) / clip;
        m[i] = b1 * m[i] + (o.grad_averaging() ? 1 - b1 : 1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        const double c1 = o.bias_correction() ? 1 - std::pow(b1, step) : 1,
                     c2 = o.bias_correction() ? 1 - std::pow(b2, step) : 1;
        const at::Tensor s = m[i] / c1 / ((v[i] / c2).sqrt() + o.eps()) + o.weight_decay() * w[i];
        const double trust =
            o.weight_decay() != 0 || o.use_lamb() ? w[i].norm().item<double>() / s.norm().item<double>() : 1;
        w[i] = w[i] - o.lr() * trust * s;
        EXPECT_TRUE(torch::allclose(test::f64(params[i]), w[i], 1e-5, 1e-5)) << i << " " << step;
      }
    }
  }
}

TEST(FusedLamb, AZeroParameterMovesWithTrustOne) {
  const at::Tensor w = torch::zeros({3}).requires_grad_();
  w.mutable_grad() = torch::full({3}, 0.1);
  FusedLamb({w}, FusedLambOptions(0.01)).step();
  EXPECT_TRUE(torch::allclose(w.detach(), torch::full({3}, -0.01), 1e-4));
}

TEST(FusedLamb, BadOptionsNameThemselves) {
  const auto p = parameters(at::kCPU);
  EXPECT_REFUSED(FusedLamb(p, FusedLambOptions().max_grad_norm(-1)), "FusedLamb: max_grad_norm is -1", "or more");
  EXPECT_REFUSED(FusedLamb(p, FusedLambOptions().betas({2, 0})), "betas[0] is 2");
}

}  // namespace
}  // namespace fp8::runtime::optim
