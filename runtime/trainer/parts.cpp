// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/parts.h"

#include "fp8/runtime/custom/extension.h"
#include "fp8/runtime/trainer/callbacks/model_checkpoint.h"
#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "fp8/runtime/trainer/callbacks/stochastic_weight_averaging.h"
#include "fp8/runtime/trainer/loggers.h"

namespace fp8::trainer {

const io::Json* PartArguments::find(const std::string& name) {
  known_.insert(name);
  const auto found = part_.init_args.find(name);
  return found == part_.init_args.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t PartArguments::integer(const std::string& name, std::int64_t fallback, std::int64_t low,
                                    std::int64_t high) {
  const io::Json* value = find(name);
  if (value == nullptr) return fallback;
  const bool fits =
      value->is_number_integer() && !(value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX);
  if (!fits || value->get<std::int64_t>() < low || value->get<std::int64_t>() > high)
    fail(name, low == INT64_MIN    ? "an integer"
               : high == INT64_MAX ? "an integer, at least " + std::to_string(low)
                                   : "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  return value->get<std::int64_t>();
}

std::optional<double> PartArguments::number(const std::string& name) {
  const io::Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail(name, "a number");
  return value->get<double>();
}

double PartArguments::number(const std::string& name, double fallback) { return number(name).value_or(fallback); }

bool PartArguments::flag(const std::string& name, bool fallback) {
  const io::Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(name, "true, false");
  return value->get<bool>();
}

std::optional<std::string> PartArguments::text(const std::string& name) {
  const io::Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(name, "a text");
  return value->get<std::string>();
}

std::string PartArguments::text(const std::string& name, const std::string& fallback) {
  return text(name).value_or(fallback);
}

std::optional<std::string> PartArguments::file_name(const std::string& name) {
  auto value = text(name);
  if (value && !io::is_file_name(*value)) fail(name, "a name without '/' that is not '..'");
  return value;
}

std::string PartArguments::choice(const std::string& name, const std::vector<std::string>& allowed,
                                  const std::string& fallback) {
  const io::Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_string() || std::ranges::find(allowed, value->get<std::string>()) == allowed.end())
    fail(name, io::joined(allowed));
  return value->get<std::string>();
}

void PartArguments::only(const std::string& name, const io::Json& only, const std::string& why) {
  const io::Json* value = find(name);
  if (value != nullptr && *value != only) fail(name, (only.is_null() ? "nothing" : only.dump()) + ": " + why);
}

void PartArguments::finish() const {
  for (const auto& [name, value] : part_.init_args.items())
    if (!known_.contains(name)) {
      const std::vector<std::string> names(known_.begin(), known_.end());
      io::fail<io::Error>("{}: found an argument that {} does not have, allowed: {}{}", place(name), part_.class_path,
                          names.empty() ? "none" : io::joined(names),
                          names.empty() ? "" : "; " + io::the_nearest(name, names));
    }
}

void PartArguments::fail(const std::string& name, const std::string& allowed) const {
  io::fail<io::Error>("{}: found {}, allowed: {}", place(name), io::printable(part_.init_args.at(name).dump()),
                      allowed);
}

std::string PartArguments::place(const std::string& name) const {
  const auto found = part_.places.find(name);
  return (found != part_.places.end() ? found->second
          : part_.place.empty()       ? part_.class_path
                                      : part_.place) +
         (found != part_.places.end() ? "" : ": " + name);
}

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

/// The callbacks and loggers that run files know, with Lightning's arguments.
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

/// In messages, and in the list of what an extension adds.
struct Kind {
  const char *what, *listed;
};
template <class T>
constexpr Kind kKind = {"a part", "part"};
template <>
constexpr Kind kKind<TrainerCallback> = {"a callback or logger", "callback"};
template <>
constexpr Kind kKind<TrainingModule> = {"a model", "model"};
template <>
constexpr Kind kKind<DataModule> = {"a data module", "data"};

/// Never destroyed: registrations of libraries end when the process does.
template <class T>
io::Registry<MakePart<T>>& part_table() {
  static auto& table = *[] {
    if constexpr (std::is_same_v<T, TrainerCallback>) return new io::Registry<MakePart<T>>(callback_parts());
    return new io::Registry<MakePart<T>>;
  }();
  return table;
}

template <class T>
MakePart<T> find_part(const std::string& class_path) {
  for (const auto& name : {class_path, own_name(class_path)})
    if (const auto found = part_table<T>().find(name)) return *found;
  return nullptr;
}

/// A module of Python stands in front of it: "my_project.models.Net".
bool is_python(const std::string& class_path) {
  return own_name(class_path) == class_path && class_path.find('.') != std::string::npos;
}

template <class T>
typename io::Registry<MakePart<T>>::Entry entry_of(const std::string& name, MakePart<T> make) {
  const std::string taken = io::message("[PartRegistration] {}: found the name {}, allowed: one that is not taken",
                                        kKind<T>.what, io::in_quotes(name));
  if (name.empty() || make == nullptr) throw std::invalid_argument(taken);
  return {part_table<T>(), name, std::make_shared<const MakePart<T>>(std::move(make)), taken};
}

}  // namespace

template <class T>
PartRegistration<T>::PartRegistration(std::string name, MakePart<T> make)
    : name_(std::move(name)), entry_(entry_of<T>(name_, std::move(make))) {
  runtime::note_part(kKind<T>.listed + (" " + name_), true);
}

template <class T>
PartRegistration<T>::~PartRegistration() {
  runtime::note_part(kKind<T>.listed + (" " + name_), false);
}

template <class T>
std::vector<std::string> part_names() {
  auto names = part_table<T>().names();
  std::ranges::sort(names);
  return names;
}

template <class T>
bool is_part(const std::string& class_path) {
  return find_part<T>(class_path) != nullptr;
}

template <class T>
std::shared_ptr<T> make_part(const Part& part, const PartContext& context) {
  const auto make = find_part<T>(part.class_path);
  if (make == nullptr) {
    const auto names = part_names<T>();
    const std::string found = part.place + ": found " + io::in_quotes(part.class_path) + ", ";
    if (is_python(part.class_path))
      io::fail<io::Error>(
          "{}a class of Python: python your_training.py fit --config FILE runs it (torch there loads "
          "libfp8_runtime.so); allowed here: {}",
          found, names.empty() ? "none" : io::joined(names));
    io::fail<io::Error>("{}which is not {} that is known, allowed: {}", found, kKind<T>.what,
                        names.empty() ? "what a library that --load loads makes known"
                                      : io::joined(names) + "; " + io::the_nearest(own_name(part.class_path), names));
  }
  PartArguments arguments(part, context);
  try {
    auto made = make(arguments);
    arguments.finish();
    return made;
  } catch (const std::invalid_argument& error) {  // of a constructor
    io::fail<io::Error>("{}: {}", part.place, io::raw_message(error));
  }
}

template class PartRegistration<TrainerCallback>;
template class PartRegistration<TrainingModule>;
template class PartRegistration<DataModule>;
template std::vector<std::string> part_names<TrainerCallback>();
template std::vector<std::string> part_names<TrainingModule>();
template std::vector<std::string> part_names<DataModule>();
template bool is_part<TrainerCallback>(const std::string&);
template bool is_part<TrainingModule>(const std::string&);
template bool is_part<DataModule>(const std::string&);
template std::shared_ptr<TrainerCallback> make_part(const Part&, const PartContext&);
template std::shared_ptr<TrainingModule> make_part(const Part&, const PartContext&);
template std::shared_ptr<DataModule> make_part(const Part&, const PartContext&);

}  // namespace fp8::trainer
