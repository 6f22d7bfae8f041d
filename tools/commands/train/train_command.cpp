// SPDX-License-Identifier: Apache-2.0
// The command `fp8 train`: its options, the files that add to them, and what options demand of each other.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/trainer/registry.h"
#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/train/run/run_keys.h"
#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {
namespace {

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
      throw UsageError(row.flag() + ": found" + (value.is_number() ? " " + value.dump() : "") + ", but no " + flag);
    }
    const std::string allowed(need.substr(equals + 1)), found = other->field.value().get<std::string>();
    if (found == allowed) continue;
    const io::Json text = value.is_array() ? value.at(0) : value;
    throw UsageError(row.flag() + ": found" + (row.field.is_text ? " '" + text.get<std::string>() + "'" : "") +
                     " with " + flag + " " + found + ", allowed: " + flag + " " + allowed);
  }
}

void check_loggers(const std::vector<std::string>& loggers) {
  std::set<std::string> seen;
  for (const auto& name : loggers) {
    if (name != "csv" && name != "tensorboard")
      throw UsageError("--logger: found '" + name + "', allowed: csv, tensorboard");
    if (!seen.insert(name).second) throw UsageError("--logger: found '" + name + "' twice, allowed: once");
  }
}

/// Throws UsageError for options of another strategy, and for an engine of Python's with the line that runs it there.
void check_strategy(const TrainOptions& o) {
  const StrategySettings& s = o.ranks;
  if (const auto refusal = trainer::python_strategy_refusal(s.strategy); !refusal.empty())
    throw UsageError("--strategy: " + refusal);
  check_needs(o, "strategy=");
  if (s.static_graph && s.find_unused_parameters)
    throw UsageError("--static-graph and --find-unused-parameters: found both, allowed: one of them");
  if (s.reduce_amax != "all" && o.precision != "fp8")
    throw UsageError("--reduce-amax: found '" + s.reduce_amax + "', allowed: with --precision fp8");
  if (s.reduce_amax != "all" && s.reduce_amax != "off" && !io::parse_integer(s.reduce_amax, 1, 65536))
    throw UsageError("--reduce-amax: found '" + s.reduce_amax + "', allowed: all, off, or a number from 1 on");
}

void check_train_options(const TrainOptions& o) {
  std::vector<std::string> missing;
  if (o.init.empty() && o.model.empty()) missing.emplace_back("--init or --model");
  if (!o.plan && o.data.empty()) missing.emplace_back("--data");
  if (!o.plan && o.out.empty()) missing.emplace_back("--out");
  if (!missing.empty()) fail_missing("train", missing);
  if (!o.init.empty() && !o.model.empty()) throw UsageError("--init and --model: found both, allowed: one of them");
  // A run whose --precision was forgotten is a bf16 run: options of fp8 are refused with it.
  for (const char* needs : {"eval", "precision=", "save_best"}) check_needs(o, needs);
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
      throw UsageError(other + " and " + row.flag() + ": found both, allowed: one of them");
  }
}

void check_own_model(const Options& options, const TrainOptions& o) {
  for (const TrainRow& row : train_table()) {
    if (!row.columns.language_model) continue;
    const std::string source = options.source_of(row.flag());
    if (source == "default") continue;
    const std::string what = row.flag() + ": has no effect with model " + o.run.model->class_path;
    if (source == "command line") throw UsageError(what);
    throw io::Error(source + ": " + what);
  }
  if (o.precision != "fp8" && (!o.recipe.empty() || !o.keep.empty() || !o.measurements.empty()))
    throw UsageError("--recipe, --keep and --measurements go with --precision fp8, found " + o.precision);
  check_profile_options(o.profile);
  check_strategy(o);
}

/// A stage that trains nothing needs a model alone; run_module.cpp says what data it needs.
void check_stage(const TrainOptions& o) {
  if (o.init.empty() && o.model.empty()) fail_missing("train", {"--init or --model"});
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
    throw UsageError("trainer." + std::string(error.what()));
  }
}

/// An option that is wrong beside others, named by the file that has it.
void check_named(const Options& options, const TrainOptions& o) {
  try {
    if (o.run.model)
      check_own_model(options, o);
    else if (o.run.stage != Stage::fit)
      check_stage(o);
    else
      check_train_options(o);
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
    throw UsageError("--" + std::string(text.substr(kCommandLine.size())));
  }
}

}  // namespace

decltype(train_model) train_model(load_training);

Action add_train(Options& options) {
  auto values = std::make_shared<TrainOptions>();
  for (const TrainRow& row : train_rows(*values))
    if (row.field.declare) row.field.declare(options, row.flag(), row.help);
  return [values, &options](Context& context) {
    check_alternatives(options);
    const auto tree = take_files(options, *values);
    const auto from_files = take_gaudi_options(options, *values, context);
    apply(context);  // --threads of a file
    if (values->run.print_config || values->run.model) {
      const auto all = resolved(tree, options, values->run, from_files);
      if (values->run.print_config) return context.result(all.value(), all.text());
      values->run.tree = all.value();  // what options say of the run is what it was started with, too
    }
    check_named(options, *values);
    train_model(*values, context);
  };
}

}  // namespace fp8::commands
