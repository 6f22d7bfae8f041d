// SPDX-License-Identifier: Apache-2.0
// Optimizers and schedules that DeepSpeed's JSON may name, with their constructors' arguments (see deepspeed_keys.h).
#include <algorithm>
#include <vector>

#include "fp8/configs/training/deepspeed_keys.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::configs {
namespace rows {

constexpr const char* kMaxGradNorm = "the optimizer does not clip: gradient_clipping does";

constexpr KeyRow kAdam[] = {
    {"lr", number(0).or_auto(), read, "learning rate"},
    {"betas", numbers().or_auto(), read, "decay of the two moments"},
    {"eps", number(0).or_auto(), read, "added to the divisor"},
    {"weight_decay", number(0).or_auto(), read, "decay of the weights"},
    {"bias_correction", boolean(), read, "of the first steps"},
    {"amsgrad", boolean(), read, "the largest second moment"},
    {"adam_w_mode", boolean(), read, "true (the default): Adam means AdamW"},
    {"torch_adam", words("true, false, torch_impl"), read, "torch's implementation"},
    {"set_grad_none", boolean(), read, "gradients are dropped, not zeroed"},
    {"fp32_optimizer_states", boolean(), read, "moments in f32"},
    {"fused", boolean(), read, "of torch's implementation"},
    {"foreach", boolean(), read, "of torch's implementation"},
    {"capturable", boolean(), read, "of torch's implementation"},
    {"differentiable", boolean(), read, "of torch's implementation"},
    {"maximize", boolean(), read, "of torch's implementation"},
    {"max_grad_norm", nothing(), refused, kMaxGradNorm},
};
constexpr KeyRow kLion[] = {
    {"lr", number(0).or_auto(), read, "learning rate"},
    {"betas", numbers().or_auto(), read, "decay of the moment"},
    {"eps", number(0).or_auto(), read, "not used"},
    {"weight_decay", number(0).or_auto(), read, "decay of the weights"},
    {"set_grad_none", boolean(), read, "gradients are dropped, not zeroed"},
    {"max_grad_norm", nothing(), refused, kMaxGradNorm},
};
constexpr KeyRow kAdagrad[] = {
    {"lr", number(0).or_auto(), read, "learning rate"},
    {"eps", number(0).or_auto(), read, "added to the divisor"},
    {"weight_decay", number(0).or_auto(), read, "decay of the weights"},
    {"amsgrad", boolean(), read, "not used"},
    {"lr_decay", number(0), read, "decay of the learning rate"},
    {"initial_accumulator_value", number(0), read, "where the sum begins"},
    {"max_grad_norm", nothing(), refused, kMaxGradNorm},
};

constexpr KeyRow kRangeTest[] = {
    {"lr_range_test_min_lr", number(0).or_auto(), read, "where it begins"},
    {"lr_range_test_step_size", integer(1), read, "steps between two rates"},
    {"lr_range_test_step_rate", number(0), read, "growth"},
    {"lr_range_test_staircase", boolean(), read, "in stairs"},
    {"last_batch_iteration", integer(-1), read, "the last step that was done"},
};
constexpr KeyRow kOneCycle[] = {
    {"cycle_min_lr", number(0).or_auto(), read, "lowest rate"},
    {"cycle_max_lr", number(0).or_auto(), read, "highest rate"},
    {"decay_lr_rate", number(0), read, "decay after the cycle"},
    {"cycle_first_step_size", integer(1), read, "steps up"},
    {"cycle_second_step_size", integer(1).or_null(), read, "steps down"},
    {"cycle_first_stair_count", integer(-1), read, "stairs up"},
    {"cycle_second_stair_count", integer(-1).or_null(), read, "stairs down"},
    {"decay_step_size", integer(0), read, "steps between two decays"},
    {"cycle_momentum", boolean(), read, "the momentum cycles too"},
    {"cycle_min_mom", number(0, 1), read, "lowest momentum"},
    {"cycle_max_mom", number(0, 1), read, "highest momentum"},
    {"decay_mom_rate", number(0), read, "decay of the momentum after the cycle"},
    {"last_batch_iteration", integer(-1), read, "the last step that was done"},
};
constexpr KeyRow kWarmup[] = {
    {"warmup_min_lr", number(0).or_auto(), read, "where it begins"},
    {"warmup_max_lr", number(0).or_auto(), read, "where it ends"},
    {"warmup_num_steps", integer(0).or_auto(), read, "steps; fewer than 2 are 2"},
    {"warmup_type", words("log, linear"), read, "form of the rise"},
    {"last_batch_iteration", integer(-1), read, "the last step that was done"},
};
constexpr KeyRow kWarmupDecay[] = {
    {"total_num_steps", integer(1).or_auto(), read, "steps until the rate is 0"},
    {"warmup_min_lr", number(0).or_auto(), read, "where it begins"},
    {"warmup_max_lr", number(0).or_auto(), read, "where the decay begins"},
    {"warmup_num_steps", integer(0).or_auto(), read, "steps; fewer than 2 are 2"},
    {"warmup_type", words("log, linear"), read, "form of the rise"},
    {"last_batch_iteration", integer(-1), read, "the last step that was done"},
};
constexpr KeyRow kWarmupCosine[] = {
    {"total_num_steps", integer(1).or_auto(), read, "steps until the rate is cos_min_ratio"},
    {"warmup_min_ratio", number(0), read, "where it begins, of the optimizer's rate"},
    {"warmup_num_steps", integer(0).or_auto(), read, "steps; fewer than 2 are 2"},
    {"cos_min_ratio", number(0), read, "where it ends, of the optimizer's rate"},
    {"warmup_type", words("log, linear"), read, "form of the rise"},
    {"last_batch_iteration", integer(-1), read, "the last step that was done"},
};

}  // namespace rows

