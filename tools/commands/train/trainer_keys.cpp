// SPDX-License-Identifier: Apache-2.0

#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {
namespace {

struct Reader {
  const RunTree& tree;
  Options& options;
  RunSettings& run;

  std::string key_of(const std::string& name) const { return "trainer." + name; }
  const io::Json* find(const std::string& name) const { return tree.find(key_of(name)); }
  std::string place(const std::string& name) const { return tree.place(key_of(name)); }
  [[noreturn]] void fail(const std::string& name, const std::string& allowed) const {
    io::fail<io::Error>("{}: found {}, allowed: {}", place(name), io::printable(find(name)->dump()), allowed);
  }
  std::int64_t integer(const std::string& name, std::int64_t low) const {
    const io::Json& value = *find(name);
    if (!value.is_number_integer() || value.get<std::int64_t>() < low)
      fail(name, "an integer, at least " + std::to_string(low));
    return value.get<std::int64_t>();
  }
  bool flag(const std::string& name) const {
    if (!find(name)->is_boolean()) fail(name, "true, false");
    return find(name)->get<bool>();
  }
  /// The option of this key.
  void take(const std::string& name, const std::string& text) const {
    options.take(find_key(key_of(name))->flag(), text, place(name));
  }
};

using Take = void (*)(const Reader&, const std::string& name);

/// One key of `trainer:`. A null in a file is what Lightning has without the key, and nothing is taken, but where
/// `null_too` says so.
struct Key {
  const char* name;
  Take take;
  bool null_too = false;
};

template <std::optional<TrainerKeys::Limit> TrainerKeys::*Target>
void limit(const Reader& r, const std::string& name) {
  const io::Json& value = *r.find(name);
  if (value.is_number_integer() && value.get<std::int64_t>() >= 0)
    r.run.trainer.*Target = value.get<std::int64_t>();
  else if (value.is_number_float() && value.get<double>() >= 0 && value.get<double>() <= 1)
    r.run.trainer.*Target = value.get<double>();
  else if (value.is_number_float() && value.get<double>() < 1e9 &&
           std::floor(value.get<double>()) == value.get<double>() && value.get<double>() > 1)
    r.run.trainer.*Target = static_cast<std::int64_t>(value.get<double>());
  else
    r.fail(name, "a number of batches, or a share of them from 0.0 to 1.0");
}
template <std::optional<std::int64_t> TrainerKeys::*Target, std::int64_t kLow>
void count(const Reader& r, const std::string& name) {
  r.run.trainer.*Target = r.integer(name, kLow);
}
template <std::optional<bool> TrainerKeys::*Target>
void boolean(const Reader& r, const std::string& name) {
  r.run.trainer.*Target = r.flag(name);
}

// Keys that are options of the command.
void option(const Reader& r, const std::string& name) { r.take(name, option_text(*r.find(name), r.place(name))); }
void accelerator(const Reader& r, const std::string& name) {
  const std::string word =
      r.find(name)->is_object() ? r.tree.part(r.key_of(name)).class_path : option_text(*r.find(name), r.place(name));
  const std::string last = trainer::own_name(word);
  if (last == "HPUAccelerator" || word == "auto" || word == "hpu") return r.take(name, "hpu");
  if (last == "CPUAccelerator" || word == "cpu") return r.take(name, "cpu");
  r.fail(name, "auto, hpu, cpu");
}
void strategy(const Reader& r, const std::string& name) {
  if (r.find(name)->is_string() && r.find(name)->get<std::string>().find('.') == std::string::npos)
    return r.take(name, option_text(*r.find(name), r.place(name)));
  const auto part = r.tree.part(r.key_of(name));
  const std::string last = trainer::own_name(part.class_path);
  constexpr std::pair<const char*, const char*> kNames[] = {{"SingleHPUStrategy", "hpu_single"},
                                                            {"HPUParallelStrategy", "hpu_parallel"},
                                                            {"HPUDDPStrategy", "hpu_ddp"},
                                                            {"HPUFSDPStrategy", "hpu_fsdp"},
                                                            {"HPUDeepSpeedStrategy", "hpu_deepspeed"}};
  const auto* row = std::ranges::find(kNames, last, [](const auto& pair) { return std::string_view(pair.first); });
  if (row == std::end(kNames)) r.fail(name, "a name, SingleHPUStrategy, HPUParallelStrategy, HPUDDPStrategy");
  r.take(name, row->second);
  for (const auto& [argument, value] : part.init_args.items()) {
    const TrainRow* option_row = find_key("strategy." + argument);
    const std::string place = part.places.at(argument);
    if (value.is_null()) continue;
    if (argument == "process_group_backend" && (value == "hccl" || value == "gloo")) continue;
    if (option_row == nullptr)
      io::fail<io::Error>(
          "{}: found {}, allowed: bucket_cap_mb, gradient_as_bucket_view, static_graph, find_unused_parameters, "
          "process_group_backend hccl",
          place, io::printable(value.dump()));
    r.options.take(option_row->flag(), option_text(value, place), place);
  }
}
void devices(const Reader& r, const std::string& name) {
  const io::Json& value = *r.find(name);
  if (value.is_array()) r.fail(name, "`devices` for `HPUAccelerator` must be int, string or None.");
  r.run.trainer.devices = option_text(value, r.place(name));
  const auto count = parse_integer(r.run.trainer.devices).value_or(0);
  if (r.run.trainer.devices != "auto" && (count < 1 || count > trainer::kMostDevices))
    r.fail(name, "1 to " + std::to_string(trainer::kMostDevices) + ", or auto");
}
void num_nodes(const Reader& r, const std::string& name) { r.run.trainer.num_nodes = r.integer(name, 1); }
void precision(const Reader& r, const std::string& name) {
  if (r.find(name) == nullptr) return r.take(name, "32-true");
  const std::string word = option_text(*r.find(name), r.place(name));
  r.take(name, word == "32" ? "32-true" : word == "bf16" ? "bf16-mixed" : word == "16" ? "16-mixed" : word);
}
void max_steps(const Reader& r, const std::string& name) {
  if (*r.find(name) == -1) return;
  r.run.trainer.max_steps = r.integer(name, 1);
  r.take(name, r.find(name)->dump());
}
void max_epochs(const Reader& r, const std::string& name) {
  if (*r.find(name) == -1) {
    r.run.trainer.max_epochs = -1;
    return;
  }
  r.run.trainer.max_epochs = r.integer(name, 1);
  r.take(name, r.find(name)->dump());
}
void max_time(const Reader& r, const std::string& name) {
  r.take(name, option_text(trainer::seconds_of(*r.find(name), r.place(name)), r.place(name)));
}
void clip(const Reader& r, const std::string& name) {
  r.take(name, r.find(name) == nullptr ? "0" : option_text(*r.find(name), r.place(name)));
}

// Keys of the trainer itself.
void fast_dev_run(const Reader& r, const std::string& name) {
  r.run.trainer.fast_dev_run = r.find(name)->is_boolean() ? std::int64_t{r.flag(name)} : r.integer(name, 0);
}
void deterministic(const Reader& r, const std::string& name) {
  if (!r.find(name)->is_boolean() && *r.find(name) != "warn") r.fail(name, "true, false, warn");
  r.run.trainer.deterministic = option_text(*r.find(name), r.place(name));
}
void every_epoch(const Reader& r, const std::string& name) {
  r.run.trainer.check_val_every_n_epoch = r.find(name) == nullptr ? 0 : r.integer(name, 1);
}
/// Null: the end of each epoch, as Lightning has it. 0 is nothing there.
void val_interval(const Reader& r, const std::string& name) {
  if (r.find(name) == nullptr) {
    r.run.trainer.val_check_interval = 1.0;
    return;
  }
  if (*r.find(name) == 0)
    r.fail(name, "a number of batches, or a share of them above 0.0 (limit_val_batches: 0 validates never)");
  limit<&TrainerKeys::val_check_interval>(r, name);
}
void profiler(const Reader& r, const std::string& name) {
  const auto part = r.tree.part(r.key_of(name));
  const std::string last = trainer::own_name(part.class_path);
  constexpr const char* kAllowed =
      "simple (SimpleProfiler with dirpath, filename, extended), HPUProfiler, PyTorchProfiler with dirpath";
  if (last == "simple" || last == "SimpleProfiler") {
    auto& simple = r.run.trainer.simple_profiler.emplace();
    for (const auto& [argument, value] : part.init_args.items()) {
      const std::string& place = part.places.at(argument);
      if (value.is_null()) continue;
      if (argument == "extended" && value.is_boolean())
        simple.extended = value.get<bool>();
      else if (argument == "dirpath" || argument == "filename")
        (argument == "dirpath" ? simple.dirpath : simple.filename) = option_text(value, place);
      else
        io::fail<io::Error>("{}: found {}, allowed: dirpath, filename, extended", place, io::printable(value.dump()));
    }
    return;
  }
  if (last != "HPUProfiler" && last != "PyTorchProfiler" && last != "hpu" && last != "pytorch") r.fail(name, kAllowed);
  std::string folder = "profile";
  for (const auto& [argument, value] : part.init_args.items()) {
    if (argument == "dirpath")
      folder = option_text(value, part.places.at(argument));
    else if (argument == "schedule")
      r.options.take("--profile-schedule", option_text(value, part.places.at(argument)), part.places.at(argument));
    else if (argument != "filename" && argument != "activities" && argument != "record_module_names")
      io::fail<io::Error>("{}: found {}, allowed: dirpath, schedule", part.places.at(argument),
                          io::printable(value.dump()));
  }
  r.options.take("--profile", folder, r.place(name));
}

void list_of(const Reader& r, const std::string& name, std::vector<trainer::Part>& target) {
  const io::Json& value = *r.find(name);
  if (!value.is_array()) {
    target.push_back(r.tree.part(r.key_of(name)));
    return;
  }
  for (std::size_t i = 0; i < value.size(); ++i)
    target.push_back(r.tree.part(r.key_of(name) + "." + std::to_string(i)));
}
void accumulation_schedule(const Reader& r, const io::Json& value, const auto& fail) {
  for (const auto& [epoch, batches] : value.items()) {
    const auto number = parse_integer(epoch);
    if (!number || *number < 0 || !batches.is_number_integer() || batches < 1) fail();
    r.run.trainer.accumulate_grad_batches[*number] = batches.template get<std::int64_t>();
  }
}
void accumulate(const Reader& r, const std::string& name) {
  const io::Json& value = *r.find(name);
  const auto fail = [&] { r.fail(name, "a number of batches, or {epoch: number}"); };
  if (value.is_number_integer()) return r.take(name, value.dump());
  if (!value.is_object()) fail();
  accumulation_schedule(r, value, fail);
}
/// Lightning's GradientAccumulationScheduler is what accumulate_grad_batches says here.
void callbacks(const Reader& r, const std::string& name) {
  list_of(r, name, r.run.callbacks);
  const auto is_schedule = [](const auto& part) {
    return trainer::own_name(part.class_path) == "GradientAccumulationScheduler";
  };
  for (const auto& part : r.run.callbacks) {
    if (!is_schedule(part)) continue;
    const auto found = part.init_args.find("scheduling");
    const auto fail = [&] {
      io::fail<io::Error>(
          "{}: found {}, allowed: init_args {scheduling: {epoch: batches}}, once, without "
          "trainer.accumulate_grad_batches",
          part.place, io::printable(part.init_args.dump()));
    };
    const io::Json* key = r.find("accumulate_grad_batches");
    const bool twice = !r.run.trainer.accumulate_grad_batches.empty() || (key != nullptr && *key != 1);
    if (twice || found == part.init_args.end() || !found->is_object() || found->empty() || part.init_args.size() != 1)
      fail();
    accumulation_schedule(r, *found, fail);
  }
  std::erase_if(r.run.callbacks, is_schedule);
}
void logger(const Reader& r, const std::string& name) {
  if (r.find(name)->is_boolean()) return;  // log.jsonl is there in any case
  list_of(r, name, r.run.loggers);
}
void plugins(const Reader& r, const std::string& name) {
  std::vector<trainer::Part> parts;
  list_of(r, name, parts);
  for (const auto& part : parts) {
    const std::string last = trainer::own_name(part.class_path);
    if (last == "HPUCheckpointIO" && part.init_args.empty()) continue;  // the writer there is
    if (last != "HPUPrecisionPlugin")
      io::fail<io::Error>("{}: found {}, allowed: HPUPrecisionPlugin, HPUCheckpointIO", part.place,
                          io::in_quotes(part.class_path));
    for (const auto& [argument, value] : part.init_args.items()) {
      const std::string& place = part.places.at(argument);
      if (argument == "device" && (value == "hpu" || value == "cpu")) continue;
      if (value.is_null()) continue;
      if (argument == "keep" && value.is_array()) {
        std::vector<std::string> list;
        for (const auto& pattern : value) list.push_back(option_text(pattern, place));
        r.options.take("--keep", list, place);
      } else if (argument == "precision" || argument == "recipe" || argument == "measurements" || argument == "keep") {
        r.options.take("--" + argument, option_text(value, place), place);
      } else {
        io::fail<io::Error>("{}: found {}, allowed: precision, recipe, keep, measurements, device", place,
                            io::printable(value.dump()));
      }
    }
  }
}

// Keys without an effect here, and those that would mean something else.
void nothing(const Reader&, const std::string&) {}
void not_true(const Reader& r, const std::string& name) {
  if (*r.find(name) != false && *r.find(name) != 0) r.fail(name, "false: there is no such thing here");
}

constexpr Key kKeys[] = {{"accelerator", accelerator},
                         {"strategy", strategy},
                         {"devices", devices},
                         {"num_nodes", num_nodes},
                         {"precision", precision, true},
                         {"logger", logger},
                         {"callbacks", callbacks},
                         {"plugins", plugins},
                         {"profiler", profiler},
                         {"fast_dev_run", fast_dev_run},
                         {"max_epochs", max_epochs},
                         {"min_epochs", not_true},
                         {"max_steps", max_steps},
                         {"min_steps", not_true},
                         {"max_time", max_time},
                         {"limit_train_batches", limit<&TrainerKeys::limit_train_batches>},
                         {"limit_val_batches", limit<&TrainerKeys::limit_val_batches>},
                         {"limit_test_batches", limit<&TrainerKeys::limit_test_batches>},
                         {"limit_predict_batches", limit<&TrainerKeys::limit_predict_batches>},
                         {"overfit_batches", limit<&TrainerKeys::overfit_batches>},
                         {"val_check_interval", val_interval, true},
                         {"check_val_every_n_epoch", every_epoch, true},
                         {"num_sanity_val_steps", count<&TrainerKeys::num_sanity_val_steps, -1>},
                         {"log_every_n_steps", count<&TrainerKeys::log_every_n_steps, 1>},
                         {"enable_checkpointing", boolean<&TrainerKeys::enable_checkpointing>},
                         {"enable_progress_bar", boolean<&TrainerKeys::enable_progress_bar>},
                         {"enable_model_summary", nothing},
                         {"accumulate_grad_batches", accumulate},
                         {"gradient_clip_val", clip, true},
                         {"gradient_clip_algorithm", option},
                         {"deterministic", deterministic},
                         {"benchmark", nothing},
                         {"inference_mode", nothing},
                         {"use_distributed_sampler", boolean<&TrainerKeys::use_distributed_sampler>},
                         {"detect_anomaly", boolean<&TrainerKeys::detect_anomaly>},
                         {"barebones", not_true},
                         {"use_hpu_graphs_for_training", option},
                         {"use_hpu_graphs_for_inference", option},
                         {"use_lazy_mode", option},
                         {"pipelining_fwd_bwd", option},
                         {"non_blocking_data_copy", option},
                         {"sync_batchnorm", not_true},
                         {"reload_dataloaders_every_n_epochs", not_true},
                         {"model_registry", nothing},
                         {"enable_autolog_hparams", nothing},
                         {"default_root_dir", option}};

}  // namespace

void take_trainer(const RunTree& tree, Options& options, RunSettings& run) {
  const io::Json* section = tree.find("trainer");
  if (section == nullptr) return;
  if (!section->is_object())
    io::fail<io::Error>("{}: found {}, allowed: an object", tree.place("trainer"), io::printable(section->dump()));
  const Reader reader{tree, options, run};
  std::vector<std::string> names;
  for (const auto& key : kKeys) names.emplace_back(key.name);
  for (const auto& [name, value] : section->items())
    if (std::ranges::find(names, name) == names.end())
      io::fail<io::Error>("{}: unknown key, {}", tree.place("trainer." + name), io::the_nearest(name, names));
  for (const auto& key : kKeys)  // in this order: a plugin's precision is the later one
    if (section->contains(key.name) && (key.null_too || !section->at(key.name).is_null())) key.take(reader, key.name);
}

}  // namespace fp8::commands
