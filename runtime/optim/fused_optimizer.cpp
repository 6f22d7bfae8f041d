// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/fused_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <torch/serialize/archive.h>

#include <cmath>

#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/lazy/lazy_call.h"
#include "fp8/runtime/tape/recorder.h"

namespace fp8::runtime::optim {
namespace {

using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;
using States = ska::flat_hash_map<void*, std::unique_ptr<OptimizerParamState>>;

constexpr std::int64_t kMostItems = std::int64_t{1} << 24;  // groups or parameters of an archive

std::int64_t size_in(InputArchive& archive, const std::string& key) {
  at::Tensor size;
  archive.read(key, size);
  TORCH_CHECK(size.numel() == 1 && !size.is_floating_point(), "optimizer archive: ", key,
              ": expected one whole number, got ", size.scalar_type(), " of sizes ", size.sizes());
  const auto value = size.item<std::int64_t>();
  TORCH_CHECK(value >= 0 && value <= kMostItems, "optimizer archive: ", key, " is ", value, ", allowed is 0 to ",
              kMostItems);
  return value;
}

at::Tensor size_tensor(std::size_t size) { return at::tensor(static_cast<std::int64_t>(size), at::kLong); }

const FusedOptions& options_of(const OptimizerParamGroup& group) {
  return static_cast<const FusedOptions&>(group.options());
}

/// f(parameter, "<group>.<index>") for each parameter of each group.
template <class F>
void for_each_parameter(const std::vector<OptimizerParamGroup>& groups, F&& f) {
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t i = 0; i < groups[g].params().size(); ++i)
      f(groups[g].params()[i], std::to_string(g) + "." + std::to_string(i));
}

}  // namespace

void FusedOptions::serialize(OutputArchive& archive) const {
  for (const auto& [name, value] : values()) archive.write(name, value);
}

void FusedOptions::serialize(InputArchive& archive) {
  for (const auto& entry : values()) {
    c10::IValue value;
    if (archive.try_read(entry.first, value)) set(entry.first, value);
  }
  const auto known = values();
  for (const std::string& name : archive.keys()) {
    c10::IValue value;
    const bool ours = std::any_of(known.begin(), known.end(), [&](const auto& entry) { return entry.first == name; });
    if (ours || !archive.try_read(name, value)) continue;
    TORCH_CHECK(!(value.isBool() && value.toBool()), "optimizer archive: ", name,
                " is true, allowed is false: this optimizer has no such option");
  }
}

void check_option(bool ok, const char* optimizer, const char* option, double value, const char* range) {
  TORCH_CHECK(ok, optimizer, ": ", option, " is ", value, ", allowed is ", range);
}
void check_lr(const char* optimizer, double lr) {
  check_option(lr >= 0 && std::isfinite(lr), optimizer, "lr", lr, "0 or more");
}
void check_weight_decay(const char* optimizer, double weight_decay) {
  check_option(weight_decay >= 0 && std::isfinite(weight_decay), optimizer, "weight_decay", weight_decay, "0 or more");
}
void check_betas(const char* optimizer, const std::tuple<double, double>& betas) {
  const auto [first, second] = betas;
  check_option(first >= 0 && first < 1, optimizer, "betas[0]", first, "0 to below 1");
  check_option(second >= 0 && second < 1, optimizer, "betas[1]", second, "0 to below 1");
}
void check_eps(const char* optimizer, double eps) {
  check_option(eps >= 0 && std::isfinite(eps), optimizer, "eps", eps, "0 or more");
}

// Tensors are saved from the CPU, so that any machine can read them.
void FusedState::serialize(OutputArchive& archive) const {
  archive.write("step", c10::IValue(step));
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined()) archive.write(name, c10::IValue(tensor.cpu()));
  }
}

