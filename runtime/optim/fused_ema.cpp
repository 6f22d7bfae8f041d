// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/fused_ema.h"

#include <ATen/core/grad_mode.h>

#include "fp8/runtime/intercept/quantized_parameter.h"
#include "fp8/runtime/ops/native/optim.h"

namespace fp8::runtime::optim {
namespace {

void check_decay(double decay) {
  TORCH_CHECK(decay >= 0 && decay <= 1, "FusedEMA: decay is ", decay, ", allowed is 0 to 1");
}

/// The values of a parameter; those of one held in fp8 are decoded, or are its high-precision copy.
at::Tensor values_of(const at::Tensor& p) {
  auto* quantized = quantized_parameter(p);
  return quantized != nullptr ? quantized->values().detach() : p.detach();
}

void assign(const at::Tensor& p, const at::Tensor& values) {
  if (auto* quantized = quantized_parameter(p)) {
    quantized->values().copy_(values);  // where it is the copy that optimizers update
    quantized->assign(values);
  } else {
    p.detach().copy_(values);
  }
}

}  // namespace

FusedEMA::FusedEMA(std::vector<at::Tensor> parameters, double decay) : parameters_(std::move(parameters)), decay_(decay) {
  check_decay(decay);
  const at::NoGradGuard disabled;
  for (const at::Tensor& p : parameters_) averages_.push_back(values_of(p).to(at::kFloat, false, true));
}

void FusedEMA::decay(double decay) {
  check_decay(decay);
  decay_ = decay;
}

void FusedEMA::update() { update(parameters_); }

void FusedEMA::update(const std::vector<at::Tensor>& parameters) {
  TORCH_CHECK(parameters.size() == averages_.size(), "FusedEMA: ", parameters.size(), " parameters, allowed are the ",
              averages_.size(), " it was made with");
  TORCH_CHECK(aside_.empty(), "FusedEMA: update between two calls of swap");
  const at::NoGradGuard disabled;
  std::vector<ops::ScaleAddItem> items;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    items.push_back({averages_[i], values_of(parameters[i]), static_cast<float>(decay_), static_cast<float>(1 - decay_)});
  }
  ops::scale_add("FusedEMA", items);
}

void FusedEMA::copy_to(const std::vector<at::Tensor>& parameters) const {
  TORCH_CHECK(parameters.size() == averages_.size(), "FusedEMA: ", parameters.size(), " parameters, allowed are the ",
              averages_.size(), " it was made with");
  const at::NoGradGuard disabled;
  for (std::size_t i = 0; i < parameters.size(); ++i) assign(parameters[i], averages_[i]);
}

void FusedEMA::swap() {
  const at::NoGradGuard disabled;
  if (aside_.empty()) {
    for (const at::Tensor& p : parameters_) aside_.push_back(values_of(p).clone());
    copy_to(parameters_);
    return;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) assign(parameters_[i], aside_[i]);
  aside_.clear();
}

}  // namespace fp8::runtime::optim
