// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/trainer/checkpoint_io.h"
#include "fp8/tools/commands/train/lr_schedule.h"

namespace fp8::commands {
namespace {

std::string full_path(const std::filesystem::path& path) {
  return path.empty() ? "" : std::filesystem::weakly_canonical(path).string();
}

io::Json full_paths(const text::DataFiles& files) {
  io::Json all = io::Json::array();
  for (const auto& file : files) all.push_back(full_path(file));
  return all;
}

/// Keys that fingerprints and values stand for, and the one that may change.
constexpr const char* kNotCompared[] = {"init", "data", "eval", "recipe", "steps"};

void compare_settings(const std::filesystem::path& file, const io::Json& written, const io::Json& asked) {
  for (const auto& [key, value] : asked.items()) {
    if (std::find(std::begin(kNotCompared), std::end(kNotCompared), key) != std::end(kNotCompared)) continue;
    const auto found = written.find(key);
    if (found == written.end() ? !value.is_null() : *found != value)
      throw io::Error(fmt::format("{}: key '{}': the run was started with {}, --resume found {}, allowed: the same",
                                  file.string(), key, found == written.end() ? "none" : found->dump(), value.dump()));
  }
}

/// Null where nothing was asked for: runs of before had none of it.
io::Json strategy_settings(const TrainOptions& o) {
  const StrategySettings& s = o.ranks;
  io::Json json = io::Json::object();
  if (s.strategy != "auto") json["name"] = s.strategy;
  if (s.gradient_as_bucket_view) json["gradient_as_bucket_view"] = true;
  if (s.find_unused_parameters) json["find_unused_parameters"] = true;
  if (s.static_graph) json["static_graph"] = true;
  if (s.bucket_cap_mb != StrategySettings{}.bucket_cap_mb) json["bucket_cap_mb"] = s.bucket_cap_mb;
  if (s.comm_hook) json["comm_hook"] = name_of(*s.comm_hook);
  if (s.fusion_buffer_dtype) json["fusion_buffer_dtype"] = name_of(*s.fusion_buffer_dtype);
  if (s.reduce_amax != "all") json["reduce_amax"] = s.reduce_amax;
  return json.empty() ? io::Json(nullptr) : json;
}

/// As above. Loggers and the time may change: no number depends on them.
io::Json callback_settings(const CallbackSettings& s) {
  io::Json json = io::Json::object();
  if (s.patience > 0) json["patience"] = s.patience;
  if (s.save_best > 0) json["save_best"] = s.save_best;
  if (s.load_best) json["load_best"] = true;
  if (s.clip_by_value) json["clip_by"] = "value";
  return json.empty() ? io::Json(nullptr) : json;
}

/// As above: keys of a run file that are no options, and decide about numbers.
io::Json run_settings(const RunSettings& run) {
  io::Json json = io::Json::object();
  const auto trainer = run.tree.is_object() ? run.tree.find("trainer") : run.tree.end();
  if (trainer == run.tree.end() || !trainer->is_object()) return nullptr;
  for (const char* key :
       {"limit_train_batches", "limit_val_batches", "overfit_batches", "val_check_interval", "check_val_every_n_epoch",
        "accumulate_grad_batches", "fast_dev_run", "use_distributed_sampler", "callbacks"}) {
    const auto found = trainer->find(key);
    if (found != trainer->end() && !found->is_null()) json[key] = *found;
  }
  // A number of batches is --grad-accum, however it was said.
  if (json.contains("accumulate_grad_batches") && !json["accumulate_grad_batches"].is_object())
    json.erase("accumulate_grad_batches");
  return json.empty() ? io::Json(nullptr) : json;
}

/// As above.
io::Json optimizer_settings(const OptimizerSettings& s) {
  const OptimizerSettings usual;
  io::Json json = io::Json::object();
  if (s.schedule != usual.schedule) json["schedule"] = name_of(s.schedule);
  if (s.warmup > 0 && s.warmup_from != usual.warmup_from) json["warmup_from"] = s.warmup_from;
  if (s.beta1 != usual.beta1) json["beta1"] = s.beta1;
  if (s.beta2 != usual.beta2) json["beta2"] = s.beta2;
  if (s.eps != usual.eps) json["eps"] = s.eps;
  if (s.eps_mode != usual.eps_mode) json["eps_mode"] = name_of(s.eps_mode);
  return json.empty() ? io::Json(nullptr) : json;
}

/// As above.
io::Json autocast_settings(const TrainOptions& o) {
  if (!o.autocast_ops) return nullptr;
  return {{"bf16", o.autocast_ops->bf16}, {"fp32", o.autocast_ops->fp32}};
}

}  // namespace

io::Json train_settings(const TrainOptions& o, const Context& context, const io::Json& more) {
  io::Json json = {
      {"init", full_path(o.init)},
      {"model", full_path(o.model)},
      {"data", o.data.size() == 1 ? io::Json(full_path(o.data[0])) : full_paths(o.data)},
      {"eval", full_path(o.eval)},
      {"steps", o.optimizer.steps},
      {"batch", o.batch},
      {"seq_len", o.seq_len},
      {"grad_accum", o.grad_accum},
      {"optimizer", name_of(o.optimizer.kind)},
      {"lr", o.optimizer.lr},
      {"min_lr", o.optimizer.min_lr},
      {"warmup", o.optimizer.warmup},
      {"weight_decay", o.optimizer.weight_decay},
      {"optimizer_settings", optimizer_settings(o.optimizer)},
      {"clip", o.clip},
      {"precision", o.precision},
      {"recipe", o.precision == "fp8" ? io::Json(o.recipe.empty() ? kDefaultRecipe : o.recipe) : io::Json(nullptr)},
      {"keep", o.keep},
      {"activation_checkpointing", o.activation_checkpointing},
      {"save_dtype", name_of(o.save_dtype)},
      {"non_finite", name_of(o.nonfinite)},
      {"strategy", strategy_settings(o)},
      {"callbacks", callback_settings(o.callbacks)},
      {"run", run_settings(o.run)},
      {"half_precision_backend", o.cpu_amp ? io::Json("cpu_amp") : io::Json(nullptr)},
      {"drop_last", o.drop_last ? io::Json(true) : io::Json(nullptr)},
      {"autocast_ops", autocast_settings(o)},
      {"device", context.device},
      {"seed", context.seed}};
  json.update(more);
  return json;
}

ResumedSteps check_resume(const std::filesystem::path& file, const io::Json& written, const io::Json& asked,
                          const TrainOptions& o) {
  if (!written.is_object() || !written.value("steps", io::Json()).is_number_integer())
    throw io::Error(file.string() + ": is no train.json of fp8 train, expected an object with an integer 'steps'");
  compare_settings(file, written, asked);
  const auto before = written["steps"].get<std::int64_t>(), steps = o.optimizer.steps;
  const auto saved = trainer::checkpoint_steps(o.out / "checkpoints");
  ResumedSteps found{saved.empty() ? 0 : saved.back(), ""};
  if (steps < found.done)
    throw io::Error(fmt::format("{}: key 'steps': {} of {} steps are done, --resume found {}, allowed: {} or more",
                                file.string(), found.done, before, steps, found.done));
  if (steps == before) return found;
  const char* shape = o.optimizer.schedule == OptimizerSettings::Schedule::linear ? "line" : "cosine";
  if (found.done == 0) {
    found.warning =
        fmt::format("--steps: the run was started with {}, and begins with {} since none is done", before, steps);
  } else if (o.optimizer.schedule == OptimizerSettings::Schedule::constant) {
    return found;  // no rate depends on the steps to come
  } else if (steps > found.done) {
    const double rate = o.optimizer.lr * lr_factor(o.optimizer)(found.done);
    found.warning = fmt::format(
        "--steps: the run was started with {}, {} are done, it goes on to {}: the learning rate follows the {} of {} "
        "steps from here on ({:.4g} at step {}), so the result is not that of {} steps from the start",
        before, found.done, steps, shape, steps, rate, found.done + 1, steps);
  } else {
    found.warning = fmt::format(
        "--steps: the run was started with {} and ends after the {} that are done: the learning rate has not come down "
        "its {}",
        before, found.done, shape);
  }
  return found;
}

}  // namespace fp8::commands