void FusedState::serialize(InputArchive& archive) {
  step = 0;
  tensors.clear();
  for (const std::string& name : archive.keys()) {
    c10::IValue value;
    if (!archive.try_read(name, value)) continue;
    if (name == "step") {
      step = value.isTensor() ? value.toTensor().item<std::int64_t>() : value.toInt();
    } else if (value.isTensor() && value.toTensor().defined()) {
      tensors[name] = value.toTensor();
    }
  }
}

FusedOptimizer::FusedOptimizer(const char* name, Update update, const std::vector<OptimizerParamGroup>& groups,
                               std::unique_ptr<FusedOptions> defaults)
    : Optimizer(std::vector<OptimizerParamGroup>{}, std::move(defaults)), name_(name), update_(update) {
  static_cast<const FusedOptions&>(*defaults_).check(name_);
}

/// Steps that wait have its states.
FusedOptimizer::~FusedOptimizer() {
  try {
    finish_work();
  } catch (const std::exception&) {  // all is run or dropped; who reads what failed is told
  }
}

void FusedOptimizer::add_param_group(const OptimizerParamGroup& group) {
  const torch::optim::OptimizerOptions& given = group.has_options() ? group.options() : *defaults_;
  const auto* options = dynamic_cast<const FusedOptions*>(&given);
  TORCH_CHECK(options != nullptr, name_, ": expected options of this kind in a group, got another optimizer's");
  options->check(name_);
  std::map<void*, std::size_t> known;
  for (const auto& other : param_groups_) {
    for (const auto& p : other.params()) known.emplace(p.unsafeGetTensorImpl(), known.size());
  }
  for (std::size_t i = 0; i < group.params().size(); ++i) {
    const at::Tensor& p = group.params()[i];
    TORCH_CHECK(p.defined(), name_, ": parameter ", i, " is undefined");
    TORCH_CHECK(known.emplace(p.unsafeGetTensorImpl(), i).second, name_, ": parameter ", i, " is there already");
  }
  check_group(*options, group.params());
  Optimizer::add_param_group(OptimizerParamGroup(group.params()));  // with options, upstream would take the defaults
  param_groups_.back().set_options(given.clone());
}

at::Tensor FusedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enabled(true);
    loss = closure();
  }
  const at::NoGradGuard disabled;
  std::vector<Chosen> chosen;
  std::vector<at::Tensor> grads;
  std::uint64_t number = 0;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    const auto& parameters = param_groups_[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i, ++number) {
      if (!parameters[i].grad().defined()) continue;
      chosen.push_back({g, i, number});
      grads.push_back(parameters[i].grad());
    }
  }
  if (queues_calls() && !chosen.empty()) {
    step_later(chosen, grads);
    return loss;
  }
  run_node(name_, grads, [this, chosen, alive = std::weak_ptr(alive_)](at::TensorList given) {
    TORCH_CHECK(!alive.expired(), "[graph] the optimizer whose step was captured is gone");
    const at::NoGradGuard disabled;
    prepare(chosen, given).run();
    return at::Tensor();
  });
  return loss;
}

FusedOptimizer::Step FusedOptimizer::prepare(const std::vector<Chosen>& chosen, at::TensorList grads) {
  Step step{name_, update_, {}, {}};
  for (const auto& group : param_groups_) options_of(group).check(name_);
  for (std::size_t n = 0; n < chosen.size(); ++n) {
    const auto& [g, i, number] = chosen[n];
    TORCH_CHECK(g < param_groups_.size() && i < param_groups_[g].params().size(), name_, ": parameter ", i,
                " of group ", g, " is no longer there");
    const at::Tensor &p = param_groups_[g].params()[i], &grad = grads[n];
    TORCH_CHECK(grad.layout() == at::kStrided, name_, ": the gradient of parameter ", i, " of group ", g, " is ",
                grad.layout(), ", allowed are dense ones");
    auto* quantized = quantized_parameter(p);
    for (const at::Tensor* t : {&p, &grad}) {
      const auto type = t->scalar_type();
      if (t == &p && quantized != nullptr) continue;
      TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, name_, ": ",
                  t == &grad ? "the gradient of parameter " : "parameter ", i, " of group ", g, " is ", type,
                  ", allowed are Float, BFloat16 and Half");
    }
    auto& state = state_[p.unsafeGetTensorImpl()];
    if (state == nullptr) state = std::make_unique<FusedState>();
    if (quantized != nullptr) step.held.emplace_back(n, quantized);
    step.participants.push_back(
        {p.detach(), grad, static_cast<FusedState*>(state.get()), &options_of(param_groups_[g]), number});
  }
  return step;
}

