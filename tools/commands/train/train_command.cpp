// SPDX-License-Identifier: Apache-2.0
// The command `fp8 train`: its options, the files that add to them, and what options demand of each other.
#include <fmt/format.h>

#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
using configs::TrainSetting;

constexpr const char* kGaudiConfigFile = "gaudi_config.json";
constexpr const char* kListVariables[] = {"PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "LOWER_LIST",
                                          "PT_HPU_AUTOCAST_FP32_OPS_LIST", "FP32_LIST"};

// Files of Optimum Habana as options of `fp8 train`: --gaudi-config (gaudi_config.json) and --training-args
// (GaudiTrainingArguments as a JSON), read by configs/training. What the command line or a run file gives wins. No

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
    io::fail<io::Error>("{} (fp8 config check {} lists {})", found.problems[0], given.file, found.problems.size());
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
      io::fail<io::Error>("{}: found {}, allowed: a file, or a folder with {}; nothing is fetched over a network",
                          arguments->where("gaudi_config_name"), io::in_quotes(path.string()), kGaudiConfigFile);
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
    return context.warn(io::message("{}: has no effect beside the variable {}",
                                    configs::key_where(gaudi.file, "autocast_bf16_ops"), variable));
  }
  v.autocast_ops = std::move(ops);
}

void check_needed(const Options& options, const Given& from) {
  for (const TrainSetting& needed : from.command.needed) {
    const std::string flag = configs::flag_of(needed.option);
    if (options.source_of(flag) == "default")
      io::fail<io::Error>("{}: found {}, but no {}, allowed: with {} FILE", from.where(needed.key),
                          io::in_quotes(configs::training::text_of(from.json, needed.key)), flag, flag);
  }
}

/// Gives `options`, and with it `v`, what only the files say; returns the names of those options. Warnings say what
/// has no effect. Throws io::Error naming file and key for a file that has a problem, or asks for what only the command
/// line can give (--eval).
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
      io::fail<io::Error>("{}: found \"muon\" beside use_fused_adam of {}, allowed: adamw_torch",
                          arguments->where("optim"), gaudi->file);
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

/// Throws UsageError for an option that is given without the one that it needs. needs: of options whose need begins so.
void check_needs(const TrainOptions& o, std::string_view needs) {
  TrainOptions copy = o;
  const auto rows = train_rows(copy);
  for (const TrainRow& row : rows) {
    const std::string_view need = row.columns.needs;
    if (need.empty() || !need.starts_with(needs) || !is_set(row)) continue;
    const auto equals = need.find('=');
    const auto other = std::ranges::find(rows, need.substr(0, equals), &TrainRow::name);
    const io::Json value = row.field.value();
    const std::string flag = other->flag();
    if (equals == std::string_view::npos) {
      if (is_set(*other)) continue;
      io::fail<UsageError>("{}: found{}, but no {}", row.flag(), value.is_number() ? " " + value.dump() : "", flag);
    }
    const std::string allowed(need.substr(equals + 1)), found = other->field.value().get<std::string>();
    if (found == allowed) continue;
    const io::Json text = value.is_array() ? value.at(0) : value;
    io::fail<UsageError>("{}: found{} with {} {}, allowed: {} {}", row.flag(),
                         row.field.is_text ? " '" + text.get<std::string>() + "'" : "", flag, found, flag, allowed);
  }
}

void check_loggers(const std::vector<std::string>& loggers) {
  std::set<std::string> seen;
  for (const auto& name : loggers) {
    if (name != "csv" && name != "tensorboard")
      io::fail<UsageError>("--logger: found '{}', allowed: csv, tensorboard", name);
    if (!seen.insert(name).second) io::fail<UsageError>("--logger: found '{}' twice, allowed: once", name);
  }
}