namespace {

const std::vector<DeepSpeedType>& optimizers_of_deepspeed() {
  static const std::vector<DeepSpeedType> types = {
      {"Adam", rows::kAdam},          {"AdamW", rows::kAdam},        {"Adagrad", rows::kAdagrad},
      {"Lion", rows::kLion},          {"Lamb", {}, {}, false},       {"OneBitAdam", {}, {}, false},
      {"ZeroOneAdam", {}, {}, false}, {"OneBitLamb", {}, {}, false}, {"MuAdam", {}, {}, false},
      {"MuAdamW", {}, {}, false},     {"MuSGD", {}, {}, false},      {"Muon", {}, {}, true},
  };
  return types;
}

// Without those that need a closure.
const std::vector<DeepSpeedType>& optimizers_of_torch() {
  static const std::vector<DeepSpeedType> types = [] {
    std::vector<DeepSpeedType> all;
    for (const char* name :
         {"SGD", "RMSprop", "Adadelta", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "Rprop", "SparseAdam"})
      all.push_back({name, {}, {}, false});
    return all;
  }();
  return types;
}

const std::vector<DeepSpeedType>& schedules() {
  static const std::vector<DeepSpeedType> types = [] {
    std::vector<DeepSpeedType> all = {{"WarmupLR", rows::kWarmup},
                                      {"WarmupDecayLR", rows::kWarmupDecay, {"total_num_steps"}},
                                      {"WarmupCosineLR", rows::kWarmupCosine, {"total_num_steps"}},
                                      {"OneCycle", rows::kOneCycle, {"cycle_min_lr", "cycle_max_lr"}},
                                      {"LRRangeTest", rows::kRangeTest}};
    for (const char* name : {"ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR",
                             "ExponentialLR", "LinearLR", "MultiStepLR", "OneCycleLR", "PolynomialLR", "StepLR"})
      all.push_back({name, {}});
    return all;
  }();
  return types;
}

std::vector<std::string> names_of_types(const std::vector<DeepSpeedType>& types) {
  std::vector<std::string> names;
  for (const auto& type : types) names.emplace_back(type.name);
  return names;
}

}  // namespace

const DeepSpeedType* find_deepspeed_optimizer(const std::string& name) {
  for (const auto& type : optimizers_of_deepspeed()) {
    if (io::lower(name) == io::lower(std::string(type.name))) return &type;
  }
  for (const auto& type : optimizers_of_torch()) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

const DeepSpeedType* find_deepspeed_scheduler(const std::string& name) {
  for (const auto& type : schedules()) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

std::vector<std::string> deepspeed_optimizer_names() {
  auto names = names_of_types(optimizers_of_deepspeed());
  for (auto& name : names_of_types(optimizers_of_torch())) names.push_back(std::move(name));
  return names;
}

std::vector<std::string> deepspeed_scheduler_names() { return names_of_types(schedules()); }

}  // namespace fp8::configs
