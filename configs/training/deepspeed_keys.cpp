// SPDX-License-Identifier: Apache-2.0
// The rows of deepspeed.json, and the optimizers and schedules that DeepSpeed's JSON may name. To add a key: one row
// there. Sections that another program's documentation describes, or whose contents depend on the model, may hold
// anything.
#include "fp8/configs/training/deepspeed_keys.h"

#include "deepspeed_json.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::configs {

KeyRows deepspeed_table(const char* name) {
  static const auto& tables = *new io::KeyTables(kDeepspeedJson);
  return tables[name];
}

namespace {

const std::vector<DeepSpeedType>& optimizers_of_deepspeed() {
  static const std::vector<DeepSpeedType> types = {
      {"Adam", deepspeed_table("adam")},
      {"AdamW", deepspeed_table("adam")},
      {"Adagrad", deepspeed_table("adagrad")},
      {"Lion", deepspeed_table("lion")},
      {"Lamb", {}, {}, false},
      {"OneBitAdam", {}, {}, false},
      {"ZeroOneAdam", {}, {}, false},
      {"OneBitLamb", {}, {}, false},
      {"MuAdam", {}, {}, false},
      {"MuAdamW", {}, {}, false},
      {"MuSGD", {}, {}, false},
      {"Muon", {}, {}, true},
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
    std::vector<DeepSpeedType> all = {{"WarmupLR", deepspeed_table("warmup")},
                                      {"WarmupDecayLR", deepspeed_table("warmup_decay"), {"total_num_steps"}},
                                      {"WarmupCosineLR", deepspeed_table("warmup_cosine"), {"total_num_steps"}},
                                      {"OneCycle", deepspeed_table("one_cycle"), {"cycle_min_lr", "cycle_max_lr"}},
                                      {"LRRangeTest", deepspeed_table("range_test")}};
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