/// Throws UsageError for options of another strategy, and for an engine of Python's with the line that runs it there.
void check_strategy(const TrainOptions& o) {
  const StrategySettings& s = o.ranks;
  if (const auto refusal = trainer::python_strategy_refusal(s.strategy); !refusal.empty())
    io::fail<UsageError>("--strategy: {}", refusal);
  check_needs(o, "strategy=");
  if (s.static_graph && s.find_unused_parameters)
    throw UsageError("--static-graph and --find-unused-parameters: found both, allowed: one of them");
  if (s.reduce_amax != "all" && o.precision != "fp8")
    io::fail<UsageError>("--reduce-amax: found '{}', allowed: with --precision fp8", s.reduce_amax);
  if (s.reduce_amax != "all" && s.reduce_amax != "off" && !io::parse_integer(s.reduce_amax, 1, 65536))
    io::fail<UsageError>("--reduce-amax: found '{}', allowed: all, off, or a number from 1 on", s.reduce_amax);
}

void check_train_options(const TrainOptions& o, const std::string& note) {
  std::vector<std::string> missing;
  if (o.init.empty() && o.model.empty()) missing.emplace_back("MODEL or --init");
  if (!o.plan && o.data.empty()) missing.emplace_back("--data");
  if (!o.plan && o.out.empty()) missing.emplace_back("--out");
  if (!missing.empty()) fail_missing("train", missing, missing[0].starts_with("MODEL") ? note : "");
  if (!o.init.empty() && !o.model.empty()) throw UsageError("--init and MODEL: found both, allowed: one of them");
  // A run whose --precision was forgotten is a bf16 run: options of fp8 are refused with it.
  for (const char* needs : {"eval", "precision=", "save_best", "lazy"}) check_needs(o, needs);
  check_loggers(o.callbacks.loggers);
  if (o.callbacks.clip_by_value && o.clip == 0)
    throw UsageError("--clip-by: found value with --clip 0, allowed: --clip above 0");
  check_profile_options(o.profile);
  check_strategy(o);
  // Recomputation uses parameters again, within the backward that has marked them as left out.
  if (o.activation_checkpointing && o.ranks.find_unused_parameters)
    throw UsageError(
        "--find-unused-parameters: found with --activation-checkpointing, allowed: one of them, or "
        "--strategy hpu_parallel, which needs neither");
  if (o.optimizer.min_lr > 0 && o.optimizer.schedule == OptimizerSettings::Schedule::constant)
    throw UsageError(
        fmt::format("--min-lr: found {} with --schedule constant, allowed: cosine, linear", o.optimizer.min_lr));
  if (o.optimizer.min_lr > o.optimizer.lr)
    throw UsageError(fmt::format("--min-lr: found {}, allowed: at most --lr {}", o.optimizer.min_lr, o.optimizer.lr));
  if (o.epochs == 0) check_steps(o);
}

/// Throws UsageError where the command line has an option and the one that it takes the place of.
void check_alternatives(const Options& options) {
  const auto given = [&](const std::string& flag) { return options.source_of(flag) == "command line"; };
  for (const TrainRow& row : train_table()) {
    if (*row.columns.instead_of == '\0') continue;
    const std::string other = configs::flag_of(row.columns.instead_of);
    if (given(other) && given(row.flag()))
      io::fail<UsageError>("{} and {}: found both, allowed: one of them", other, row.flag());
  }
}

void check_own_model(const Options& options, const TrainOptions& o) {
  for (const TrainRow& row : train_table()) {
    if (!row.columns.language_model) continue;
    const std::string source = options.source_of(row.flag());
    if (source == "default") continue;
    const std::string what = row.flag() + ": has no effect with model " + o.run.model->class_path;
    if (source == "command line") throw UsageError(what);
    io::fail<io::Error>("{}: {}", source, what);
  }
  if (o.precision != "fp8" && (!o.recipe.empty() || !o.keep.empty() || !o.measurements.empty()))
    io::fail<UsageError>("--recipe, --keep and --measurements go with --precision fp8, found {}", o.precision);
  check_profile_options(o.profile);
  check_strategy(o);
}

