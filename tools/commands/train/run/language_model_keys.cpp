// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/run/language_model_keys.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/commands/train/run/trainer_keys.h"

namespace fp8::commands {
namespace {

/// An argument of a class, the option it is, and what the class has without it (null: what the option has).
struct Argument {
  const char *name, *option, *fallback = nullptr;
};

/// option null: changes nothing here.
constexpr Argument kModel[] = {{"init", "--init"},
                               {"model", "--model"},
                               {"tokenizer", "--tokenizer"},
                               {"save_dtype", "--save-dtype"},
                               {"activation_checkpointing", "--activation-checkpointing"}};
constexpr Argument kData[] = {{"train", "--data"},
                              {"val", "--eval"},
                              {"batch_size", "--batch"},
                              {"seq_len", "--seq-len"},
                              {"val_batch_size", "--eval-batch"},
                              {"drop_last", "--drop-last"},
                              {"test", nullptr},
                              {"predict", nullptr}};
constexpr Argument kAdamW[] = {{"lr", "--lr", "0.001"},
                               {"weight_decay", "--weight-decay", "0.01"},
                               {"eps", "--eps", "1e-08"},
                               {"betas", nullptr, "0.9 0.999"}};
constexpr Argument kFusedAdamW[] = {{"lr", "--lr", "0.001"},
                                    {"weight_decay", "--weight-decay", "0"},
                                    {"eps", "--eps", "1e-06"},
                                    {"betas", nullptr, "0.9 0.999"}};
constexpr Argument kMuon[] = {{"lr", "--lr"}, {"weight_decay", "--weight-decay"}};
constexpr Argument kSchedule[] = {{"warmup", "--warmup"}, {"min_lr", "--min-lr"}};

struct Class {
  const char* name;
  std::span<const Argument> arguments;
  const char *option = nullptr, *value = nullptr;  ///< that the class itself is
};
constexpr Class kOptimizers[] = {{"AdamW", kAdamW, "--optimizer", "adamw"},
                                 {"FusedAdamW", kFusedAdamW, "--optimizer", "adamw"},
                                 {"Muon", kMuon, "--optimizer", "muon"}};
constexpr Class kSchedules[] = {{"CosineWithWarmup", kSchedule, "--schedule", "cosine"},
                                {"LinearWithWarmup", kSchedule, "--schedule", "linear"},
                                {"ConstantWithWarmup", kSchedule, "--schedule", "constant"}};

void take_betas(const std::string& first, const std::string& second, Options& options, const std::string& place) {
  options.take("--beta1", first, place);
  options.take("--beta2", second, place);
}

void take_betas(const io::Json& value, Options& options, const std::string& place) {
  if (!value.is_array() || value.size() != 2)
    throw io::Error(place + ": found " + io::printable(value.dump()) + ", allowed: two numbers");
  take_betas(option_text(value[0], place), option_text(value[1], place), options, place);
}

void take_arguments(const trainer::Part& part, std::span<const Argument> rows, Options& options, RunSettings& run) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  for (const auto& [name, value] : part.init_args.items())
    if (std::ranges::find(names, name) == names.end())
      throw io::Error(part.places.at(name) + ": " + part.class_path + " has no such argument here, allowed: " +
                      io::joined(names) + "; " + io::the_nearest(name, names));
  for (const auto& row : rows) {
    const auto found = part.init_args.find(row.name);
    const bool given = found != part.init_args.end() && !found->is_null();
    const std::string place = given ? part.places.at(row.name) : part.place;
    const std::string name = row.name;
    if (name == "betas" && given) {
      take_betas(*found, options, place);
    } else if (name == "betas") {
      const std::string both = row.fallback;
      take_betas(both.substr(0, both.find(' ')), both.substr(both.find(' ') + 1), options, place);
    } else if (given && name == "test") {
      run.test_data = option_text(*found, place);
    } else if (given && name == "predict") {
      run.predict_data = option_text(*found, place);
    } else if (given && name == "train" && found->is_array()) {
      std::vector<std::string> files;
      for (const auto& file : *found) files.push_back(option_text(file, place));
      options.take(row.option, files, place);
    } else if (given) {
      options.take(row.option, option_text(*found, place), place);
    } else if (row.fallback != nullptr) {
      options.take(row.option, row.fallback, place);
    }
  }
}

void take_class(const std::optional<trainer::Part>& part, std::span<const Class> classes, Options& options,
                RunSettings& run) {
  if (!part) return;
  const auto last = trainer::own_name(part->class_path);
  std::vector<std::string> names;
  for (const auto& one : classes) names.emplace_back(one.name);
  const auto found = std::ranges::find(names, last);
  if (found == names.end())
    throw io::Error(part->place + ": found " + io::in_quotes(part->class_path) +
                    ", allowed with a language model: " + io::joined(names) + "; " + io::the_nearest(last, names));
  const Class& one = classes[static_cast<std::size_t>(found - names.begin())];
  options.take(one.option, one.value, part->place);
  take_arguments(*part, one.arguments, options, run);
}

}  // namespace

void take_language_model(const RunTree& tree, Options& options, RunSettings& run) {
  if (run.model) take_arguments(*run.model, kModel, options, run);
  if (run.data) take_arguments(*run.data, kData, options, run);
  take_class(run.optimizer, kOptimizers, options, run);
  take_class(run.lr_scheduler, kSchedules, options, run);
  run.model.reset();
  run.data.reset();
  const auto given = [&](const char* key) { return tree.contains(std::string("trainer.") + key); };
  const bool has_epochs = run.trainer.max_epochs.value_or(-1) > 0;
  if (run.trainer.max_epochs && !has_epochs && !run.trainer.max_steps)
    throw io::Error(tree.place("trainer.max_epochs") + ": found -1 without trainer.max_steps, allowed: a number of " +
                    "epochs, or max_steps beside it, which the learning rate's schedule ends with");
  // What Lightning's files have where nobody said how long.
  if ((given("max_steps") || given("max_epochs")) && !run.trainer.max_steps && !has_epochs &&
      tree.find("trainer.max_time") == nullptr && tree.find("fp8.steps") == nullptr &&
      tree.find("fp8.epochs") == nullptr && options.source_of("--steps") == "default")
    options.take("--epochs", "1000", "Lightning's default");
  if (run.trainer.max_steps && has_epochs)
    throw io::Error(tree.place("trainer.max_steps") + ": found beside trainer.max_epochs (" +
                    tree.source("trainer.max_epochs") + "), allowed: one of them, the other null or -1");
}

}  // namespace fp8::commands
