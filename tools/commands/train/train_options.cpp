// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/configs/recipe_config.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/trainer/registry.h"
#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/options/input_options.h"
#include "fp8/tools/commands/train/gaudi_options.h"
#include "fp8/tools/commands/train/run/run_keys.h"
#include "fp8/tools/commands/train/train_length.h"

namespace fp8::commands {
namespace {

std::string recipe_help() {
  const std::string habana = kDefaultRecipe;
  std::vector<std::string> names = configs::recipe_preset_names();
  std::ranges::replace(names, habana, habana + " (E5M2, the default)");
  return "Of --precision fp8: " + io::joined(names) + " or a JSON file";
}

void add_loop_options(Options& options, const std::shared_ptr<TrainOptions>& v) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  options.path("--eval", v->eval, "Text for eval_loss, after the last step");
  options.integer("--eval-every", v->eval_every, 1, kMany, "Steps between evaluations", "at the end only");
  options.flag("--eval-each-epoch", v->eval_each_epoch, "With --eval: an evaluation after each pass over the data");
  options.integer("--eval-batch", v->eval_batch, 1, 65536, "Chunks per forward of an evaluation", "--batch");
  options.integer("--save-every", v->save_every, 1, kMany, "Steps between checkpoints", "at the end only");
  options.flag("--save-each-epoch", v->save_each_epoch, "A checkpoint after each pass over the data");
  options.integer("--keep-checkpoints", v->keep_checkpoints, 1, kMany, "Newest checkpoints that stay");
  options.flag("--resume", v->resume,
               "Go on from the newest checkpoint in --out, if there is one: as before, but for more --steps");
  options.flag("--overwrite", v->overwrite, "Begin anew in an --out that holds a run");
  options.flag("--activation-checkpointing", v->activation_checkpointing,
               "Keep the inputs of layers only, run them again in backward");
  options.flag("--minimize-memory", v->minimize_memory, "With fp8: weights are cast again in backward");
  options.flag("--drop-last", v->drop_last,
               "An epoch ends with its last whole batch (default: with what is left over)");
  options.choice("--save-dtype", v->save_dtype, "Of the weights that are written (default bf16)",
                 choice_of({kernels::FloatType::BF16, kernels::FloatType::F32, kernels::FloatType::F16}));
  options.choice<trainer::NonFinite>("--non-finite", v->nonfinite,
                                     "A loss or gradient is NaN or infinite: end (default), or leave that step out");
  options.integer("--stats-every", v->statistics_every, 0, kMany,
                  "With fp8: steps between counts of saturated and underflowed elements in the log; 0: never");
  options.integer("--logging-steps", v->logging_steps, 1, kMany,
                  "Steps between Optimum's three rows of device memory (GB) in the log");
  options.integer("--throughput-warmup", v->throughput_warmup, 0, kMany,
                  "First steps that do not count for tokens_per_second");
  options.flag("--whole-time", v->whole_time,
               "Logging, evaluation and saving count for tokens_per_second (default: they don't)");
}

void add_train_options(Options& options, const std::shared_ptr<TrainOptions>& v) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  options.path("--init", v->init, "config.json (or its folder): train from drawn weights, steered by --seed");
  options.path("--model", v->model, "Checkpoint folder: go on from these weights");
  options.path("--tokenizer", v->tokenizer, "Folder with a tokenizer (default: beside the config or checkpoint)");
  add_data_option(options, "--data", v->data,
                  "Text to train on: .txt, .md, .jsonl, .json (text, messages, prompt and completion) or .safetensors "
                  "(input_ids)",
                  Options::Need::optional, /*several=*/false);
  options.path("--out", v->out, "Folder for the model, log.jsonl and checkpoints");
  options.integer("--steps", v->optimizer.steps, 1, kMany, "Optimizer steps");
  options.number("--epochs", v->epochs, 0, 1e6, "Passes over the data, instead of --steps; 0: --steps");
  options.integer("--batch", v->batch, 1, 65536, "Chunks per forward of each rank");
  options.integer("--seq-len", v->seq_len, 2, 1 << 20, "Tokens per chunk");
  options.number("--lr", v->optimizer.lr, 0, 100, "Highest learning rate");
  options.number("--min-lr", v->optimizer.min_lr, 0, 100, "Learning rate at the end of the cosine or line");
  options.choice<OptimizerSettings::Schedule>("--schedule", v->optimizer.schedule,
                                              "The learning rate after its warm-up (default cosine)");
  options.integer("--warmup", v->optimizer.warmup, 0, kMany, "Steps of linear warm-up");
  options.number("--warmup-ratio", v->warmup_ratio, 0, 1, "Warm-up as a share of all steps, instead of --warmup");
  options.integer("--warmup-from", v->optimizer.warmup_from, 0, 1,
                  "What the first step of the warm-up counts as; 0: its learning rate is 0, as in transformers");
  options.number("--weight-decay", v->optimizer.weight_decay, 0, 100, "Of matrices and embeddings");
  options.integer("--grad-accum", v->grad_accum, 1, 1 << 20, "Forwards per step");
  options.number("--clip", v->clip, 0, 1e30, "Largest norm of the gradients (--clip-by); 0: not clipped");
  const auto word = [&](const char* name, std::vector<std::string> words, std::string& target, const char* help) {
    options.choice(name, words, [words, &target](std::size_t i) { target = words[i]; }, help);
  };
  word("--precision", {"32-true", "bf16-mixed", "16-mixed", "fp8"}, v->precision,
       "Default bf16-mixed; weights are f32 in each");
  options.choice(
      "--half-precision-backend", {"hpu_amp", "cpu_amp"}, [v](std::size_t i) { v->cpu_amp = i == 1; },
      "Whose autocast bf16-mixed is: the device's (default), or the CPU's with --device cpu");
  options.text("--recipe", v->recipe, recipe_help());
  options.list("--keep", v->keep, "Regular expression: modules that stay in bf16 (default lm_head and embeddings)");
  options.text("--measurements", v->measurements,
               "With fp8: the first step's scales from this measurement (folder, prefix or file)");
  options.flag(
      "--plan", v->plan,
      "With fp8: print what would be converted, its bytes, flops and expected error; nothing is trained or written");
  options.choice<OptimizerSettings::Kind>("--optimizer", v->optimizer.kind,
                                          "Default adamw; muon: for the matrices of the layers, adamw for the rest");
  options.number("--beta1", v->optimizer.beta1, 0, 0.9999999, "Of adamw: share of the mean gradient that stays");
  options.number("--beta2", v->optimizer.beta2, 0, 0.9999999, "Of adamw: share of the mean square that stays");
  options.number("--eps", v->optimizer.eps, 0, 1, "Of adamw");
  options.choice<OptimizerSettings::EpsMode>("--eps-mode", v->optimizer.eps_mode,
                                             "Of adamw, where --eps is added: after the correction of the mean square "
                                             "(default), or before it as on the device");
  add_loop_options(options, v);
  add_gaudi_options(options, *v);
  add_run_options(options, v->run);
  add_callback_options(options, v->callbacks);
  add_profile_options(options, v->profile, "optimizer step");
  add_strategy_options(options, v->ranks);
}

