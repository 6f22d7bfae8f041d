// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/fused_sgd.h"

#include "optim_test.h"

namespace fp8::runtime::optim {
namespace {

using test::parameters;
using test::set_grads;

TEST(FusedSGD, IsTorchs) {
  const std::vector<FusedSGDOptions> kOptions = {FusedSGDOptions(0.1), FusedSGDOptions(0.1).weight_decay(0.3),
                                                 FusedSGDOptions(0.1).momentum(0.9),
                                                 FusedSGDOptions(0.1).momentum(0.9).dampening(0.5).weight_decay(0.1),
                                                 FusedSGDOptions(0.1).momentum(0.8).nesterov(true)};
  for (const auto& o : kOptions) {
    const auto ours = parameters(test::kHpu), theirs = parameters(at::kCPU);
    FusedSGD a(ours, o);
    torch::optim::SGD b(theirs, torch::optim::SGDOptions(o.lr())
                                    .momentum(o.momentum())
                                    .dampening(o.dampening())
                                    .weight_decay(o.weight_decay())
                                    .nesterov(o.nesterov()));
    for (int step = 0; step < 10; ++step) {
      set_grads(ours, step), set_grads(theirs, step);
      a.step(), b.step();
    }
    for (std::size_t i = 0; i < ours.size(); ++i)
      EXPECT_TRUE(torch::allclose(ours[i].detach().cpu(), theirs[i], 1e-5, 1e-5)) << i;
  }
}

TEST(FusedSGD, BadOptionsNameThemselves) {
  const auto p = parameters(at::kCPU);
  EXPECT_TRUE(test::throws_with({"FusedSGD: momentum is -1", "0 or more"},
                                [&] { FusedSGD(p, FusedSGDOptions().momentum(-1)); }));
  EXPECT_TRUE(test::throws_with({"nesterov", "momentum 0"}, [&] { FusedSGD(p, FusedSGDOptions().nesterov(true)); }));
  EXPECT_TRUE(
      test::throws_with({"FusedLars: eeta is 0", "above 0"}, [&] { FusedLars(p, FusedLarsOptions().eeta(0)); }));
  EXPECT_TRUE(test::throws_with({"eps is -1"}, [&] { FusedLars(p, FusedLarsOptions().eps(-1)); }));
}

TEST(FusedLars, IsItsFormulaInF64) {
  const auto params = parameters(test::kHpu);
  const FusedLarsOptions o = FusedLarsOptions(0.5).momentum(0.9).weight_decay(0.1).eeta(0.01).eps(1e-6);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{params[1], params[2]});
  groups.emplace_back(std::vector<at::Tensor>{params[0]}, FusedLarsOptions(o).skip(true).clone());
  FusedLars optimizer(groups, o);
  std::map<int, at::Tensor> w, buffer;
  for (const int i : {0, 1, 2}) w[i] = params[i].detach().cpu().to(at::kDouble), buffer[i] = torch::zeros_like(w[i]);
  for (int step = 0; step < 4; ++step) {
    set_grads(params, step);
    if (step == 2) params[2].mutable_grad().zero_();  // norm 0: trust 1
    optimizer.step();
    for (const int i : {0, 1, 2}) {
      const at::Tensor g = params[i].grad().cpu().to(at::kDouble);
      const double wn = w[i].norm().item<double>(), gn = g.norm().item<double>();
      const double trust = i == 0 || gn == 0 ? 1 : 0.01 * wn / (gn + 0.1 * wn + 1e-6);
      buffer[i] = 0.9 * buffer[i] - 0.5 * trust * (i == 0 ? g : g + 0.1 * w[i]);
      w[i] = w[i] + buffer[i];
      EXPECT_TRUE(torch::allclose(params[i].detach().cpu().to(at::kDouble), w[i], 1e-5, 1e-6)) << i << " " << step;
    }
  }
}

}  // namespace
}  // namespace fp8::runtime::optim
