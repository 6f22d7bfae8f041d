// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/fused_clip_ema.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <cmath>

#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/lazy/lazy_call.h"
#include "fp8/runtime/ops/optim/optim.h"
#include "fp8/runtime/tape/recorder.h"

namespace fp8::runtime::optim {

FusedClipNorm::FusedClipNorm(std::vector<at::Tensor> parameters, double max_norm, double norm_type)
    : parameters_(std::move(parameters)), max_norm_(max_norm) {
  TORCH_CHECK(max_norm > 0, "FusedClipNorm: max_norm is ", max_norm, ", allowed is above 0");
  TORCH_CHECK(norm_type == 2, "FusedClipNorm: norm_type is ", norm_type, ", allowed is 2");
}

at::Tensor FusedClipNorm::clip_norm(const std::vector<at::Tensor>& parameters) const {
  const at::NoGradGuard disabled;
  std::vector<at::Tensor> grads;
  std::unordered_set<const void*> seen;
  for (const at::Tensor& p : parameters) {
    if (p.grad().defined() && seen.insert(p.grad().unsafeGetTensorImpl()).second) grads.push_back(p.grad().detach());
  }
  const auto clip = [max_norm = max_norm_](at::TensorList given) {
    const at::NoGradGuard disabled;
    const double norm = ops::norm_of(ops::norms("FusedClipNorm", given));
    ops::scale_all("FusedClipNorm", given, ops::clip_coefficient(norm, max_norm));
    return at::full({}, norm, at::TensorOptions(at::kFloat).device(given.empty() ? at::kCPU : given[0].device()));
  };
  if (grads.empty() || !queues_calls()) return run_node("FusedClipNorm", grads, clip);
  for (const at::Tensor& grad : grads) grad.unsafeGetTensorImpl()->bump_version();  // it may be clipped
  return queue_call(
      "FusedClipNorm", grads, {PromisedResult{{}, at::kFloat}},
      [clip](at::TensorList given) { return std::vector<at::Tensor>{clip(given)}; }, grads)[0];
}

namespace {

void check_decay(double decay) {
  TORCH_CHECK(decay >= 0 && decay <= 1, "FusedEMA: decay is ", decay, ", allowed is 0 to 1");
}

std::vector<at::Tensor> tensors_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> result;
  std::unordered_set<const void*> seen;
  for (const auto& list : {model.parameters(), model.buffers()}) {
    for (const at::Tensor& t : list) {
      const bool wanted = t.defined() && (t.is_floating_point() || quantized_parameter(t) != nullptr);
      const bool codes = wanted && quantized_parameter(t) == nullptr && c10::isFloat8Type(t.scalar_type());
      if (wanted && !codes && seen.insert(t.unsafeGetTensorImpl()).second) result.push_back(t);
    }
  }
  return result;
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

FusedEMA::FusedEMA(std::vector<at::Tensor> parameters, double decay, std::int64_t updates, double ramp)
    : parameters_(std::move(parameters)), decay_(decay), ramp_(ramp), updates_(updates) {
  check_decay(decay);
  TORCH_CHECK(updates >= 0, "FusedEMA: updates is ", updates, ", allowed is 0 or more");
  TORCH_CHECK(ramp >= 0 && std::isfinite(ramp), "FusedEMA: ramp is ", ramp, ", allowed is 0 (no ramp) or more");
  const at::NoGradGuard disabled;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    TORCH_CHECK(parameters_[i].defined(), "FusedEMA: parameter ", i, " is undefined");
    const at::Tensor values = values_of(parameters_[i]);
    const auto type = values.scalar_type();
    TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, "FusedEMA: parameter ", i, " is ",
                type, ", allowed are Float, BFloat16 and Half");
    averages_.push_back(values.to(at::kFloat, false, true));
  }
}

FusedEMA::FusedEMA(const torch::nn::Module& model, double decay, std::int64_t updates, double ramp)
    : FusedEMA(tensors_of(model), decay, updates, ramp) {}

double FusedEMA::decay_of(std::int64_t update) const {
  return ramp_ > 0 ? decay_ * -std::expm1(-static_cast<double>(update) / ramp_) : decay_;
}

void FusedEMA::decay(double decay) {
  check_decay(decay);
  decay_ = decay;
}

void FusedEMA::update() { update(parameters_); }

void FusedEMA::update(const std::vector<at::Tensor>& parameters) {
  TORCH_CHECK(parameters.size() == averages_.size(), "FusedEMA: ", parameters.size(), " parameters, allowed are the ",
              averages_.size(), " it was made with");
  TORCH_CHECK(
      aside_.empty(),
      "FusedEMA: found update between two calls of swap, allowed: after the second, which puts the parameters back");
  const at::NoGradGuard disabled;
  const double d = decay_of(updates_ + 1);
  std::vector<at::Tensor> operands = averages_;
  for (const at::Tensor& p : parameters) operands.push_back(values_of(p));
  const auto average = [d, n = averages_.size()](at::TensorList given) -> std::vector<at::Tensor> {
    std::vector<ops::ScaleAddItem> items;
    for (std::size_t i = 0; i < n; ++i)
      items.push_back({given[i], given[n + i], static_cast<float>(d), static_cast<float>(1 - d)});
    ops::scale_add("FusedEMA", items);
    return {};
  };
  if (queues_calls()) {
    for (const at::Tensor& t : averages_) t.unsafeGetTensorImpl()->bump_version();
    queue_call("FusedEMA", operands, {}, average, averages_);
  } else {
    average(operands);
  }
  ++updates_;
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
