// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/optimizers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/serialize/archive.h>

#include <sstream>

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/ops/cast/cast.h"
#include "fp8/runtime/ops/optim/optim.h"

namespace fp8::runtime::optim {
namespace {

struct TypeWord {
  at::ScalarType type;
  const char* word;
};
constexpr TypeWord kTypes[] = {
    {at::kFloat, "f32"}, {at::kBFloat16, "bf16"}, {at::kFloat8_e4m3fn, "e4m3"}, {at::kFloat8_e5m2, "e5m2"}};

const char* word_of(at::ScalarType type) {
  for (const auto& entry : kTypes) {
    if (entry.type == type) return entry.word;
  }
  return "other";
}

at::ScalarType type_of(const std::string& word) {
  for (const auto& entry : kTypes) {
    if (word == entry.word) return entry.type;
  }
  TORCH_CHECK(false, "FusedAdamW: moments_dtype is \"", word, "\", allowed are f32, bf16, e4m3 and e5m2");
}

bool is_adamws(const FusedAdamWOptions& options) {
  const MomentTypes& types = options.moments_dtype();
  return options.bias_correction() && !ops::is_fp8(types.exp_avg) && !ops::is_fp8(types.exp_avg_sq);
}

at::Tensor scale_tensor(const at::Tensor& like, float value) {
  return at::full({1}, value, like.options().dtype(at::kFloat).memory_format(std::nullopt));
}

/// The moment `name` of a parameter in the wanted type; zeros (scale 1) where there is none yet.
at::Tensor& moment(Participant& p, const std::string& name, at::ScalarType type) {
  at::Tensor &tensor = p.state->tensors[name], &scale = p.state->tensors[name + "_scale"];
  const bool fp8 = ops::is_fp8(type);
  if (!tensor.defined()) {
    tensor = at::zeros_like(p.weight, p.weight.options().dtype(type));
    if (fp8) scale = scale_tensor(p.weight, 1);
  } else if (tensor.scalar_type() != type) {
    at::Tensor values = tensor;
    if (ops::is_fp8(tensor.scalar_type())) {
      TORCH_CHECK(scale.defined() && scale.numel() == 1, "FusedAdamW: expected ", name, "_scale of one element beside ",
                  name, " in ", tensor.scalar_type(), ", got ",
                  scale.defined() ? c10::str("sizes ", scale.sizes()) : std::string("none"));
      values = ops::cast_from_fp8(tensor, ops::scale_of(1.0 / scale.item<double>(), std::nullopt), at::kFloat);
    }
    if (fp8) {
      values = values.to(at::kFloat);
      const auto format = ops::format_of(type);
      const float amax = values.numel() == 0 ? 0 : values.abs().max().item<float>();
      scale = scale_tensor(p.weight, kernels::moment_scale(amax, format, device_dialect("FusedAdamW"), 1));
      tensor = std::get<0>(
          ops::cast_to_fp8_v2(values, ops::scale_of(scale.item<double>(), std::nullopt), false, false, type));
    } else {
      tensor = values.to(type);
    }
  }
  if (!fp8) p.state->tensors.erase(name + "_scale");
  return tensor;
}

}  // namespace

c10::IValue to_value(const MomentTypes& types) {
  return std::string(word_of(types.exp_avg)) + "," + word_of(types.exp_avg_sq);
}
void from_value(const c10::IValue& value, MomentTypes& types) {
  const std::string& words = value.toStringRef();
  const auto comma = words.find(',');
  types.exp_avg = type_of(words.substr(0, comma));
  types.exp_avg_sq = comma == std::string::npos ? types.exp_avg : type_of(words.substr(comma + 1));
}

void FusedAdamWOptions::serialize(torch::serialize::OutputArchive& archive) const {
  FusedOptions::serialize(archive);
  if (is_adamws(*this)) archive.write("amsgrad", c10::IValue(false));
}

void FusedAdamWOptions::check(const char* optimizer) const {
  check_lr(optimizer, lr());
  check_betas(optimizer, betas());
  check_eps(optimizer, eps());
  check_weight_decay(optimizer, weight_decay());
  for (const auto type : {moments_dtype().exp_avg, moments_dtype().exp_avg_sq}) {
    TORCH_CHECK(std::string(word_of(type)) != "other", optimizer, ": moments_dtype is ", type,
                ", allowed are Float, BFloat16, Float8_e4m3fn and Float8_e5m2");
  }
}

void FusedAdamWOptions::update(const char* optimizer, const std::vector<Participant>& participants) {
  std::vector<ops::AdamItem> items;
  items.reserve(participants.size());
  for (Participant p : participants) {
    const auto& o = static_cast<const FusedAdamWOptions&>(*p.options);
    const auto [beta1, beta2] = o.betas();
    const auto t = static_cast<double>(p.state->step);
    const double correction1 = o.bias_correction() ? 1 - std::pow(beta1, t) : 1;
    const double correction2 = o.bias_correction() ? 1 - std::pow(beta2, t) : 1;
    ops::AdamItem item;
    item.grad = p.grad;
    item.weight = p.weight;
    item.exp_avg = moment(p, "exp_avg", o.moments_dtype().exp_avg);
    item.exp_avg_sq = moment(p, "exp_avg_sq", o.moments_dtype().exp_avg_sq);
    const auto scale_of = [&](const char* name) {
      const auto found = p.state->tensors.find(name);
      return found == p.state->tensors.end() ? at::Tensor() : found->second;
    };
    item.exp_avg_scale = scale_of("exp_avg_scale");
    item.exp_avg_sq_scale = scale_of("exp_avg_sq_scale");
    item.factors.beta1 = static_cast<float>(beta1);
    item.factors.rest1 = static_cast<float>(1 - beta1);
    item.factors.beta2 = static_cast<float>(beta2);
    item.factors.rest2 = static_cast<float>(1 - beta2);
    item.factors.eps = static_cast<float>(o.eps());
    item.factors.decay = static_cast<float>(1 - o.lr() * o.weight_decay());
    const bool habana = o.eps_mode() == EpsMode::habana;
    item.factors.root_scale = static_cast<float>(habana ? 1 : 1 / std::sqrt(correction2));
    item.factors.neg_step = static_cast<float>(-o.lr() * (habana ? std::sqrt(correction2) : 1) / correction1);
    const auto seed = static_cast<std::uint64_t>(o.seed()), step = static_cast<std::uint64_t>(p.state->step);
    item.seed = kernels::splitmix64(kernels::splitmix64(seed, step), p.number);
    items.push_back(std::move(item));
  }
  ops::adam_step(optimizer, items);
}

void FusedLambOptions::check(const char* optimizer) const {
  check_lr(optimizer, lr());
  check_betas(optimizer, betas());
  check_eps(optimizer, eps());
  check_weight_decay(optimizer, weight_decay());
  check_option(max_grad_norm() >= 0 && std::isfinite(max_grad_norm()), optimizer, "max_grad_norm", max_grad_norm(),
               "0 (no clipping) or more");
}

void FusedLambOptions::update(const char* optimizer, const std::vector<Participant>& participants) {
  double most = 0;
  std::vector<at::Tensor> grads;
  for (const Participant& p : participants) {
    const double limit = static_cast<const FusedLambOptions&>(*p.options).max_grad_norm();
    if (limit > 0) most = most > 0 ? std::min(most, limit) : limit;
    grads.push_back(p.grad);
  }
  double clip = 1;
  if (most > 0) {
    const double norm = ops::norm_of(ops::norms(optimizer, grads));
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
  const auto norms = ops::lamb_direction(optimizer, items);
  std::vector<ops::ScaleAddItem> steps;
  steps.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& o = static_cast<const FusedLambOptions&>(*participants[i].options);
    const double trust = ops::lamb_trust(norms[i].weight, norms[i].step, o.weight_decay() != 0 || o.use_lamb());
    steps.push_back({items[i].weight, items[i].step, 1, static_cast<float>(-o.lr() * trust)});
  }
  ops::scale_add(optimizer, steps);
}

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

void FusedSGDOptions::update(const char* optimizer, const std::vector<Participant>& participants) {
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
  ops::sgd_step(optimizer, items);
}

void FusedLarsOptions::check(const char* optimizer) const {
  check_lr(optimizer, lr());
  check_option(momentum() >= 0 && std::isfinite(momentum()), optimizer, "momentum", momentum(), "0 or more");
  check_weight_decay(optimizer, weight_decay());
  check_option(eeta() > 0 && std::isfinite(eeta()), optimizer, "eeta", eeta(), "above 0");
  check_option(eps() >= 0 && std::isfinite(eps()), optimizer, "eps", eps(), "0 or more");
}

void FusedLarsOptions::update(const char* optimizer, const std::vector<Participant>& participants) {
  std::vector<at::Tensor> both;
  for (const Participant& p : participants) both.insert(both.end(), {p.weight, p.grad});
  const auto norms = ops::norms(optimizer, both);
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
  ops::sgd_step(optimizer, items);
}

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

void update_muon(const char* optimizer, const std::vector<Participant>& participants) {
  std::vector<Participant> hidden, others;
  for (const Participant& p : participants) {
    (dynamic_cast<const MuonOptions*>(p.options) != nullptr ? hidden : others).push_back(p);
  }
  FusedAdamWOptions::update(optimizer, others);
  for (std::size_t begin = 0; begin < hidden.size();) {
    std::size_t end = begin;
    std::int64_t elements = 0;
    do {
      elements += hidden[end++].weight.numel();
    } while (end < hidden.size() && elements + hidden[end].weight.numel() <= kMostElements);
    const auto batch = at::ArrayRef<Participant>(hidden).slice(begin, end - begin);
    const auto matrices = directions(optimizer, batch);
    orthogonalize_all(batch, matrices);
    std::vector<ops::ScaleAddItem> steps;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto& o = options_of(batch[i]);
      steps.push_back({batch[i].weight, matrices[i], static_cast<float>(1 - o.lr() * o.weight_decay()),
                       static_cast<float>(-step_size(batch[i]))});
    }
    ops::scale_add(optimizer, steps);
    begin = end;
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
    : FusedOptimizer("Muon", &update_muon, groups, std::make_unique<MuonOptions>(std::move(defaults))) {
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
