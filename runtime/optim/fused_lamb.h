// SPDX-License-Identifier: Apache-2.0
// LAMB: Adam's direction, as long for every tensor as its trust ratio says.
//
//   clip  = max_grad_norm > 0 and |all g| > max_grad_norm ? |all g| / max_grad_norm : 1      over all groups together
//   m = b1 m + b3 g / clip       b3 = grad_averaging ? 1 - b1 : 1           v = b2 v + (1 - b2) (g / clip)^2
//   s = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + wd w
//   w = w - lr trust s           trust = |w| / |s| where both are above 0 and (wd != 0 or use_lamb), else 1
#pragma once
#include "fp8/runtime/optim/fused_optimizer.h"

namespace fp8::runtime::optim {

struct FusedLambOptions : public FusedOptionsOf<FusedLambOptions> {
  FusedLambOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0.01;
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(bool, grad_averaging) = true;
  TORCH_ARG(double, max_grad_norm) = 1;  ///< 0: no clipping. The smallest of all groups counts.
  TORCH_ARG(bool, use_lamb) = false;

 public:
  void check(const char* optimizer) const override;
  template <class Self, class F>
  static void each(Self& self, F&& f) {
    f("lr", self.lr());
    f("betas", self.betas());
    f("eps", self.eps());
    f("weight_decay", self.weight_decay());
    f("bias_correction", self.bias_correction());
    f("grad_averaging", self.grad_averaging());
    f("max_grad_norm", self.max_grad_norm());
    f("use_lamb", self.use_lamb());
  }
};

class FusedLamb : public FusedOptimizer {
 public:
  explicit FusedLamb(std::vector<at::Tensor> parameters, FusedLambOptions defaults = {});
  explicit FusedLamb(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedLambOptions defaults = {});

 protected:
  void update(const std::vector<Participant>& participants) override;
  void check_group(const FusedOptions& options, const std::vector<at::Tensor>& parameters) const override;
};

}  // namespace fp8::runtime::optim