void check_train_options(const TrainOptions& o) {
  std::vector<std::string> missing;
  if (o.init.empty() && o.model.empty()) missing.emplace_back("--init or --model");
  if (!o.plan && o.data.empty()) missing.emplace_back("--data");
  if (!o.plan && o.out.empty()) missing.emplace_back("--out");
  if (!missing.empty()) fail_missing("train", missing);
  if (!o.init.empty() && !o.model.empty()) throw UsageError("--init and --model: found both, allowed: one of them");
  if (o.eval_every > 0 && o.eval.empty())
    throw UsageError("--eval-every: found " + std::to_string(o.eval_every) + ", but no --eval");
  if (o.eval_batch > 0 && o.eval.empty())
    throw UsageError("--eval-batch: found " + std::to_string(o.eval_batch) + ", but no --eval");
  // Whoever forgets --precision must not take a bf16 run for one in fp8.
  if (o.precision != "fp8" && !o.recipe.empty())
    throw UsageError("--recipe: found '" + o.recipe + "' with --precision " + o.precision +
                     ", allowed: --precision fp8");
  if (o.precision != "fp8" && !o.keep.empty())
    throw UsageError("--keep: found '" + o.keep[0] + "' with --precision " + o.precision +
                     ", allowed: --precision fp8");
  if (o.precision != "fp8" && !o.measurements.empty())
    throw UsageError("--measurements: found '" + o.measurements + "' with --precision " + o.precision +
                     ", allowed: --precision fp8");
  if (o.precision != "fp8" && o.plan)
    throw UsageError("--plan: found with --precision " + o.precision + ", allowed: --precision fp8");
  if (o.precision != "fp8" && o.minimize_memory)
    throw UsageError("--minimize-memory: found with --precision " + o.precision + ", allowed: --precision fp8");
  if (o.eval_each_epoch && o.eval.empty()) throw UsageError("--eval-each-epoch: found, but no --eval");
  check_callback_options(o.callbacks, !o.eval.empty(), o.clip > 0);
  check_profile_options(o.profile);
  check_strategy_options(o.ranks, o.precision == "fp8");
  // Recomputation meets parameters again, within the backward that has marked them as left out.
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

/// Throws UsageError where the command line says one thing in two ways.
void check_alternatives(const Options& options) {
  const auto given = [&](const char* name) { return options.source_of(name) == "command line"; };
  for (const auto& [one, other] : kAlternatives)
    if (given(one) && given(other))
      throw UsageError(std::string(one) + " and " + other + ": found both, allowed: one of them");
}

/// With a model of one's own: what says something about it. The others are a language model's, or its data's.
constexpr const char* kOfAnyModel[] = {"--out",
                                       "--steps",
                                       "--epochs",
                                       "--grad-accum",
                                       "--clip",
                                       "--clip-by",
                                       "--precision",
                                       "--recipe",
                                       "--keep",
                                       "--measurements",
                                       "--plan",
                                       "--save-every",
                                       "--keep-checkpoints",
                                       "--resume",
                                       "--overwrite",
                                       "--non-finite",
                                       "--stats-every",
                                       "--logging-steps",
                                       "--throughput-warmup",
                                       "--whole-time",
                                       "--logger",
                                       "--max-time",
                                       "--patience",
                                       "--save-best",
                                       "--profile",
                                       "--profile-schedule",
                                       "--strategy",
                                       "--bucket-cap-mb",
                                       "--find-unused-parameters",
                                       "--static-graph",
                                       "--gradient-as-bucket-view",
                                       "--comm-hook",
                                       "--fusion-buffer-dtype",
                                       "--reduce-amax",
                                       "--rank-timeout",
                                       "--minimize-memory",
                                       "--config",
                                       "--print-config",
                                       "--json",
                                       "--device",
                                       "--dialect",
                                       "--threads",
                                       "--seed",
                                       "--load",
                                       "--quiet",
                                       "--color",
                                       "STAGE"};

void check_own_model(const Options& options, const TrainOptions& o) {
  for (const auto& name : options.names()) {
    const std::string source = options.source_of(name);
    if (source == "default" || std::ranges::find(kOfAnyModel, name) != std::end(kOfAnyModel)) continue;
    const std::string what = name + ": has no effect with model " + o.run.model->class_path;
    if (source == "command line") throw UsageError(what);
    throw io::Error(source + ": " + what);
  }
  if (o.precision != "fp8" && (!o.recipe.empty() || !o.keep.empty() || !o.measurements.empty()))
    throw UsageError("--recipe, --keep and --measurements go with --precision fp8, found " + o.precision);
  check_profile_options(o.profile);
  check_strategy_options(o.ranks, o.precision == "fp8");
}

/// A stage that trains nothing needs a model alone; run_module.cpp says what data it needs.
void check_stage(const TrainOptions& o) {
  if (o.init.empty() && o.model.empty()) fail_missing("train", {"--init or --model"});
  check_profile_options(o.profile);
  check_strategy_options(o.ranks, o.precision == "fp8");
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

/// What the command line says wrong in a run file's words is wrong usage, too.
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
  add_train_options(options, values);
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