void FusedOptimizer::Step::run() {
  for (const auto& [n, parameter] : held) participants[n].weight = parameter->values();
  for (const Participant& participant : participants) ++participant.state->step;
  try {
    update(name, participants);
  } catch (...) {  // nothing was updated: arguments are checked before the kernels run
    for (const Participant& participant : participants) --participant.state->step;
    throw;
  }
  for (const auto& [n, parameter] : held) parameter->assign(participants[n].weight);
}

void FusedOptimizer::step_later(const std::vector<Chosen>& chosen, at::TensorList grads) {
  const auto step = std::make_shared<Step>(prepare(chosen, grads));
  std::map<const FusedOptions*, const FusedOptions*> copies;
  for (const auto& group : param_groups_) {
    step->options.push_back(group.options().clone());
    copies[&options_of(group)] = static_cast<const FusedOptions*>(step->options.back().get());
  }
  std::vector<at::Tensor> operands, weights;
  for (Participant& p : step->participants) {
    weights.push_back(p.weight);
    p.weight.unsafeGetTensorImpl()->bump_version();  // as what reads it from now on sees it
    p.options = copies.at(p.options);
    operands.push_back(std::exchange(p.weight, at::Tensor()));
    operands.push_back(std::exchange(p.grad, at::Tensor()));
  }
  queue_call(
      name_, operands, {},
      [step](at::TensorList given) -> std::vector<at::Tensor> {
        const at::NoGradGuard disabled;
        for (std::size_t n = 0; n < step->participants.size(); ++n)
          step->participants[n].weight = given[2 * n], step->participants[n].grad = given[2 * n + 1];
        step->run();
        return {};
      },
      weights);
}

void FusedOptimizer::save(OutputArchive& archive) const {
  finish_work();
  archive.write("pytorch_version", c10::IValue("1.5.0"));
  OutputArchive states(archive.compilation_unit()), groups(archive.compilation_unit());
  groups.write("param_groups/size", size_tensor(param_groups_.size()));
  std::size_t number = 0;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    const auto& params = param_groups_[g].params();
    OutputArchive group(archive.compilation_unit()), options(archive.compilation_unit());
    group.write("params/size", size_tensor(params.size()));
    for (std::size_t i = 0; i < params.size(); ++i, ++number) {
      const std::string key = std::to_string(number);
      group.write("params/" + std::to_string(i), c10::IValue(key));
      const auto state = state_.find(params[i].unsafeGetTensorImpl());
      if (state == state_.end()) continue;
      OutputArchive one(archive.compilation_unit());
      state->second->serialize(one);
      states.write(key, one);
    }
    options_of(param_groups_[g]).serialize(options);
    group.write("options", options);
    groups.write("param_groups/" + std::to_string(g), group);
  }
  archive.write("state", states);
  archive.write("param_groups", groups);
}

void FusedOptimizer::assign_state(std::unique_ptr<FusedState> state, const at::Tensor& parameter,
                                  const std::string& key, States& into) const {
  TORCH_CHECK(state->step >= 0, name_, ": ", key, ".step is ", state->step, ", allowed is 0 or more");
  for (auto& [name, tensor] : state->tensors) {
    if (name.ends_with("_scale")) {
      TORCH_CHECK(tensor.numel() == 1, name_, ": ", key, ".", name, " has sizes ", tensor.sizes(),
                  ", allowed is one element");
    } else {
      TORCH_CHECK(tensor.sizes() == parameter.sizes(), name_, ": ", key, ".", name, " has sizes ", tensor.sizes(),
                  ", the parameter has ", parameter.sizes());
    }
    tensor = tensor.detach().to(parameter.device(), tensor.scalar_type(), false, true);
  }
  into[parameter.unsafeGetTensorImpl()] = std::move(state);
}

