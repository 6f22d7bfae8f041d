// SPDX-License-Identifier: Apache-2.0
// The callbacks and loggers that run files know, with Lightning's arguments.
#include <limits>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/trainer/callbacks/model_checkpoint.h"
#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "fp8/runtime/trainer/callbacks/stochastic_weight_averaging.h"
#include "fp8/runtime/trainer/loggers.h"
#include "fp8/runtime/trainer/parts.h"

namespace fp8::trainer {
namespace {

using Made = std::shared_ptr<TrainerCallback>;

class Nothing : public TrainerCallback {};

MonitorMode mode_of(PartArguments& a) {
  return a.choice("mode", {"min", "max"}, "min") == "min" ? MonitorMode::min : MonitorMode::max;
}

Made early_stopping(PartArguments& a) {
  EarlyStoppingOptions o;
  const auto monitor = a.text("monitor");
  if (!monitor) io::fail<io::Error>("{}: is required", a.place("monitor"));
  o.monitor = *monitor;
  o.min_delta = a.number("min_delta", 0);
  o.patience = a.integer("patience", 3, 0);
  o.mode = mode_of(a);
  o.strict = a.flag("strict", true);
  o.check_finite = a.flag("check_finite", true);
  o.stopping_threshold = a.number("stopping_threshold");
  o.divergence_threshold = a.number("divergence_threshold");
  a.accept("verbose");
  a.accept("log_rank_zero_only");
  a.only("check_on_train_epoch_end", false, "it looks after each validation, or epoch where there is none");
  return std::make_shared<EarlyStopping>(o);
}

Made model_checkpoint(PartArguments& a) {
  ModelCheckpointOptions o;
  o.dirpath = a.text("dirpath", (a.context().root / "best").string());
  o.filename = a.text("filename", o.filename);
  o.auto_insert_metric_name = a.flag("auto_insert_metric_name", true);
  o.monitor = a.text("monitor");
  o.mode = mode_of(a);
  o.save_top_k = a.integer("save_top_k", 1, -1);
  o.save_last = a.flag("save_last", false);
  o.every_n_train_steps = a.integer("every_n_train_steps", 0, 0);
  o.every_n_epochs = a.integer("every_n_epochs", 1, 1);
  if (o.every_n_train_steps > 0 && a.find("every_n_epochs") != nullptr)
    a.fail("every_n_epochs", "nothing beside every_n_train_steps");
  a.accept("verbose");
  a.only("save_weights_only", false,
         "a checkpoint has all that training goes on with, the weights as a file of their own");
  a.only("train_time_interval", nullptr, "every_n_train_steps has an effect");
  a.only("save_on_train_epoch_end", nullptr, "it saves after each validation, or epoch where there is none");
  a.only("enable_version_counter", true, "a folder that is there is never overwritten by another run");
  return std::make_shared<ModelCheckpoint>(std::move(o));
}

Made learning_rate_monitor(PartArguments& a) {
  const bool epoch = a.choice("logging_interval", {"step", "epoch"}, "step") == "epoch";
  a.only("log_momentum", false, "rates alone are logged");
  a.only("log_weight_decay", false, "rates alone are logged");
  return std::make_shared<LearningRateMonitor>(epoch ? ScheduleInterval::epoch : ScheduleInterval::step);
}

Made gradient_norms(PartArguments& a) {
  const io::Json* type = a.find("norm_type");
  const bool largest = type != nullptr && type->is_string() && *type == "inf";
  return std::make_shared<GradientNorms>(largest ? std::numeric_limits<double>::infinity() : a.number("norm_type", 2));
}

Made device_stats_monitor(PartArguments& a) {
  a.only("cpu_stats", false, "the device's statistics alone are logged");
  if (!a.context().device.is_hpu())
    io::fail<io::Error>("{}: the run is on the CPU, which has no such statistics", a.place("device"));
  return std::make_shared<DeviceStatsMonitor>(a.context().device.has_index() ? a.context().device.index() : 0);
}

Made memory_log(PartArguments& a) {
  MemoryLogOptions o;
  o.logging_steps = a.integer("logging_steps", kLoggingSteps, 1);
  return std::make_shared<MemoryLog>(std::move(o));
}

Made stochastic_weight_averaging(PartArguments& a) {
  StochasticWeightAveragingOptions o;
  const io::Json* rates = a.find("swa_lrs");
  if (rates != nullptr && rates->is_array())
    for (const auto& rate : *rates) o.swa_lrs.push_back(rate.is_number() ? rate.get<double>() : -1);
  else
    o.swa_lrs.push_back(a.number("swa_lrs", -1));  // the constructor says what is allowed
  const io::Json* start = a.find("swa_epoch_start");
  if (start != nullptr && start->is_number_integer())
    o.swa_epoch_start = a.integer("swa_epoch_start", 1);
  else
    o.swa_epoch_start = a.number("swa_epoch_start", 0.8);
  o.annealing_epochs = a.integer("annealing_epochs", 10, 0);
  if (a.choice("annealing_strategy", {"cos", "linear"}, "cos") == "linear")
    o.annealing_strategy = AnnealingStrategy::linear;
  o.ema_decay = a.number("ema_decay");
  a.accept("device");
  a.only("avg_fn", nullptr, "an equal mean, or ema_decay");
  return std::make_shared<StochasticWeightAveraging>(std::move(o));
}

Made timer(PartArguments& a) {
  const io::Json* duration = a.find("duration");
  const bool epoch = a.choice("interval", {"step", "epoch"}, "step") == "epoch";
  a.accept("verbose");
  return std::make_shared<Timer>(
      duration != nullptr ? std::optional(seconds_of(*duration, a.place("duration"))) : std::nullopt,
      epoch ? ScheduleInterval::epoch : ScheduleInterval::step);
}

Made throughput_monitor(PartArguments& a) {
  for (const char* name : {"batch_size_fn", "length_fn"})
    a.only(name, nullptr, "batches say how many samples and tokens they have");
  a.only("available_flops", nullptr, "operations are not counted");
  return std::make_shared<ThroughputMonitor>(a.integer("window_size", 100, 2), a.text("separator", "/"));
}

Made on_exception_checkpoint(PartArguments& a) {
  const auto dirpath = a.text("dirpath");
  if (!dirpath) io::fail<io::Error>("{}: is required", a.place("dirpath"));
  return std::make_shared<OnExceptionCheckpoint>(*dirpath, a.file_name("filename").value_or("on_exception"));
}

Made throughput_rows(PartArguments&) { return std::make_shared<ThroughputRows>(); }

/// save_dir, name and version, as Lightning's loggers put them together; without name: save_dir itself.
std::filesystem::path folder_of(PartArguments& a) {
  std::filesystem::path folder = a.text("save_dir", a.context().root.string());
  if (const io::Json* name = a.find("name"); name != nullptr && *name != "") folder /= *a.file_name("name");
  const io::Json* version = a.find("version");
  if (version == nullptr) return folder;
  if (*version == "") return folder;
  if (version->is_string()) return folder / *a.file_name("version");
  return folder / ("version_" + std::to_string(a.integer("version", 0, 0)));
}

Made csv_logger(PartArguments& a) {
  const auto folder = folder_of(a);
  a.accept("flush_logs_every_n_steps");
  a.only("prefix", "", "names are as they are logged");
  if (a.context().checks_only) return std::make_shared<Nothing>();
  std::filesystem::create_directories(folder);
  return std::make_shared<CsvLogger>(folder / "metrics.csv");
}

Made tensorboard_logger(PartArguments& a) {
  const auto folder = folder_of(a);
  a.only("log_graph", false, "numbers alone are logged");
  a.only("default_hp_metric", true, "numbers alone are logged");
  a.only("prefix", "", "names are as they are logged");
  a.only("sub_dir", nullptr, "save_dir, name and version have an effect");
  if (a.context().checks_only) return std::make_shared<Nothing>();
  return std::make_shared<TensorBoardLogger>(folder == a.context().root ? folder / "tensorboard" : folder);
}

Made jsonl_logger(PartArguments& a) {
  const auto folder = folder_of(a);
  const std::string name = a.file_name("filename").value_or("metrics.jsonl");
  if (a.context().checks_only) return std::make_shared<Nothing>();
  std::filesystem::create_directories(folder);
  return std::make_shared<JsonlLogger>(folder / name);
}

/// The command draws a progress bar by itself, on a terminal.
Made progress_bar(PartArguments& a) {
  for (const char* name : {"refresh_rate", "process_position", "leave", "theme", "console_kwargs"}) a.accept(name);
  return std::make_shared<Nothing>();
}
Made model_summary(PartArguments& a) {
  a.accept("max_depth");
  return std::make_shared<Nothing>();
}

}  // namespace

std::map<std::string, MakePart<TrainerCallback>> callback_parts() {
  return {{"EarlyStopping", early_stopping},
          {"ModelCheckpoint", model_checkpoint},
          {"LearningRateMonitor", learning_rate_monitor},
          {"GradientNorms", gradient_norms},
          {"DeviceStatsMonitor", device_stats_monitor},
          {"MemoryLog", memory_log},
          {"StochasticWeightAveraging", stochastic_weight_averaging},
          {"Timer", timer},
          {"ThroughputMonitor", throughput_monitor},
          {"OnExceptionCheckpoint", on_exception_checkpoint},
          {"ThroughputRows", throughput_rows},
          {"CSVLogger", csv_logger},
          {"TensorBoardLogger", tensorboard_logger},
          {"JsonlLogger", jsonl_logger},
          {"TQDMProgressBar", progress_bar},
          {"RichProgressBar", progress_bar},
          {"ProgressBar", progress_bar},
          {"ModelSummary", model_summary},
          {"RichModelSummary", model_summary}};
}

}  // namespace fp8::trainer
