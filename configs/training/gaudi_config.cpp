// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/training/gaudi_config.h"

#include <deque>

#include "fp8/configs/quant_config_keys.h"
#include "optimum_json.h"

namespace fp8::configs {

namespace training {
namespace {

bool is_false(const io::Json& json, const std::string& path) {
  const io::Json* value = find_value(json, path);
  return value != nullptr && value->is_boolean() && !value->get<bool>();
}

/// Absent: 0.
double number_of(const io::Json& json, const std::string& path) {
  const io::Json* value = find_value(json, path);
  return value != nullptr && value->is_number() ? value->get<double>() : 0;
}

/// eval_strategy by either of its names: "no", "steps", "epoch".
std::string eval_strategy(const io::Json& arguments) {
  for (const char* key : {"eval_strategy", "evaluation_strategy"})
    if (const auto found = text_of(arguments, key); !found.empty()) return found;
  return "no";
}

/// The names of report_to, a string or an array of them.
std::vector<std::string> reports_to(const io::Json& arguments) {
  const io::Json* value = find_value(arguments, "report_to");
  std::vector<std::string> names;
  if (value == nullptr) return names;
  if (value->is_string()) names.push_back(value->get<std::string>());
  if (value->is_array())
    for (const io::Json& name : *value)
      if (name.is_string()) names.push_back(name.get<std::string>());
  return names;
}

}  // namespace

std::string text_of(const io::Json& json, const std::string& path) {
  const io::Json* value = find_value(json, path);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

bool on_cpu(const io::Json& arguments) {
  return is_true(arguments, "use_cpu") || is_true(arguments, "no_cuda") || is_false(arguments, "use_habana");
}

}  // namespace training

namespace {

constexpr const char* kLowerOps = "autocast_bf16_ops";
constexpr const char* kFp32Ops = "autocast_fp32_ops";

/// The rows with the flags in their notes; their texts stay for good.
std::vector<KeyRow> with_flags(KeyRows rows) {
  static std::deque<std::string> notes;
  std::vector<KeyRow> all(rows.begin(), rows.end());
  for (KeyRow& row : all) {
    std::string note;
    for (std::string_view rest = row.note; !rest.empty();) {
      const auto open = rest.find('{'), close = rest.find('}', std::min(open, rest.size()));
      note += rest.substr(0, open);
      if (close == std::string_view::npos) break;
      note += flag_of(rest.substr(open + 1, close - open - 1));
      rest.remove_prefix(close + 1);
    }
    row.note = notes.emplace_back(std::move(note)).c_str();
  }
  return all;
}

std::vector<KeyRow> optimum_table(const char* name) {
  static const auto& tables = *new io::KeyTables(kOptimumJson);
  return with_flags(tables[name]);
}

constexpr const char* kGraphs[] = {"use_hpu_graphs", "use_hpu_graphs_for_training", "use_hpu_graphs_for_inference"};

/// "found true": a key that stands in the file.
std::string found(const io::Json& json, const std::string& key) {
  return "found " + detail::found_text(*find_value(json, key));
}

/// The rules of training arguments that concern several keys.
struct Rules : KeyRules {
  const io::Json all = with_standards(json, training_argument_keys());  ///< with defaults

  /// Refusals of GaudiTrainingArguments itself.
  void gaudi() {
    std::vector<std::string> graphs;
    for (const char* key : kGraphs)
      if (is(key)) graphs.emplace_back(key);
    std::vector<std::string> needs_device = graphs;
    if (is("use_lazy_mode")) needs_device.emplace_back("use_lazy_mode");
    if (find("gaudi_config_name") != nullptr) needs_device.emplace_back("gaudi_config_name");
    if (!is("use_habana"))
      for (const auto& key : needs_device) refuse(key, "found without use_habana, allowed: use_habana true");
    if (!graphs.empty() && training::is_false(json, "use_lazy_mode") && find("torch_compile_backend") == nullptr)
      refuse(graphs[0], "found true with use_lazy_mode false, allowed: use_lazy_mode true, or torch_compile_backend");
    if (is("pipelining_fwd_bwd") && !is("use_lazy_mode"))
      refuse("pipelining_fwd_bwd", "found true without use_lazy_mode, allowed: use_lazy_mode true");
    const std::string of_graphs = "allowed: with use_hpu_graphs_for_training or use_hpu_graphs_for_inference";
    if (graphs.empty() && is("disable_tensor_cache_hpu_graphs"))
      refuse("disable_tensor_cache_hpu_graphs", "found true without graphs, " + of_graphs);
    if (graphs.empty() && find("max_hpu_graphs") != nullptr)
      refuse("max_hpu_graphs", "found without graphs, " + of_graphs);
  }

