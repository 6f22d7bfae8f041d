// SPDX-License-Identifier: Apache-2.0
// What training arguments demand of each other, and the command that they come to (see gaudi_config.h).
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string_view>

#include "fp8/configs/training/gaudi_config.h"
#include "fp8/runtime/io/base/error.h"

namespace fp8::configs {
namespace {

constexpr const char* kGraphs[] = {"use_hpu_graphs", "use_hpu_graphs_for_training", "use_hpu_graphs_for_inference"};

bool is_false(const io::Json& json, const std::string& key) {
  const io::Json* value = find_value(json, key);
  return value != nullptr && value->is_boolean() && !value->get<bool>();
}

bool is_text(const io::Json& json, const std::string& key, std::string_view text) {
  const io::Json* value = find_value(json, key);
  return value != nullptr && value->is_string() && value->get_ref<const std::string&>() == text;
}

bool on_cpu(const io::Json& json) {
  return is_true(json, "use_cpu") || is_true(json, "no_cuda") || is_false(json, "use_habana");
}

/// What GaudiTrainingArguments itself refuses.
void check_gaudi_rules(const io::Json& json, const std::string& source, Findings& found) {
  std::vector<std::string> graphs;
  for (const char* key : kGraphs) {
    if (is_true(json, key)) graphs.emplace_back(key);
  }
  const auto refuse = [&](const std::string& key, const std::string& what) {
    found.problems.push_back(key_where(source, key) + ": " + what);
  };
  std::vector<std::string> needs_device = graphs;
  if (is_true(json, "use_lazy_mode")) needs_device.emplace_back("use_lazy_mode");
  if (find_value(json, "gaudi_config_name") != nullptr) needs_device.emplace_back("gaudi_config_name");
  if (!is_true(json, "use_habana")) {
    for (const auto& key : needs_device) refuse(key, "found without use_habana, allowed: use_habana true");
  }
  if (!graphs.empty() && is_false(json, "use_lazy_mode") && find_value(json, "torch_compile_backend") == nullptr)
    refuse(graphs[0], "found true with use_lazy_mode false, allowed: use_lazy_mode true, or torch_compile_backend");
  if (graphs.empty() && is_true(json, "disable_tensor_cache_hpu_graphs"))
    refuse("disable_tensor_cache_hpu_graphs",
           "found true without graphs, allowed: with use_hpu_graphs_for_training or "
           "use_hpu_graphs_for_inference");
  if (graphs.empty() && find_value(json, "max_hpu_graphs") != nullptr)
    refuse("max_hpu_graphs",
           "found without graphs, allowed: with use_hpu_graphs_for_training or use_hpu_graphs_for_inference");
}

/// What fp8 train cannot do as it is asked.
void check_train_rules(const io::Json& json, const std::string& source, Findings& found) {
  if (find_value(json, "num_train_epochs") != nullptr && find_value(json, "max_steps") == nullptr)
    found.problems.push_back(key_where(source, "num_train_epochs") +
                             ": found without max_steps, allowed: max_steps; fp8 train counts optimizer steps");
  if (is_text(json, "half_precision_backend", "cpu_amp") && !on_cpu(json))
    found.problems.push_back(key_where(source, "half_precision_backend") +
                             ": found \"cpu_amp\" with the model on hpu, allowed: hpu_amp, or use_cpu true");
  if (is_true(json, "ddp_static_graph") && is_true(json, "ddp_find_unused_parameters"))
    found.problems.push_back(key_where(source, "ddp_static_graph") +
                             ": found true beside ddp_find_unused_parameters true, allowed: one of the two");
  if (is_true(json, "use_habana") && (is_true(json, "use_cpu") || is_true(json, "no_cuda")))
    found.problems.push_back(key_where(source, is_true(json, "use_cpu") ? "use_cpu" : "no_cuda") +
                             ": found true beside use_habana true, allowed: one of the two");
  if (json.empty()) return;
  std::string absent;
  for (const auto& [key, text] :
       {std::pair("learning_rate", "learning_rate 1e-3 (transformers: 5e-5)"),
        std::pair("weight_decay", "weight_decay 0.1 (0)"), std::pair("per_device_train_batch_size", "batch 16 (8)"),
        std::pair("lr_scheduler_type", "a cosine (a line)"), std::pair("seed", "seed 0 (42)"),
        std::pair("max_steps", "1000 steps (3 epochs)")}) {
    if (find_value(json, key) == nullptr) absent += (absent.empty() ? "" : ", ") + std::string(text);
  }
  if (!absent.empty()) found.notes.push_back(source + ": keys that are absent have fp8 train's defaults: " + absent);
}

void append(std::vector<std::string>& arguments, std::initializer_list<std::string> more) {
  arguments.insert(arguments.end(), more);
}

std::string argument_text(const io::Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number == std::floor(number) && std::abs(number) < 1e15)
      return std::to_string(static_cast<std::int64_t>(number));
  }
  return value.dump();
}

