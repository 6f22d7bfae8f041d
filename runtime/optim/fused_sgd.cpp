// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/fused_sgd.h"

#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "fp8/runtime/ops/optim/optim.h"

namespace fp8::runtime::optim {
namespace {

/// The momentum buffer, in the weight's type; zeros where there is none yet.
at::Tensor& buffer_of(const Participant& p) {
  at::Tensor& buffer = p.state->tensors["momentum_buffer"];
  if (!buffer.defined()) buffer = at::zeros_like(p.weight);
  return buffer;
}

}  // namespace

void FusedSGDOptions::check(const char* optimizer) const {
  check_lr(optimizer, lr());
  check_option(momentum() >= 0 && std::isfinite(momentum()), optimizer, "momentum", momentum(), "0 or more");
  check_option(std::isfinite(dampening()), optimizer, "dampening", dampening(), "any finite number");
  check_weight_decay(optimizer, weight_decay());
  TORCH_CHECK(!nesterov() || (momentum() > 0 && dampening() == 0), optimizer,
              ": nesterov is true, allowed only with momentum above 0 and dampening 0, found momentum ", momentum(),
              " and dampening ", dampening());
}

template <>
void FusedSGD::update(const std::vector<Participant>& participants) {
  std::vector<ops::SgdItem> items;
  items.reserve(participants.size());
  for (const Participant& p : participants) {
    const auto& o = static_cast<const FusedSGDOptions&>(*p.options);
    ops::SgdItem item;
    item.grad = p.grad;
    item.weight = p.weight;
    item.weight_decay = static_cast<float>(o.weight_decay());
    item.momentum = static_cast<float>(o.momentum());
    item.rest = static_cast<float>(1 - o.dampening());
    item.neg_lr = static_cast<float>(-o.lr());
    item.nesterov = o.nesterov();
    if (o.momentum() != 0) {
      item.first = p.state->tensors.count("momentum_buffer") == 0;
      item.buffer = buffer_of(p);
    }
    items.push_back(std::move(item));
  }
  ops::sgd_step(name(), items);
}

void FusedLarsOptions::check(const char* optimizer) const {
  check_lr(optimizer, lr());
  check_option(momentum() >= 0 && std::isfinite(momentum()), optimizer, "momentum", momentum(), "0 or more");
  check_weight_decay(optimizer, weight_decay());
  check_option(eeta() > 0 && std::isfinite(eeta()), optimizer, "eeta", eeta(), "above 0");
  check_option(eps() >= 0 && std::isfinite(eps()), optimizer, "eps", eps(), "0 or more");
}

template <>
void FusedLars::update(const std::vector<Participant>& participants) {
  std::vector<at::Tensor> both;
  for (const Participant& p : participants) both.insert(both.end(), {p.weight, p.grad});
  const auto norms = ops::norms(name(), both);
  std::vector<ops::SgdItem> items;
  items.reserve(participants.size());
  for (std::size_t i = 0; i < participants.size(); ++i) {
    const Participant& p = participants[i];
    const auto& o = static_cast<const FusedLarsOptions&>(*p.options);
    const double factor =
        o.skip() ? o.lr()
                 : ops::lars_factor(norms[2 * i], norms[2 * i + 1], o.eeta(), o.weight_decay(), o.eps(), o.lr());
    ops::SgdItem item;
    item.grad = p.grad;
    item.weight = p.weight;
    item.buffer = buffer_of(p);
    item.weight_decay = o.skip() ? 0.0f : static_cast<float>(o.weight_decay());
    item.momentum = static_cast<float>(o.momentum());
    item.rest = static_cast<float>(-factor);
    item.neg_lr = 1;
    items.push_back(std::move(item));
  }
  ops::sgd_step(name(), items);
}

}  // namespace fp8::runtime::optim