  /// Refusals of transformers' TrainingArguments, of keys that have an effect.
  void transformers() {
    const std::string type = training::text_of(all, "lr_scheduler_type");
    const io::Json* min_lr = find_value(all, "lr_scheduler_kwargs.min_lr");
    if (type == "cosine_with_min_lr" && min_lr == nullptr)
      refuse("lr_scheduler_type", found(json, "lr_scheduler_type") + ", allowed: with lr_scheduler_kwargs.min_lr");
    if (type != "cosine_with_min_lr" && min_lr != nullptr)
      refuse("lr_scheduler_kwargs.min_lr",
             "found with lr_scheduler_type \"" + type + "\", allowed: lr_scheduler_type cosine_with_min_lr");
    if (training::number_of(all, "max_steps") == 0)  // no version makes none: one step, or num_train_epochs
      refuse("max_steps", "found 0, allowed: 1 or more, or -1, where num_train_epochs counts");
    const double warmup = training::number_of(all, "warmup_steps");
    if (warmup > 1 && warmup != std::floor(warmup))
      refuse("warmup_steps", found(json, "warmup_steps") + ", allowed: an integer, or a share of all steps below 1");
    if (training::number_of(all, "dataloader_num_workers") == 0 &&
        find_value(all, "dataloader_prefetch_factor") != nullptr)
      refuse("dataloader_prefetch_factor",
             "found without dataloader_num_workers, allowed: dataloader_num_workers above 0");
    const std::string evaluates = training::eval_strategy(json), saves = training::text_of(all, "save_strategy");
    if (saves == "best" && evaluates == "no")
      refuse("save_strategy", "found \"best\" without eval_strategy, allowed: eval_strategy steps or epoch");
    else if (saves == "best" && !is("load_best_model_at_end") &&
             training::text_of(json, "metric_for_best_model").empty())
      refuse("save_strategy", "found \"best\", allowed: with metric_for_best_model, or load_best_model_at_end");
    if (!is("load_best_model_at_end") || saves == "best") return;
    if (evaluates != saves)
      return refuse(
          "load_best_model_at_end",
          io::message("found true with eval_strategy {} and save_strategy {}, allowed: the same, or save_strategy best",
                      evaluates, saves));
    const double every =
        training::number_of(all, find_value(all, "eval_steps") != nullptr ? "eval_steps" : "logging_steps");
    if (saves == "steps" && every > 0 && std::fmod(training::number_of(all, "save_steps"), every) != 0)
      refuse("load_best_model_at_end", "found true with save_steps that are no multiple of eval_steps");
  }

  /// Refusals of fp8 train.
  void train() {
    const bool cpu = training::on_cpu(json);
    if (training::text_of(json, "half_precision_backend") == "cpu_amp" && !cpu)
      refuse("half_precision_backend", "found \"cpu_amp\" with the model on hpu, allowed: hpu_amp, or use_cpu true");
    if (cpu && is("fp8")) refuse("fp8", "found true with the model on the CPU, allowed: false");
    if (cpu && is("bf16") && training::text_of(json, "half_precision_backend") != "cpu_amp")
      refuse(
          "bf16",
          "found true with the model on the CPU, which hpu_amp leaves in f32, allowed: half_precision_backend cpu_amp");
    exclude("ddp_static_graph", "ddp_find_unused_parameters");
    exclude("use_cpu", "use_habana");
    exclude("no_cuda", "use_habana");
    if (training::text_of(all, "save_strategy") == "best" || is("load_best_model_at_end")) best();
    if (training::number_of(all, "max_grad_norm") > 1e30)
      refuse("max_grad_norm", found(json, "max_grad_norm") + ", allowed: at most 1e30");
  }

  void notes() {
    for (const auto& name : training::reports_to(json))
      if (name != "tensorboard" && name != "none" && name != "all")
        note("report_to",
             "found " + io::in_quotes(name) + ", where nothing is sent; log.jsonl has a line for each step");
  }

 private:
  void exclude(const char* key, const char* other) {
    if (is(key) && is(other)) refuse(key, std::string("found true beside ") + other + " true, allowed: one of the two");
  }
  void best() {
    const std::string metric = training::text_of(json, "metric_for_best_model");
    if (!metric.empty() && metric != "loss" && metric != "eval_loss")
      refuse("metric_for_best_model", "found " + io::in_quotes(metric) + ", allowed: loss, eval_loss, null");
    if (is("greater_is_better"))
      refuse("greater_is_better", "found true, allowed: false, null; the lower loss is the better one");
  }
};

/// Optimum's own (its GaudiTERecipeKwargs), which differs from DelayedScaling's defaults.
constexpr const char* kOptimumRecipe =
    R"({"recipe": "delayed", "preset": "habana-hybrid", "interval": 16, "reduce_amax": false})";
constexpr const char* kProfileFolder = "hpu_profile";

std::string argument_text(const io::Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number == std::floor(number) && std::abs(number) < 1e15)
      return std::to_string(static_cast<std::int64_t>(number));
  }
  return value.dump();
}

/// The command that training arguments come to.
struct Command {
  const io::Json& json;
  TrainCommand& out;
  const io::Json all = with_standards(json, training_argument_keys());  ///< with defaults

