// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/training/deepspeed_strategy.h"

#include <algorithm>
#include <initializer_list>

#include "fp8/configs/name_patterns.h"
#include "fp8/configs/training/deepspeed_config.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::configs {
namespace {

void require_rows(const io::Json& arguments, const std::string& source, KeyRows rows) {
  const auto problems = key_problems(arguments, io::printable(source, 4096), rows);
  if (!problems.empty()) throw io::Error(problems[0]);
}

DeepSpeedStrategy with_defaults(const DeepSpeedStrategy& s) {
  return with_standards(s.is_null() ? io::Json::object() : s, deepspeed_strategy_keys());
}

io::Json picked(const DeepSpeedStrategy& s, std::initializer_list<const char*> names) {
  io::Json json = io::Json::object();
  for (const char* name : names) json[name] = s.at(name);
  return json;
}

io::Json offload_json(const DeepSpeedStrategy& s, bool parameters) {
  io::Json json = {{"device", s.at(parameters ? "offload_params_device" : "offload_optimizer_device")},
                   {"nvme_path", s.at("nvme_path")},
                   {"buffer_count", s.at(parameters ? "params_buffer_count" : "optimizer_buffer_count")}};
  if (parameters) json.update({{"buffer_size", s.at("params_buffer_size")}, {"max_in_cpu", s.at("max_in_cpu")}});
  json["pin_memory"] = s.at("pin_memory");
  return json;
}

io::Json zero_json(const DeepSpeedStrategy& s) {
  io::Json json = picked(s, {"stage", "contiguous_gradients", "overlap_comm", "allgather_partitions", "reduce_scatter",
                             "allgather_bucket_size", "reduce_bucket_size", "sub_group_size"});
  if (s.at("offload_optimizer") == true) json["offload_optimizer"] = offload_json(s, /*parameters=*/false);
  if (s.at("offload_parameters") == true) json["offload_param"] = offload_json(s, /*parameters=*/true);
  return json;
}

/// A whole number stays one, as Python writes it.
io::Json plain_number(double value) {
  const auto whole = static_cast<std::int64_t>(std::clamp(value, -1e15, 1e15));
  return static_cast<double>(whole) == value ? io::Json(whole) : io::Json(value);
}

}  // namespace

KeyRows deepspeed_strategy_keys() { return deepspeed_table("strategy"); }
KeyRows deepspeed_trainer_keys() { return deepspeed_table("trainer"); }

const std::vector<std::string>& deepspeed_strategy_names() {
  static const std::vector<std::string> names = {"hpu_deepspeed",
                                                 "hpu_deepspeed_stage_1",
                                                 "hpu_deepspeed_stage_2",
                                                 "hpu_deepspeed_stage_3",
                                                 "hpu_deepspeed_stage_2_offload",
                                                 "hpu_deepspeed_stage_3_offload",
                                                 "hpu_deepspeed_stage_3_offload_nvme"};
  return names;
}

DeepSpeedStrategy deepspeed_strategy(const std::string& name) {
  const auto& names = deepspeed_strategy_names();
  if (std::ranges::find(names, name) == names.end())
    io::fail<io::Error>("strategy: found {}, allowed: {}; did you mean '{}'?", io::in_quotes(name), io::joined(names),
                        closest(name, names));
  DeepSpeedStrategy s = with_defaults({});
  const auto stage = name.find("_stage_");
  if (stage == std::string::npos) return s;
  const bool offloads = name.find("_offload") != std::string::npos;
  s["stage"] = name[stage + 7] - '0';
  s["offload_optimizer"] = offloads;
  s["offload_parameters"] = offloads && s["stage"] == 3;
  if (name.ends_with("_nvme")) s["offload_params_device"] = s["offload_optimizer_device"] = "nvme";
  return s;
}

DeepSpeedStrategy parse_deepspeed_strategy(const io::Json& arguments, const std::string& source,
                                           DeepSpeedStrategy start) {
  require_rows(arguments, source, deepspeed_strategy_keys());
  for (const auto& [name, value] : arguments.items()) {
    const bool whole = find_row(deepspeed_strategy_keys(), name)->allowed.type == Allowed::Type::integer;
    start[name] = whole && value.is_number() ? io::Json(static_cast<std::int64_t>(value.get<double>())) : value;
  }
  return start;
}

DeepSpeedTrainer parse_deepspeed_trainer(const io::Json& arguments, const std::string& source) {
  require_rows(arguments, source, deepspeed_trainer_keys());
  const auto number = [&](const char* key, double standard) {
    const io::Json* value = find_value(arguments, key);
    return value != nullptr ? value->get<double>() : standard;
  };
  return {.precision = arguments.value("precision", "32-true"),
          .accumulate_grad_batches = static_cast<std::int64_t>(number("accumulate_grad_batches", 1)),
          .gradient_clip_val = number("gradient_clip_val", 0),
          .batch_size = static_cast<std::int64_t>(number("batch_size", 1))};
}

io::Json deepspeed_json(const DeepSpeedStrategy& strategy) {
  const DeepSpeedStrategy s = with_defaults(strategy);
  io::Json json = io::Json::object();
  if (const io::Json& batch = s.at("logging_batch_size_per_gpu"); batch.is_number())
    json["train_micro_batch_size_per_gpu"] = batch;
  if (s.at("zero_optimization") == true) {
    json["zero_allow_untested_optimizer"] = s.at("zero_allow_untested_optimizer");
    json["zero_optimization"] = zero_json(s);
  }
  json["activation_checkpointing"] = picked(s, {"partition_activations", "cpu_checkpointing",
                                                "contiguous_memory_optimization", "synchronize_checkpoint_boundary"});
  json["aio"] = picked(s, {"block_size", "queue_depth", "single_submit", "overlap_events", "thread_count"});
  return json;
}

void fill_in_deepspeed(io::Json& config, const DeepSpeedStrategy& strategy, const DeepSpeedTrainer& trainer,
                       const std::string& source) {
  const DeepSpeedStrategy s = with_defaults(strategy);
  const std::string where = io::printable(source, 4096);
  if (is_true(config, "autotuning.enabled"))
    io::fail<io::Error>("{}: found true, which HPUDeepSpeedStrategy refuses, allowed: false",
                        key_where(where, "autotuning.enabled"));
  if (config.contains("gradient_accumulation_steps"))
    io::fail<io::Error>("{}: found with reader lightning, allowed: the Trainer's accumulate_grad_batches",
                        key_where(where, "gradient_accumulation_steps"));
  config["gradient_accumulation_steps"] = trainer.accumulate_grad_batches;
  if (!config.contains("train_micro_batch_size_per_gpu")) config["train_micro_batch_size_per_gpu"] = trainer.batch_size;
  if (!config.contains("gradient_clipping")) config["gradient_clipping"] = trainer.gradient_clip_val;
  const bool f16 = trainer.precision.starts_with("16-"), bf16 = trainer.precision.starts_with("bf16-");
  if (f16 && !config.contains("fp16")) {
    config["fp16"] = {{"enabled", true}, {"loss_scale", plain_number(s.at("loss_scale").get<double>())}};
    config["fp16"].update(picked(s, {"initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"}));
  } else if (bf16 && !config.contains("bf16")) {
    config["bf16"] = {{"enabled", true}};
  }
}

}  // namespace fp8::configs
