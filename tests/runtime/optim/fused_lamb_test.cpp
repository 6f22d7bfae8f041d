// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/fused_adam.h"
#include "optim_test.h"

namespace fp8::runtime::optim {
namespace {

using test::parameters;
using test::set_grads;

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
      w.push_back(p.detach().cpu().to(at::kDouble));
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
        EXPECT_TRUE(torch::allclose(params[i].detach().cpu().to(at::kDouble), w[i], 1e-5, 1e-5)) << i << " " << step;
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
  EXPECT_TRUE(test::throws_with({"FusedLamb: max_grad_norm is -1", "or more"},
                                [&] { FusedLamb(p, FusedLambOptions().max_grad_norm(-1)); }));
  EXPECT_TRUE(test::throws_with({"betas[0] is 2"}, [&] { FusedLamb(p, FusedLambOptions().betas({2, 0})); }));
}

}  // namespace
}  // namespace fp8::runtime::optim
