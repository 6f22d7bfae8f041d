// SPDX-License-Identifier: Apache-2.0
// SGD with momentum, and LARS, which gives each tensor a learning rate of its own.
//
//   FusedSGD    d = g + wd w;  buf = momentum buf + (1 - dampening) d  (first step: buf = d);
//               d = nesterov ? d + momentum buf : buf;  w = w - lr d                            torch.optim.SGD's
//   FusedLars   trust = eeta |w| / (|g| + wd |w| + eps)   (1 where a norm is 0)                 the device's
//               buf = momentum buf - lr trust (g + wd w);  w = w + buf                          optimizer_lars and
//               with skip: buf = momentum buf - lr g                                            resource_apply_momentum
// The gradients are not changed (the device's optimizer_lars writes into them).
#pragma once
#include "fp8/runtime/optim/fused_optimizer.h"

namespace fp8::runtime::optim {

struct FusedSGDOptions : public FusedOptionsOf<FusedSGDOptions> {
  static constexpr char kOptimizer[] = "FusedSGD";
  FusedSGDOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, momentum) = 0;
  TORCH_ARG(double, dampening) = 0;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, nesterov) = false;  ///< needs momentum > 0 and dampening 0

 public:
  void check(const char* optimizer) const override;
  static auto options(auto& o) {
    return std::tuple(named("lr", o.lr()), named("momentum", o.momentum()), named("dampening", o.dampening()),
                      named("weight_decay", o.weight_decay()), named("nesterov", o.nesterov()));
  }
};

using FusedSGD = FusedOptimizerOf<FusedSGDOptions>;
template <>
void FusedSGD::update(const std::vector<Participant>& participants);

struct FusedLarsOptions : public FusedOptionsOf<FusedLarsOptions> {
  static constexpr char kOptimizer[] = "FusedLars";
  FusedLarsOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, momentum) = 0.9;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(double, eeta) = 1e-3;  ///< trust coefficient
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(bool, skip) = false;  ///< for groups of biases and norms: plain learning rate, no decay

 public:
  void check(const char* optimizer) const override;
  static auto options(auto& o) {
    return std::tuple(named("lr", o.lr()), named("momentum", o.momentum()), named("weight_decay", o.weight_decay()),
                      named("eeta", o.eeta()), named("eps", o.eps()), named("skip", o.skip()));
  }
};

using FusedLars = FusedOptimizerOf<FusedLarsOptions>;
template <>
void FusedLars::update(const std::vector<Participant>& participants);

}  // namespace fp8::runtime::optim
