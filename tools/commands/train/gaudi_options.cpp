// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/configs/training/gaudi_config.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
using configs::TrainSetting;

constexpr const char* kGaudiConfigFile = "gaudi_config.json";
constexpr const char* kListVariables[] = {"PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "LOWER_LIST",
                                          "PT_HPU_AUTOCAST_FP32_OPS_LIST", "FP32_LIST"};
/// A file and what it comes to.
struct Given {
  std::string file;
  io::Json json;
  configs::TrainCommand command;

  std::string where(const std::string& key) const {
    return configs::key_where(file, key) + (configs::find_value(json, key) == nullptr ? " (default)" : "");
  }
};

/// Throws io::Error for the first problem.
Given read(const fs::path& path, configs::Findings (*check)(const io::Json&, const std::string&),
           configs::TrainCommand (*command)(const io::Json&), const Context& context) {
  Given given{io::printable(path.string(), 4096), io::read_json(path), {}};
  const auto found = check(given.json, path.string());
  if (found.problems.size() > 1)
    throw io::Error(found.problems[0] + " (fp8 config check " + given.file + " lists " +
                    std::to_string(found.problems.size()) + ")");
  if (!found.problems.empty()) throw io::Error(found.problems[0]);
  for (const auto& note : found.notes) context.warn(note);
  given.command = command(given.json);
  return given;
}

/// The gaudi_config.json that is meant; empty: none. arguments: null if there are none.
fs::path gaudi_config_of(const TrainOptions& v, const Given* arguments) {
  fs::path path = v.gaudi_config;
  std::error_code ignored;
  if (path.empty() && arguments != nullptr) {
    path = configs::training::text_of(arguments->json, "gaudi_config_name");
    if (!path.empty() && !fs::exists(path, ignored))
      throw io::Error(arguments->where("gaudi_config_name") + ": found " + io::in_quotes(path.string()) +
                      ", allowed: a file, or a folder with " + kGaudiConfigFile +
                      "; nothing is fetched over a network");
  }
  return fs::is_directory(path, ignored) ? path / kGaudiConfigFile : path;
}

/// Takes options that neither the command line nor a run file gives.
class Taker {
 public:
  Taker(Options& options, const TrainOptions& v) : options_(options), v_(v) {}

  void take(const Given& from, const TrainSetting& setting) {
    if (is_said(setting.option)) return;
    const std::string flag = configs::flag_of(setting.option);
    options_.take(flag, setting.value.value_or("true"), from.where(setting.key));
    if (!is_ours(flag)) taken.push_back(flag);
  }

  std::vector<std::string> taken;  ///< flags

 private:
  bool is_ours(const std::string& flag) const { return std::ranges::find(taken, flag) != taken.end(); }
  /// By the command line or a run file.
  bool is_given(const std::string& option) const {
    const std::string flag = configs::flag_of(option);
    return options_.source_of(flag) != "default" && !is_ours(flag);
  }
  /// In this way or another. Settings of a strategy, and of fp8, are for the strategy and precision of their file.
  bool is_said(const std::string& option) const {
    if (is_given(option)) return true;
    for (const TrainRow& row : train_table()) {
      const std::string other = row.columns.instead_of;
      if (!other.empty() && ((option == row.name && is_given(other)) || (option == other && is_given(row.name))))
        return true;
    }
    const TrainRow* row = find_option(option);
    const std::string_view needs = row != nullptr ? row->columns.needs : "";
    if (needs.starts_with("strategy=")) return is_given("strategy");
    return needs == "precision=fp8" && v_.precision != "fp8";
  }

  Options& options_;
  const TrainOptions& v_;
};

void take_autocast_ops(TrainOptions& v, const Given& gaudi, const Context& context) {
  auto ops = configs::autocast_ops(gaudi.json);
  if (!ops || v.precision == "32-true") return;
  for (const char* variable : kListVariables) {
    if (io::environment_value(variable) == nullptr) continue;
    return context.warn(configs::key_where(gaudi.file, "autocast_bf16_ops") + ": has no effect beside the variable " +
                        variable);
  }
  v.autocast_ops = std::move(ops);
}

void check_needed(const Options& options, const Given& from) {
  for (const TrainSetting& needed : from.command.needed) {
    const std::string flag = configs::flag_of(needed.option);
    if (options.source_of(flag) == "default")
      throw io::Error(from.where(needed.key) + ": found " +
                      io::in_quotes(configs::training::text_of(from.json, needed.key)) + ", but no " + flag +
                      ", allowed: with " + flag + " FILE");
  }
}

}  // namespace

std::vector<std::string> take_gaudi_options(Options& options, TrainOptions& v, const Context& context) {
  std::optional<Given> arguments, gaudi;
  if (!v.training_args.empty())
    arguments = read(v.training_args, configs::check_training_arguments, configs::training_arguments_command, context);
  const auto gaudi_file = gaudi_config_of(v, arguments ? &*arguments : nullptr);
  const bool on_device = !arguments || !configs::training::on_cpu(arguments->json);
  if (!gaudi_file.empty() && on_device)
    gaudi = read(gaudi_file, configs::check_gaudi_config, configs::gaudi_config_command, context);
  if (!gaudi_file.empty() && !on_device)
    context.warn(gaudi_file.string() + ": has no effect with the model on the CPU, as " + arguments->file + " has it");

  Taker taker(options, v);
  if (v.gaudi_config.empty() && gaudi) taker.take(*arguments, {"gaudi_config", gaudi->file, "gaudi_config_name"});
  if (gaudi) {
    if (arguments && configs::is_true(gaudi->json, "use_fused_adam") &&
        configs::training::text_of(arguments->json, "optim") == "muon")
      throw io::Error(arguments->where("optim") + ": found \"muon\" beside use_fused_adam of " + gaudi->file +
                      ", allowed: adamw_torch");
    for (const auto& setting : gaudi->command.settings) taker.take(*gaudi, setting);
  }
  if (arguments) {
    const bool autocast = gaudi && configs::is_true(gaudi->json, "use_torch_autocast");
    for (const auto& setting : arguments->command.settings) {
      if (autocast && setting.option == "precision" && setting.value == "32-true") continue;  // either asks for it
      taker.take(*arguments, setting);
    }
    check_needed(options, *arguments);
  }
  if (gaudi) take_autocast_ops(v, *gaudi, context);
  return std::move(taker.taken);
}

}  // namespace fp8::commands