/// Those whose flag says it all.
void add_flags(const io::Json& json, std::vector<std::string>& arguments) {
  for (const KeyMeaning& meaning : key_meanings(json, training_argument_keys())) {
    const std::string_view flag = meaning.row->flag;
    const io::Json* value = find_value(json, meaning.key);
    if (flag.empty() || flag.starts_with("--precision") || flag.starts_with("--device") || value == nullptr) continue;
    if (value->is_boolean()) {
      const bool there = std::ranges::find(arguments, flag) != arguments.end();  // by another name of the key
      if (value->get<bool>() && !there) arguments.emplace_back(flag);
    } else {
      append(arguments, {std::string(flag), argument_text(*value)});
    }
  }
}

/// Those whose effect depends on another.
void add_conditional(const io::Json& json, std::vector<std::string>& arguments) {
  const auto add = [&](const char* flag, const char* key) {
    if (const io::Json* value = find_value(json, key)) append(arguments, {flag, argument_text(*value)});
  };
  if (is_text(json, "optim", "muon")) append(arguments, {"--optimizer", "muon"});
  if (is_text(json, "eval_strategy", "steps") || is_text(json, "evaluation_strategy", "steps")) {
    append(arguments, {"--eval", "<text>"});
    add("--eval-every", "eval_steps");
    add("--eval-batch", "per_device_eval_batch_size");
  }
  if (is_text(json, "save_strategy", "steps")) add("--save-every", "save_steps");
  if (is_text(json, "distribution_strategy", "fast_ddp")) {
    append(arguments, {"--strategy", "fast_ddp"});
  } else if (is_text(json, "distribution_strategy", "ddp") || find_value(json, "ddp_bucket_cap_mb") != nullptr ||
             is_true(json, "ddp_find_unused_parameters") || is_true(json, "ddp_static_graph")) {
    append(arguments, {"--strategy", "hpu_ddp"});
    add("--bucket-cap-mb", "ddp_bucket_cap_mb");
    if (is_true(json, "ddp_find_unused_parameters")) append(arguments, {"--find-unused-parameters"});
    if (is_true(json, "ddp_static_graph")) append(arguments, {"--static-graph"});
  }
  const io::Json* steps = find_value(json, "profiling_steps");
  if (steps != nullptr && *steps > 0) {
    const io::Json* warmup = find_value(json, "profiling_warmup_steps");
    append(arguments, {"--profile", "<folder>", "--profile-schedule",
                       "0," + (warmup != nullptr ? argument_text(*warmup) : "0") + "," + argument_text(*steps) + ",1"});
  }
}

}  // namespace

Findings check_training_arguments(const io::Json& json, const std::string& source) {
  const std::string where = io::printable(source, 4096);
  Findings found;
  found.problems = key_problems(json, where, training_argument_keys());
  if (!json.is_object()) return found;
  check_gaudi_rules(json, where, found);
  check_train_rules(json, where, found);
  return found;
}

TrainCommand training_arguments_command(const io::Json& json) {
  TrainCommand command;
  const char* precision = is_true(json, "fp8") ? "fp8" : is_true(json, "bf16") ? "bf16-mixed" : "32-true";
  command.arguments = {"--precision", precision};
  if (on_cpu(json)) append(command.arguments, {"--device", "cpu"});
  add_flags(json, command.arguments);
  add_conditional(json, command.arguments);
  if (is_true(json, "minimize_memory")) command.variables.emplace_back("PT_HPU_FP8_MINIMIZE_MEMORY", "1");
  return command;
}

}  // namespace fp8::configs
