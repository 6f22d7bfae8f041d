// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/training/deepspeed_strategy.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "fp8/configs/name_patterns.h"
#include "fp8/configs/training/deepspeed_keys.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::configs {
namespace {

using Strategy = DeepSpeedStrategy;
using StrategyMember = std::variant<bool Strategy::*, std::int64_t Strategy::*, double Strategy::*,
                                    std::string Strategy::*, std::optional<std::int64_t> Strategy::*>;

const std::vector<std::pair<std::string, StrategyMember>>& strategy_members() {
  static const std::vector<std::pair<std::string, StrategyMember>> members = {
      {"zero_optimization", &Strategy::zero_optimization},
      {"stage", &Strategy::stage},
      {"offload_optimizer", &Strategy::offload_optimizer},
      {"offload_parameters", &Strategy::offload_parameters},
      {"offload_params_device", &Strategy::offload_params_device},
      {"nvme_path", &Strategy::nvme_path},
      {"params_buffer_count", &Strategy::params_buffer_count},
      {"params_buffer_size", &Strategy::params_buffer_size},
      {"max_in_cpu", &Strategy::max_in_cpu},
      {"offload_optimizer_device", &Strategy::offload_optimizer_device},
      {"optimizer_buffer_count", &Strategy::optimizer_buffer_count},
      {"block_size", &Strategy::block_size},
      {"queue_depth", &Strategy::queue_depth},
      {"single_submit", &Strategy::single_submit},
      {"overlap_events", &Strategy::overlap_events},
      {"thread_count", &Strategy::thread_count},
      {"pin_memory", &Strategy::pin_memory},
      {"sub_group_size", &Strategy::sub_group_size},
      {"contiguous_gradients", &Strategy::contiguous_gradients},
      {"overlap_comm", &Strategy::overlap_comm},
      {"allgather_partitions", &Strategy::allgather_partitions},
      {"reduce_scatter", &Strategy::reduce_scatter},
      {"allgather_bucket_size", &Strategy::allgather_bucket_size},
      {"reduce_bucket_size", &Strategy::reduce_bucket_size},
      {"zero_allow_untested_optimizer", &Strategy::zero_allow_untested_optimizer},
      {"logging_batch_size_per_gpu", &Strategy::logging_batch_size_per_gpu},
      {"loss_scale", &Strategy::loss_scale},
      {"initial_scale_power", &Strategy::initial_scale_power},
      {"loss_scale_window", &Strategy::loss_scale_window},
      {"hysteresis", &Strategy::hysteresis},
      {"min_loss_scale", &Strategy::min_loss_scale},
      {"partition_activations", &Strategy::partition_activations},
      {"cpu_checkpointing", &Strategy::cpu_checkpointing},
      {"contiguous_memory_optimization", &Strategy::contiguous_memory_optimization},
      {"synchronize_checkpoint_boundary", &Strategy::synchronize_checkpoint_boundary},
  };
  return members;
}

// Of values that their row allows.
void take(const io::Json& value, bool& to) { to = value.get<bool>(); }
void take(const io::Json& value, std::int64_t& to) { to = static_cast<std::int64_t>(value.get<double>()); }
void take(const io::Json& value, double& to) { to = value.get<double>(); }
void take(const io::Json& value, std::string& to) { to = value.get<std::string>(); }
void take(const io::Json& value, std::optional<std::int64_t>& to) {
  to.reset();
  if (value.is_number()) take(value, to.emplace());
}

void require_rows(const io::Json& arguments, const std::string& source, KeyRows rows) {
  const auto problems = key_problems(arguments, io::printable(source, 4096), rows);
  if (!problems.empty()) throw io::Error(problems[0]);
}

io::Json offload_json(const Strategy& s, bool parameters) {
  io::Json json = {{"device", parameters ? s.offload_params_device : s.offload_optimizer_device},
                   {"nvme_path", s.nvme_path},
                   {"buffer_count", parameters ? s.params_buffer_count : s.optimizer_buffer_count}};
  if (parameters) json.update({{"buffer_size", s.params_buffer_size}, {"max_in_cpu", s.max_in_cpu}});
  json["pin_memory"] = s.pin_memory;
  return json;
}

io::Json zero_json(const Strategy& s) {
  io::Json json = {{"stage", s.stage},
                   {"contiguous_gradients", s.contiguous_gradients},
                   {"overlap_comm", s.overlap_comm},
                   {"allgather_partitions", s.allgather_partitions},
                   {"reduce_scatter", s.reduce_scatter},
                   {"allgather_bucket_size", s.allgather_bucket_size},
                   {"reduce_bucket_size", s.reduce_bucket_size},
                   {"sub_group_size", s.sub_group_size}};
  if (s.offload_optimizer) json["offload_optimizer"] = offload_json(s, /*parameters=*/false);
  if (s.offload_parameters) json["offload_param"] = offload_json(s, /*parameters=*/true);
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
    throw io::Error("strategy: found " + io::in_quotes(name) + ", allowed: " + io::joined(names) + "; did you mean '" +
                    closest(name, names) + "'?");
  DeepSpeedStrategy s;
  const auto stage = name.find("_stage_");
  if (stage == std::string::npos) return s;
  s.stage = name[stage + 7] - '0';
  s.offload_optimizer = name.find("_offload") != std::string::npos;
  s.offload_parameters = s.offload_optimizer && s.stage == 3;
  if (name.ends_with("_nvme")) s.offload_params_device = s.offload_optimizer_device = "nvme";
  return s;
}

DeepSpeedStrategy parse_deepspeed_strategy(const io::Json& arguments, const std::string& source,
                                           DeepSpeedStrategy start) {
  require_rows(arguments, source, deepspeed_table("strategy"));
  for (const auto& [name, member] : strategy_members()) {
    const auto value = arguments.find(name);
    if (value != arguments.end()) std::visit([&](auto m) { take(*value, start.*m); }, member);
  }
  return start;
}

DeepSpeedTrainer parse_deepspeed_trainer(const io::Json& arguments, const std::string& source) {
  require_rows(arguments, source, deepspeed_table("trainer"));
  DeepSpeedTrainer trainer;
  const auto precision = arguments.find("precision");
  if (precision != arguments.end()) take(*precision, trainer.precision);
  const auto number = [&](const char* key, auto& to) {
    const auto value = arguments.find(key);
    if (value != arguments.end() && value->is_number()) take(*value, to);
  };
  number("accumulate_grad_batches", trainer.accumulate_grad_batches);
  number("gradient_clip_val", trainer.gradient_clip_val);
  number("batch_size", trainer.batch_size);
  return trainer;
}

io::Json deepspeed_json(const DeepSpeedStrategy& s) {
  io::Json json = io::Json::object();
  if (s.logging_batch_size_per_gpu) json["train_micro_batch_size_per_gpu"] = *s.logging_batch_size_per_gpu;
  if (s.zero_optimization) {
    json["zero_allow_untested_optimizer"] = s.zero_allow_untested_optimizer;
    json["zero_optimization"] = zero_json(s);
  }
  json["activation_checkpointing"] = {{"partition_activations", s.partition_activations},
                                      {"cpu_checkpointing", s.cpu_checkpointing},
                                      {"contiguous_memory_optimization", s.contiguous_memory_optimization},
                                      {"synchronize_checkpoint_boundary", s.synchronize_checkpoint_boundary}};
  json["aio"] = {{"block_size", s.block_size},
                 {"queue_depth", s.queue_depth},
                 {"single_submit", s.single_submit},
                 {"overlap_events", s.overlap_events},
                 {"thread_count", s.thread_count}};
  return json;
}

void fill_in_deepspeed(io::Json& config, const DeepSpeedStrategy& s, const DeepSpeedTrainer& trainer,
                       const std::string& source) {
  const std::string where = io::printable(source, 4096);
  if (is_true(config, "autotuning.enabled"))
    throw io::Error(key_where(where, "autotuning.enabled") +
                    ": found true, which HPUDeepSpeedStrategy refuses, allowed: false");
  if (config.contains("gradient_accumulation_steps"))
    throw io::Error(key_where(where, "gradient_accumulation_steps") +
                    ": found with reader lightning, allowed: the Trainer's accumulate_grad_batches");
  config["gradient_accumulation_steps"] = trainer.accumulate_grad_batches;
  if (!config.contains("train_micro_batch_size_per_gpu")) config["train_micro_batch_size_per_gpu"] = trainer.batch_size;
  if (!config.contains("gradient_clipping")) config["gradient_clipping"] = trainer.gradient_clip_val;
  const bool f16 = trainer.precision.starts_with("16-"), bf16 = trainer.precision.starts_with("bf16-");
  if (f16 && !config.contains("fp16")) {
    config["fp16"] = {{"enabled", true},
                      {"loss_scale", plain_number(s.loss_scale)},
                      {"initial_scale_power", s.initial_scale_power},
                      {"loss_scale_window", s.loss_scale_window},
                      {"hysteresis", s.hysteresis},
                      {"min_loss_scale", s.min_loss_scale}};
  } else if (bf16 && !config.contains("bf16")) {
    config["bf16"] = {{"enabled", true}};
  }
}

}  // namespace fp8::configs