void FusedOptimizer::load(InputArchive& archive) {
  finish_work();
  InputArchive states, groups;
  archive.read("state", states);
  archive.read("param_groups", groups);
  const std::int64_t count = size_in(groups, "param_groups/size");
  TORCH_CHECK(count == static_cast<std::int64_t>(param_groups_.size()), name_, ": the archive has ", count,
              " groups, the optimizer ", param_groups_.size());
  States loaded;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> all_options;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    const auto& params = param_groups_[g].params();
    InputArchive group, options;
    groups.read("param_groups/" + std::to_string(g), group);
    const std::int64_t size = size_in(group, "params/size");
    TORCH_CHECK(size == static_cast<std::int64_t>(params.size()), name_, ": group ", g, " of the archive has ", size,
                " parameters, the optimizer's ", params.size());
    for (std::size_t i = 0; i < params.size(); ++i) {
      c10::IValue key;
      group.read("params/" + std::to_string(i), key);
      TORCH_CHECK(key.isString(), name_, ": params/", i, " of the archive's group ", g, ": expected a string, got ",
                  key.tagKind());
      InputArchive one;
      if (!states.try_read(key.toStringRef(), one)) continue;
      auto state = std::make_unique<FusedState>();
      state->serialize(one);
      assign_state(std::move(state), params[i], std::to_string(g) + "." + std::to_string(i), loaded);
    }
    group.read("options", options);
    all_options.push_back(param_groups_[g].options().clone());
    all_options.back()->serialize(options);
    static_cast<const FusedOptions&>(*all_options.back()).check(name_);
  }
  state_ = std::move(loaded);
  for (std::size_t g = 0; g < param_groups_.size(); ++g) param_groups_[g].set_options(std::move(all_options[g]));
}

std::map<std::string, at::Tensor> FusedOptimizer::tensors() const {
  finish_work();
  std::map<std::string, at::Tensor> result;
  for_each_parameter(param_groups_, [&](const at::Tensor& parameter, const std::string& key) {
    const auto found = state_.find(parameter.unsafeGetTensorImpl());
    if (found == state_.end()) return;
    const auto& state = static_cast<const FusedState&>(*found->second);
    result[key + ".step"] = at::tensor({state.step}, at::kLong);
    for (const auto& [name, tensor] : state.tensors)
      if (tensor.defined()) result[key + "." + name] = tensor.cpu();
  });
  return result;
}

void FusedOptimizer::load_tensors(const std::map<std::string, at::Tensor>& tensors) {
  finish_work();
  States loaded;
  std::size_t used = 0;
  for_each_parameter(param_groups_, [&](const at::Tensor& parameter, const std::string& key) {
    const std::string prefix = key + ".";
    auto state = std::make_unique<FusedState>();
    auto entry = tensors.lower_bound(prefix);
    const auto first = entry;
    for (; entry != tensors.end() && entry->first.starts_with(prefix); ++entry, ++used) {
      const auto& [full_name, tensor] = *entry;
      const std::string name = full_name.substr(prefix.size());
      if (name != "step") {
        state->tensors[name] = tensor;
        continue;
      }
      TORCH_CHECK(tensor.numel() == 1 && tensor.scalar_type() == at::kLong, name_, ": ", full_name,
                  " is not one int64, but ", tensor.scalar_type(), " of sizes ", tensor.sizes());
      state->step = tensor.item<std::int64_t>();
    }
    if (entry != first) assign_state(std::move(state), parameter, key, loaded);
  });
  TORCH_CHECK(used == tensors.size(), name_, ": ", tensors.size() - used, " of ", tensors.size(),
              " tensors belong to no parameter of the optimizer");
  state_ = std::move(loaded);
}

}  // namespace fp8::runtime::optim
