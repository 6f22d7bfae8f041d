// SPDX-License-Identifier: Apache-2.0
// fp8::adamw_step, sgd_step and lamb_step: the steps of register_optim.cpp by the options of a group of torch.optim's,
// and by the number of the step, from 1. Optimizers in Python call them (tools/python/fp8/optim.py).
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <cmath>

#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/ops/optim/optim.h"

namespace fp8::runtime::ops {
namespace {

using at::Tensor;
using at::TensorList;

void check_lengths(const char* op, std::size_t length,
                   std::initializer_list<std::pair<const char*, std::size_t>> lists) {
  for (const auto& [what, found] : lists)
    TORCH_CHECK(found == length, "[", op, "] expected ", length, " of ", what, ", got ", found);
}

void check_step(const char* op, std::int64_t step) {
  TORCH_CHECK(step >= 1, "[", op, "] steps: found ", step, ", allowed: 1 or more");
}

/// A scalar as the steps above take it.
Tensor number(TensorList like, double value) {
  return at::full({1}, value, like[0].options().dtype(at::kFloat).requires_grad(false));
}

/// Weights of one step number at a time. eps_as_torch: beside the corrected sqrt(v), where torch.optim has it.
void adamw_step(TensorList gradients, TensorList weights, TensorList exp_avg, TensorList exp_avg_sq,
                at::IntArrayRef steps, double lr, double beta1, double beta2, double eps, double weight_decay,
                bool bias_correction, bool eps_as_torch, std::optional<TensorList> exp_avg_scales,
                std::optional<TensorList> exp_avg_sq_scales) {
  const char* op = "adamw_step";
  const std::size_t n = weights.size();
  check_lengths(op, n,
                {{"gradients", gradients.size()},
                 {"exp_avg", exp_avg.size()},
                 {"exp_avg_sq", exp_avg_sq.size()},
                 {"steps", steps.size()},
                 {"exp_avg_scales", exp_avg_scales ? exp_avg_scales->size() : n},
                 {"exp_avg_sq_scales", exp_avg_sq_scales ? exp_avg_sq_scales->size() : n}});
  std::map<std::int64_t, std::vector<std::size_t>> by_step;
  for (std::size_t i = 0; i < n; ++i) by_step[steps[i]].push_back(i);
  for (const auto& [step, which] : by_step) {
    check_step(op, step);
    const auto some = [&which](TensorList all) {
      std::vector<Tensor> found;
      for (const std::size_t i : which) found.push_back(all[i]);
      return found;
    };
    const auto scales_of = [&](const std::optional<TensorList>& all) {
      return all ? some(*all) : std::vector<Tensor>();
    };
    const auto t = static_cast<double>(step);
    const double root = bias_correction ? std::sqrt(1 - std::pow(beta2, t)) : 1.0;
    const double rate = -lr * root / (bias_correction ? 1 - std::pow(beta1, t) : 1.0);
    const auto scales = scales_of(exp_avg_scales), sq_scales = scales_of(exp_avg_sq_scales);
    optimizer_adamw(some(gradients), some(weights), some(exp_avg), some(exp_avg_sq), number(weights, rate), beta1,
                    beta2, eps * (eps_as_torch ? root : 1.0), number(weights, 1 - lr * weight_decay), weight_decay != 0,
                    exp_avg_scales ? std::optional<TensorList>(scales) : std::nullopt,
                    exp_avg_sq_scales ? std::optional<TensorList>(sq_scales) : std::nullopt);
  }
}

/// buffers: empty without momentum. first: whose buffers take the gradient, whatever they hold.
void sgd_momentum_step(TensorList gradients, TensorList weights, TensorList buffers, at::IntArrayRef first, double lr,
                       double momentum, double dampening, double weight_decay, bool nesterov) {
  const char* op = "sgd_step";
  const std::size_t n = weights.size();
  const std::size_t with_buffers = buffers.empty() ? 0 : n;
  check_lengths(op, n, {{"gradients", gradients.size()}});
  check_lengths(op, with_buffers, {{"buffers", buffers.size()}, {"first", first.size()}});
  SgdItem common;
  common.weight_decay = static_cast<float>(weight_decay);
  common.neg_lr = static_cast<float>(-lr);
  if (!buffers.empty()) {
    common.momentum = static_cast<float>(momentum);
    common.rest = static_cast<float>(1 - dampening);
    common.nesterov = nesterov;
  }
  std::vector<SgdItem> items(n, common);
  for (std::size_t i = 0; i < n; ++i) {
    items[i].grad = gradients[i];
    items[i].weight = weights[i];
    if (buffers.empty()) continue;
    items[i].buffer = buffers[i];
    items[i].first = first[i] != 0;
  }
  sgd_step(op, items);
}

/// clip: what optimizer_lamb_fused_norm gave.
void lamb_step(TensorList gradients, TensorList weights, TensorList exp_avg, TensorList exp_avg_sq, const Tensor& clip,
               std::int64_t step, double lr, double beta1, double beta2, double eps, double weight_decay,
               bool bias_correction, bool grad_averaging, bool use_lamb) {
  check_step("lamb_step", step);
  if (weights.empty()) return;
  std::vector<Tensor> norms, step_norms, directions;
  for (const Tensor& w : weights) {
    norms.push_back(number(weights, 0));
    step_norms.push_back(number(weights, 0));
    directions.push_back(at::empty_like(w, w.options().dtype(at::kFloat)));
  }
  const auto correction = [&](double beta) {
    return number(weights, bias_correction ? 1 - std::pow(beta, static_cast<double>(step)) : 1.0);
  };
  optimizer_lamb_phase1(gradients, weights, exp_avg, exp_avg_sq, norms, step_norms, directions, clip,
                        grad_averaging ? 1 : 0, beta1, beta2, eps, correction(beta1), correction(beta2), weight_decay);
  optimizer_lamb_phase2(weights, step_norms, norms, directions, number(weights, -lr), weight_decay, use_lamb);
}

template <class Add>
void register_group_steps(const Add& add) {
  add("adamw_step", &adamw_step);
  add("sgd_step", &sgd_momentum_step);
  add("lamb_step", &lamb_step);
}

}  // namespace

FP8_LIBRARY_FRAGMENT(fp8, m) {
  define(m, R"(
    adamw_step(Tensor[] gradients, Tensor(a!)[] weights, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq, int[] steps,
        float lr, float beta1, float beta2, float eps, float weight_decay, bool bias_correction=True, bool
        eps_as_torch=False, Tensor(d!)[]? exp_avg_scales=None, Tensor(e!)[]? exp_avg_sq_scales=None) -> ();
    sgd_step(Tensor[] gradients, Tensor(a!)[] weights, Tensor(b!)[] buffers, int[] first, float lr, float momentum=0,
        float dampening=0, float weight_decay=0, bool nesterov=False) -> ();
    lamb_step(Tensor[] gradients, Tensor(a!)[] weights, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq, Tensor clip, int
        step, float lr, float beta1, float beta2, float eps, float weight_decay, bool bias_correction=True, bool
        grad_averaging=True, bool use_lamb=False) -> ();)");
}

FP8_LIBRARY_IMPL(fp8, HPU, m) {
  Edge edge(m, "fp8");
  register_group_steps([&](const char* name, auto kernel) { edge.impl(name, kernel); });
}

FP8_LIBRARY_IMPL(fp8, Meta, m) {
  register_group_steps([&](const char* name, auto kernel) { m.impl(name, meta_step(kernel)); });
}

}  // namespace fp8::runtime::ops
