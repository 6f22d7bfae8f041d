// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/muon.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "fp8/runtime/ops/optim/optim.h"

namespace fp8::runtime::optim {
namespace {

using torch::optim::OptimizerParamGroup;

constexpr std::int64_t kMostElements = std::int64_t{1} << 25;  // of updates that exist at the same time: 128 MiB

const MuonOptions& options_of(const Participant& p) { return static_cast<const MuonOptions&>(*p.options); }

double step_size(const Participant& p) {
  const auto rows = static_cast<double>(p.weight.size(0)), cols = static_cast<double>(p.weight.size(1));
  const auto& o = options_of(p);
  if (o.ratio() == MuonRatio::match_rms_adamw) return o.lr() * 0.2 * std::sqrt(std::max(rows, cols));
  return o.lr() * std::sqrt(std::max(1.0, rows / cols));
}

/// buf and u for each participant; u is f32, contiguous, on the CPU.
std::vector<at::Tensor> directions(const char* name, at::ArrayRef<Participant> participants) {
  std::vector<ops::ScaleAddItem> momentum, nesterov;
  std::vector<at::Tensor> result;
  for (const Participant& p : participants) {
    const auto& o = options_of(p);
    const auto beta = static_cast<float>(o.momentum()), rest = static_cast<float>(1 - o.momentum());
    at::Tensor& buffer = p.state->tensors["momentum_buffer"];
    if (!buffer.defined()) buffer = at::zeros_like(p.weight, p.weight.options().dtype(at::kFloat));
    momentum.push_back({buffer, p.grad, beta, rest});
    result.push_back(at::empty(p.weight.sizes(), at::kFloat));
    if (o.nesterov()) {
      result.back().copy_(p.grad);
      nesterov.push_back({result.back(), buffer, rest, beta});
    }
  }
  ops::scale_add(name, momentum);
  ops::scale_add(name, nesterov);
  for (std::size_t i = 0; i < participants.size(); ++i) {
    if (!options_of(participants[i]).nesterov()) result[i].copy_(participants[i].state->tensors["momentum_buffer"]);
  }
  return result;
}

/// All matrices with the same number of steps and eps in one call.
void orthogonalize_all(at::ArrayRef<Participant> participants, const std::vector<at::Tensor>& matrices) {
  std::map<std::pair<std::int64_t, double>, std::vector<kernels::Matrix>> calls;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const auto& o = options_of(participants[i]);
    calls[{o.ns_steps(), o.eps()}].push_back(
        {static_cast<float*>(matrices[i].mutable_data_ptr()), matrices[i].size(0), matrices[i].size(1)});
  }
  for (const auto& [key, list] : calls) {
    kernels::NewtonSchulz options;
    options.steps = static_cast<int>(key.first);
    options.eps = static_cast<float>(key.second);
    kernels::orthogonalize(list, options);
  }
}

}  // namespace

void MuonOptions::check(const char* optimizer) const {
  check_lr(optimizer, lr());
  check_option(momentum() >= 0 && momentum() < 1, optimizer, "momentum", momentum(), "0 to below 1");
  check_weight_decay(optimizer, weight_decay());
  check_option(ns_steps() >= 1 && ns_steps() <= 99, optimizer, "ns_steps", static_cast<double>(ns_steps()), "1 to 99");
  check_option(eps() > 0 && std::isfinite(eps()), optimizer, "eps", eps(), "above 0");
}

Muon::Muon(const std::vector<OptimizerParamGroup>& groups, MuonOptions defaults)
    : FusedOptimizer("Muon", groups, std::make_unique<MuonOptions>(std::move(defaults))) {
  for (const auto& group : groups) add_param_group(group);
}

Muon::Muon(std::vector<at::Tensor> hidden, std::vector<at::Tensor> others, MuonOptions muon, FusedAdamWOptions adamw)
    : Muon({OptimizerParamGroup(std::move(hidden)),
            OptimizerParamGroup(std::move(others), std::make_unique<FusedAdamWOptions>(std::move(adamw)))},
           std::move(muon)) {}

void Muon::check_group(const FusedOptions& options, const std::vector<at::Tensor>& parameters) const {
  if (dynamic_cast<const FusedAdamWOptions*>(&options) != nullptr) return;
  TORCH_CHECK(dynamic_cast<const MuonOptions*>(&options) != nullptr,
              "Muon: the options of a group are another optimizer's, allowed are MuonOptions and FusedAdamWOptions");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    TORCH_CHECK(parameters[i].dim() == 2, "Muon: parameter ", i, " has sizes ", parameters[i].sizes(),
                ", allowed are 2 dimensions; the others belong in a group with FusedAdamWOptions");
  }
}

void Muon::update(const std::vector<Participant>& participants) {
  std::vector<Participant> hidden, others;
  for (const Participant& p : participants) {
    (dynamic_cast<const MuonOptions*>(p.options) != nullptr ? hidden : others).push_back(p);
  }
  adamw_update(name(), others);
  for (std::size_t begin = 0; begin < hidden.size();) {
    std::size_t end = begin;
    std::int64_t elements = 0;
    do {
      elements += hidden[end++].weight.numel();
    } while (end < hidden.size() && elements + hidden[end].weight.numel() <= kMostElements);
    const auto batch = at::ArrayRef<Participant>(hidden).slice(begin, end - begin);
    const auto matrices = directions(name(), batch);
    orthogonalize_all(batch, matrices);
    std::vector<ops::ScaleAddItem> steps;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto& o = options_of(batch[i]);
      steps.push_back({batch[i].weight, matrices[i], static_cast<float>(1 - o.lr() * o.weight_decay()),
                       static_cast<float>(-step_size(batch[i]))});
    }
    ops::scale_add(name(), steps);
    begin = end;
  }
}

bool is_hidden_weight(const std::string& name, const at::Tensor& parameter) {
  if (parameter.dim() != 2) return false;
  constexpr std::array kOthers = {"wte", "wpe", "lm_head", "output", "head", "classifier", "score"};
  std::istringstream parts(name);
  for (std::string part; std::getline(parts, part, '.');) {
    if (part.find("embed") != std::string::npos) return false;
    if (std::any_of(kOthers.begin(), kOthers.end(), [&](const char* other) { return part == other; })) return false;
  }
  return true;
}

}  // namespace fp8::runtime::optim
