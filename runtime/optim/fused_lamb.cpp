// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/fused_lamb.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "fp8/runtime/ops/optim/optim.h"

namespace fp8::runtime::optim {

void FusedLambOptions::check(const char* optimizer) const {
  check_lr(optimizer, lr());
  check_betas(optimizer, betas());
  check_eps(optimizer, eps());
  check_weight_decay(optimizer, weight_decay());
  check_option(max_grad_norm() >= 0 && std::isfinite(max_grad_norm()), optimizer, "max_grad_norm", max_grad_norm(),
               "0 (no clipping) or more");
}

FusedLamb::FusedLamb(std::vector<at::Tensor> parameters, FusedLambOptions defaults)
    : FusedLamb({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

FusedLamb::FusedLamb(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedLambOptions defaults)
    : FusedOptimizer("FusedLamb", groups, std::make_unique<FusedLambOptions>(std::move(defaults))) {
  for (const auto& group : groups) add_param_group(group);
}

void FusedLamb::check_group(const FusedOptions& options, const std::vector<at::Tensor>&) const {
  TORCH_CHECK(dynamic_cast<const FusedLambOptions*>(&options) != nullptr,
              "FusedLamb: the options of a group are another optimizer's, allowed are FusedLambOptions");
}

void FusedLamb::update(const std::vector<Participant>& participants) {
  double most = 0;
  std::vector<at::Tensor> grads;
  for (const Participant& p : participants) {
    const double limit = static_cast<const FusedLambOptions&>(*p.options).max_grad_norm();
    if (limit > 0) most = most > 0 ? std::min(most, limit) : limit;
    grads.push_back(p.grad);
  }
  double clip = 1;
  if (most > 0) {
    const double norm = ops::norm_of(ops::norms(name(), grads));
    if (norm > most) clip = norm / most;
  }
  std::vector<ops::LambItem> items;
  items.reserve(participants.size());
  for (const Participant& p : participants) {
    const auto& o = static_cast<const FusedLambOptions&>(*p.options);
    const auto [beta1, beta2] = o.betas();
    const auto t = static_cast<double>(p.state->step);
    at::Tensor &m = p.state->tensors["exp_avg"], &v = p.state->tensors["exp_avg_sq"];
    if (!m.defined()) m = at::zeros_like(p.weight, p.weight.options().dtype(at::kFloat));
    if (!v.defined()) v = at::zeros_like(p.weight, p.weight.options().dtype(at::kFloat));
    kernels::LambTensor f;
    f.clip = static_cast<float>(clip);
    f.beta1 = static_cast<float>(beta1);
    f.beta3 = o.grad_averaging() ? static_cast<float>(1 - beta1) : 1.0f;
    f.beta2 = static_cast<float>(beta2);
    f.rest2 = static_cast<float>(1 - beta2);
    f.eps = static_cast<float>(o.eps());
    f.correction1 = static_cast<float>(o.bias_correction() ? 1 - std::pow(beta1, t) : 1);
    f.correction2 = static_cast<float>(o.bias_correction() ? 1 - std::pow(beta2, t) : 1);
    f.weight_decay = static_cast<float>(o.weight_decay());
    items.push_back({p.grad, p.weight, m, v, at::empty_like(p.weight, p.weight.options().dtype(at::kFloat)), f});
  }
  const auto norms = ops::lamb_direction(name(), items);
  std::vector<ops::ScaleAddItem> steps;
  steps.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& o = static_cast<const FusedLambOptions&>(*participants[i].options);
    const double trust = ops::lamb_trust(norms[i].weight, norms[i].step, o.weight_decay() != 0 || o.use_lamb());
    steps.push_back({items[i].weight, items[i].step, 1, static_cast<float>(-o.lr() * trust)});
  }
  ops::scale_add(name(), steps);
}

}  // namespace fp8::runtime::optim
