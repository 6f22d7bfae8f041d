// SPDX-License-Identifier: Apache-2.0
// The rows of deepspeed.json, the optimizers and schedules that DeepSpeed's JSON may name, and what DeepSpeed demands
// of them, of ZeRO, offload and activation checkpointing. To add a key: one row there. Sections that another program's
// documentation describes, or whose contents depend on the model, may hold anything.
#include <iterator>

#include "deepspeed_json.h"
#include "fp8/configs/quant_config_keys.h"
#include "fp8/configs/training/deepspeed_config.h"

namespace fp8::configs {

KeyRows deepspeed_table(const char* name) {
  static const auto& tables = *new io::KeyTables(kDeepspeedJson);
  return tables[name];
}

namespace {

using detail::DeepSpeedFile;

/// A type that "optimizer" or "scheduler" may name.
struct DeepSpeedType {
  const char* name;
  KeyRows params;                          ///< empty: what its constructor takes is not known here
  std::vector<const char*> required = {};  ///< parameters without a default
  bool tested_with_zero = true;            ///< optimizers: ZeRO takes it without zero_allow_untested_optimizer
  bool any_case = false;
};

/// DeepSpeed's own, then torch's, without those that need a closure.
const std::vector<DeepSpeedType>& optimizers() {
  static const std::vector<DeepSpeedType> types = [] {
    std::vector<DeepSpeedType> all = {{"Adam", deepspeed_table("adam")},
                                      {"AdamW", deepspeed_table("adam")},
                                      {"Adagrad", deepspeed_table("adagrad")},
                                      {"Lion", deepspeed_table("lion")}};
    for (const char* name : {"Lamb", "OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam", "MuAdamW", "MuSGD"})
      all.push_back({name, {}, {}, false});
    all.push_back({"Muon", {}});
    for (auto& type : all) type.any_case = true;
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

/// The type that the section names; nullptr if it names none, or one that a message names.
const DeepSpeedType* type_in(const DeepSpeedFile& file, const std::string& section) {
  const io::Json* value = file.find(section);
  if (value == nullptr || !value->is_object()) return nullptr;
  const io::Json* type = find_value(*value, "type");
  if (type == nullptr) {
    if (!value->empty()) file.note(section, "without type nothing comes of it");
    return nullptr;
  }
  if (!type->is_string()) return nullptr;
  const std::string& name = type->get_ref<const std::string&>();
  std::vector<std::string> names;
  for (const DeepSpeedType& known : section == "optimizer" ? optimizers() : schedules()) {
    if (name == known.name || (known.any_case && io::lower(name) == io::lower(std::string(known.name)))) return &known;
    names.emplace_back(known.name);
  }
  file.refuse(section + ".type", io::message("found {}, allowed: {}; did you mean '{}'?", detail::found_text(*type),
                                             io::joined(names), closest(name, names)));
  return nullptr;
}

void check_params(const DeepSpeedFile& file, const std::string& section, const DeepSpeedType& type) {
  const std::string path = section + ".params";
  const io::Json* params = file.find(path);
  const io::Json none = io::Json::object();
  if (params == nullptr) params = &none;
  if (!params->is_object()) return;  // the walk has named it
  if (!type.params.empty())
    std::ranges::move(key_problems(*params, file.source, type.params, path + "."),
                      std::back_inserter(file.findings.problems));
  else if (params->contains("max_grad_norm"))
    file.refuse(path + ".max_grad_norm",
                "found " + detail::found_text((*params)["max_grad_norm"]) +
                    ", allowed: no such key; the optimizer does not clip: gradient_clipping does");
  for (const char* name : type.required)
    if (!params->contains(name)) file.refuse(path + "." + name, std::string("not found, ") + type.name + " needs it");
}

void check_betas(const DeepSpeedFile& file) {
  const io::Json* betas = file.find("optimizer.params.betas");
  if (betas == nullptr || !betas->is_array()) return;
  bool right = betas->size() == 2;
  for (const io::Json& beta : *betas) right = right && beta.is_number() && beta >= 0 && beta < 1;
  if (!right)
    file.refuse("optimizer.params.betas",
                "found " + io::printable(betas->dump(-1, ' ', false, io::Json::error_handler_t::replace), 80) +
                    ", allowed: two numbers from 0, below 1");
}

void check_warmup(const DeepSpeedFile& file) {
  const io::Json* steps = file.find("scheduler.params.warmup_num_steps");
  const io::Json* total = file.find("scheduler.params.total_num_steps");
  if (steps == nullptr || !steps->is_number()) return;
  if (steps->get<double>() < 2) file.note("scheduler.params.warmup_num_steps", "fewer than 2 are 2");
  if (total != nullptr && total->is_number() && total->get<double>() < steps->get<double>())
    file.note("scheduler.params.total_num_steps", "fewer than warmup_num_steps, the rate never decays");
}

void check_offload_section(const DeepSpeedFile& file, const std::string& section) {
  const std::string path = "zero_optimization." + section, device = file.offload_device(section);
  if (device != "cpu" && device != "nvme") return;
  const auto stage = file.stage();
  const std::string found = "found device " + device + file.with_stage() + ", allowed: ";
  if (section == "offload_param" && stage < 3)
    file.refuse(path, found + "stage 3");
  else if (stage < 1)
    file.refuse(path, found + "a stage from 1 to 3");
  else if (device == "nvme" && stage < 3)
    file.refuse(path + ".device", "found \"nvme\"" + file.with_stage() + ", allowed: stage 3");
  if (device != "nvme") return;
  if (file.find(path + ".nvme_path") == nullptr) file.refuse(path + ".nvme_path", "not found, device nvme needs it");
  file.note(path + ".device", "the vendor has not verified offload to nvme on its devices");
}

void check_offload(const DeepSpeedFile& file) {
  check_offload_section(file, "offload_param");
  check_offload_section(file, "offload_optimizer");
  const std::string key = "zero_optimization.offload_optimizer";
  const io::Json* ratio = file.find(key + ".ratio");
  if (ratio != nullptr && ratio->is_number() && ratio->get<double>() < 1 && file.stage() < 3)
    file.refuse(key + ".ratio", "found " + detail::found_text(*ratio) + file.with_stage() + ", allowed: stage 3, or 1");
  const io::Json* force = file.find("zero_force_ds_cpu_optimizer");
  const bool forced = force == nullptr || (force->is_boolean() && force->get<bool>());
  if (file.offload_device("offload_optimizer") != "none" && forced && file.find("optimizer.type") == nullptr)
    file.note(key, "an optimizer of the program must be DeepSpeedCPUAdam, unless zero_force_ds_cpu_optimizer is false");
}

void check_activation_checkpointing(const DeepSpeedFile& file) {
  const std::string path = "activation_checkpointing.contiguous_memory_optimization";
  if (!file.is(path)) return;
  if (!file.is("activation_checkpointing.partition_activations"))
    file.refuse(path, "found true without partition_activations, allowed: with it");
  if (file.find("activation_checkpointing.number_checkpoints") != nullptr) return;
  if (file.is_read_by(DeepSpeedReader::lightning))
    file.refuse(path, "found true without number_checkpoints, which says how large the buffer is, allowed: with it");
  else
    file.note(path, "without number_checkpoints the program must give num_checkpoints");
}

}  // namespace

void DeepSpeedFile::check_types() const {
  if (const auto* type = type_in(*this, "optimizer")) {
    check_params(*this, "optimizer", *type);
    check_betas(*this);
    if (!type->tested_with_zero && stage() > 0 && !is("zero_allow_untested_optimizer"))
      refuse("optimizer.type",
             io::message("found {}{}, allowed: Adam, AdamW, Adagrad, Lion, or zero_allow_untested_optimizer true",
                         found_text(*find("optimizer.type")), with_stage()));
    if (is_read_by(DeepSpeedReader::lightning)) note("optimizer", "the module's own optimizer comes first");
  }
  if (const auto* type = type_in(*this, "scheduler")) {
    check_params(*this, "scheduler", *type);
    check_warmup(*this);
  }
}

void DeepSpeedFile::check_zero() const {
  const io::Json* zero = find("zero_optimization");
  if (zero != nullptr && zero->is_boolean())
    note("zero_optimization", zero->get<bool>() ? "true is stage 1, as an object {\"stage\": 1}"
                                                : "false is stage 0, as an object {\"stage\": 0}");
  check_offload(*this);
  check_activation_checkpointing(*this);
  const io::Json* op = find("gradient_allreduce_op");
  if (op != nullptr && op->is_string() && io::lower(op->get<std::string>()) == "sum" && stage() == 3)
    refuse("gradient_allreduce_op", "found \"sum\" with stage 3, allowed: mean, or a stage from 0 to 2");
}

}  // namespace fp8::configs