  void precision() {
    if (is_true(json, "fp8")) {
      add("precision", "fp8", "fp8");
      add("recipe", kOptimumRecipe, "fp8");
    } else {
      add("precision", is_true(json, "bf16") ? "bf16-mixed" : "32-true", "bf16");
    }
    if (!training::on_cpu(json)) return;
    const char* key = is_true(json, "use_cpu") ? "use_cpu" : is_true(json, "no_cuda") ? "no_cuda" : "use_habana";
    add("device", "cpu", key);
    if (is_true(json, "bf16")) add("half_precision_backend", "cpu_amp", "half_precision_backend");
  }

  /// Those that are an option, whose value is the key's.
  void flags() {
    for (const KeyMeaning& meaning : key_meanings(all, training_argument_keys())) {
      const std::string option = meaning.row->flag;
      const io::Json* value = find_value(all, meaning.key);
      if (option.empty() || option.find(' ') != std::string::npos || value == nullptr) continue;
      if (!value->is_boolean())
        add(option, argument_text(*value), meaning.key);
      else if (value->get<bool>())
        add_flag(option, meaning.key);
    }
  }

  void length() {
    if (training::number_of(all, "max_steps") > 0)
      add_value("steps", "max_steps");
    else
      add_value("epochs", "num_train_epochs");
    if (training::text_of(all, "optim") == "muon") add("optimizer", "muon", "optim");
  }

  void schedule() {
    const std::string type = training::text_of(all, "lr_scheduler_type"), key = "lr_scheduler_type";
    const bool constant = type.starts_with("constant");
    add("schedule", type == "linear" ? "linear" : constant ? "constant" : "cosine", key);
    if (type == "constant") return;
    const double warmup = training::number_of(all, "warmup_steps");
    if (warmup >= 1) add_value("warmup", "warmup_steps");
    if (warmup > 0 && warmup < 1) add_value("warmup_ratio", "warmup_steps");
    if (warmup == 0 && training::number_of(all, "warmup_ratio") > 0) add_value("warmup_ratio", "warmup_ratio");
    add("warmup_from", "0", key);
  }

  void evaluation() {
    const std::string strategy = training::eval_strategy(json);
    if (strategy == "no") return;
    const std::string key = find_value(json, "eval_strategy") != nullptr ? "eval_strategy" : "evaluation_strategy";
    out.needed.push_back({"eval", "<text>", key});
    if (strategy == "epoch")
      add_flag("eval_each_epoch", key);
    else
      add_value("eval_every", find_value(all, "eval_steps") != nullptr ? "eval_steps" : "logging_steps");
    add_value("eval_batch", "per_device_eval_batch_size");
  }

  void checkpoints() {
    constexpr const char* kAll = "1000000000000";
    const std::string strategy = training::text_of(all, "save_strategy");
    const bool limited = find_value(all, "save_total_limit") != nullptr;
    const std::string most = limited ? argument_text(*find_value(all, "save_total_limit")) : kAll;
    if (is_true(json, "load_best_model_at_end")) {
      add("save_best", "1", "load_best_model_at_end");
      add_flag("load_best", "load_best_model_at_end");
    }
    if (strategy == "best") return add("save_best", most, "save_strategy");
    if (strategy == "steps") add_value("save_every", "save_steps");
    if (strategy == "epoch") add_flag("save_each_epoch", "save_strategy");
    add("keep_checkpoints", most, "save_total_limit");
  }

  void ranks() {
    const std::string strategy = training::text_of(json, "distribution_strategy");
    if (strategy == "fast_ddp") return add("strategy", "fast_ddp", "distribution_strategy");
    std::vector<std::string> of_ddp;
    if (strategy == "ddp") of_ddp.emplace_back("distribution_strategy");
    if (find_value(json, "ddp_bucket_cap_mb") != nullptr) of_ddp.emplace_back("ddp_bucket_cap_mb");
    for (const char* key : {"ddp_find_unused_parameters", "ddp_static_graph"})
      if (is_true(json, key)) of_ddp.emplace_back(key);
    if (of_ddp.empty()) return;
    add("strategy", "hpu_ddp", of_ddp[0]);
    add_value("bucket_cap_mb", "ddp_bucket_cap_mb");
    if (is_true(json, "ddp_find_unused_parameters")) add_flag("find_unused_parameters", "ddp_find_unused_parameters");
    if (is_true(json, "ddp_static_graph")) add_flag("static_graph", "ddp_static_graph");
  }