/// A stage that trains nothing needs a model alone; run_module.cpp says what data it needs.
void check_stage(const TrainOptions& o, const std::string& note) {
  if (o.init.empty() && o.model.empty()) fail_missing("train", {"MODEL or --init"}, note);
  check_profile_options(o.profile);
  check_strategy(o);
}

/// Throws UsageError where the run asks for other processes than there are, with the line that starts them.
void check_processes(const TrainOptions& o) {
  try {
    trainer::require_ranks(
        o.run.trainer.devices == "auto" ? std::nullopt : std::optional(std::stoi(o.run.trainer.devices)),
        o.run.trainer.num_nodes, "fp8 train --config ...");
  } catch (const std::invalid_argument& error) {
    io::fail<UsageError>("trainer.{}", error.what());
  }
}

/// An option that is wrong beside others, named by the file that has it.
void check_named(const Options& options, const TrainOptions& o) {
  try {
    if (o.run.model)
      check_own_model(options, o);
    else if (o.run.stage != Stage::fit)
      check_stage(o, options.taken_words());
    else
      check_train_options(o, options.taken_words());
    check_processes(o);
  } catch (const UsageError& error) {
    const std::string text = error.what(), name = text.substr(0, text.find_first_of(": "));
    const std::string source = name.starts_with("--") ? options.source_of(name) : "default";
    if (source == "command line" || source == "default") throw;
    throw io::Error(source + (text.starts_with(name + ":") ? text.substr(name.size()) : ": " + text));
  }
}

/// An error in a run file's key on the command line is wrong usage, too.
RunTree take_files(Options& options, TrainOptions& o) {
  constexpr std::string_view kCommandLine = "command line: ";
  try {
    auto tree = take_run_files(options, o.run);
    if (options.source_of("--steps") != "default") o.run.trainer.max_steps = o.optimizer.steps;
    if (options.source_of("--epochs") != "default") o.run.trainer.max_epochs = std::llround(std::ceil(o.epochs));
    return tree;
  } catch (const io::Error& error) {
    const std::string_view text = error.what();
    if (!text.starts_with(kCommandLine)) throw;
    io::fail<UsageError>("--{}", text.substr(kCommandLine.size()));
  }
}

/// What a run file names and no option does. Parts of other people's making reach what they like, and so do ours by
/// arguments that are theirs alone (dirpath, save_dir).
void reach_named_files(Options& options, const RunSettings& run) {
  for (const auto& path : {run.test_data, run.predict_data, run.ckpt_path})
    if (!path.empty()) options.also_reach(io::Reach::read, path.string());
  if (run.trainer.simple_profiler && !run.trainer.simple_profiler->dirpath.empty())
    options.also_reach(io::Reach::folder, run.trainer.simple_profiler->dirpath);
  if (run.model || run.data || !run.callbacks.empty() || !run.loggers.empty())
    options.also_reach(io::Reach::code, "parts of a run file");
}

}  // namespace

decltype(train_model) train_model(load_training);

Action add_train(Options& options) {
  auto values = std::make_shared<TrainOptions>();
  for (const TrainRow& row : train_rows(*values))
    if (row.field.declare) row.field.declare(options, row.flag(), row.help);
  options.renamed("--plan", "--dry-run");
  struct Said {
    RunTree tree;
    std::vector<std::string> from_files;
  };
  auto said = std::make_shared<std::optional<Said>>();
  options.prepare([values, said, &options](Context& context) {
    check_alternatives(options);
    said->emplace(take_files(options, *values));
    (*said)->from_files = take_gaudi_options(options, *values, context);
    apply(context);  // --threads of a file
    reach_named_files(options, values->run);
  });
  return [values, said, &options](Context& context) {
    if (values->run.print_config || values->run.model) {
      const auto all = resolved((*said)->tree, options, values->run, (*said)->from_files);
      if (values->run.print_config) return context.result(all.value(), all.text());
      values->run.tree = all.value();  // what options say of the run is what it was started with, too
    }
    check_named(options, *values);
    train_model(*values, context);
  };
}

}  // namespace fp8::commands