  void records() {
    if (!is_true(all, "adjust_throughput")) add_flag("whole_time", "adjust_throughput");
    const auto names = training::reports_to(json);
    if (std::ranges::find(names, "tensorboard") != names.end()) add("logger", "tensorboard", "report_to");
    if (training::number_of(json, "profiling_steps") == 0) return;
    const auto steps = [&](const char* key) { return argument_text(training::number_of(json, key)); };
    add("profile", kProfileFolder, "profiling_steps");
    add("profile_schedule", "0," + steps("profiling_warmup_steps") + "," + steps("profiling_steps") + ",1",
        "profiling_steps");
  }

  void add_setting(TrainSetting setting) {
    std::erase_if(out.settings, [&](const TrainSetting& s) { return s.option == setting.option; });
    out.settings.push_back(std::move(setting));
  }
  void add(std::string option, std::string value, std::string key) {
    add_setting({std::move(option), std::move(value), std::move(key)});
  }
  void add_flag(std::string option, std::string key) { add_setting({std::move(option), std::nullopt, std::move(key)}); }
  /// The key's own value, if it has one.
  void add_value(const char* option, const std::string& key) {
    if (const io::Json* value = find_value(all, key)) add(option, argument_text(*value), key);
  }
};

}  // namespace

std::string flag_of(std::string_view option) {
  std::string flag(option);
  std::ranges::replace(flag, '_', '-');
  return flag.starts_with("--") ? flag : "--" + flag;
}

KeyRows gaudi_config_keys() {
  static const std::vector<KeyRow> all = optimum_table("gaudi_config");
  return all;
}

KeyRows training_argument_keys() {
  static const std::vector<KeyRow> all = optimum_table("arguments");
  return all;
}

Findings check_gaudi_config(const io::Json& json, const std::string& source) {
  const std::string where = io::printable(source, 4096);
  Findings found;
  found.problems = key_problems(json, where, gaudi_config_keys());
  const bool lower = find_value(json, kLowerOps) != nullptr, fp32 = find_value(json, kFp32Ops) != nullptr;
  if (lower != fp32)
    found.problems.push_back(io::message("{}: found without {}, and alone it has no effect, allowed: both or none",
                                         key_where(where, lower ? kLowerOps : kFp32Ops), lower ? kFp32Ops : kLowerOps));
  return found;
}

TrainCommand gaudi_config_command(const io::Json& json) {
  TrainCommand command;
  const char *autocast = "use_torch_autocast", *adam = "use_fused_adam";
  if (is_true(json, autocast)) command.settings.push_back({"precision", "bf16-mixed", autocast});
  if (find_value(json, adam) != nullptr) {
    const bool fused = is_true(json, adam);
    command.settings.push_back({"eps_mode", fused ? "habana" : "torch", adam});
    if (fused) command.settings.push_back({"eps", "1e-06", adam});
  }
  if (autocast_ops(json)) command.variables = {{"LOWER_LIST", "lower_list.txt"}, {"FP32_LIST", "fp32_list.txt"}};
  return command;
}

std::optional<AutocastOps> autocast_ops(const io::Json& json) {
  const io::Json *bf16 = find_value(json, kLowerOps), *fp32 = find_value(json, kFp32Ops);
  if (bf16 == nullptr || fp32 == nullptr) return std::nullopt;
  return AutocastOps{bf16->get<std::vector<std::string>>(), fp32->get<std::vector<std::string>>()};
}

std::string op_list_text(const std::vector<std::string>& ops) {
  std::string text;
  for (const auto& op : ops) text += op + "\n";
  return text;
}

std::vector<std::string> TrainCommand::arguments() const {
  std::vector<std::string> words;
  for (const auto& list : {settings, needed}) {
    for (const TrainSetting& setting : list) {
      words.push_back(flag_of(setting.option));
      if (setting.value) words.push_back(*setting.value);
    }
  }
  return words;
}

Findings check_training_arguments(const io::Json& json, const std::string& source) {
  const std::string where = io::printable(source, 4096);
  Findings found;
  found.problems = key_problems(json, where, training_argument_keys());
  if (!json.is_object()) return found;
  Rules rules{{json, where, found}};
  rules.gaudi();
  rules.transformers();
  rules.train();
  rules.notes();
  return found;
}

TrainCommand training_arguments_command(const io::Json& json) {
  TrainCommand out;
  Command command{json, out};
  command.precision();
  command.flags();
  command.length();
  command.schedule();
  command.evaluation();
  command.checkpoints();
  command.ranks();
  command.records();
  return out;
}

}  // namespace fp8::configs
