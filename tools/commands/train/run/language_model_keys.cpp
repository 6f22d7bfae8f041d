// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/run/language_model_keys.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/commands/train/run/trainer_keys.h"

namespace fp8::commands {
namespace {

/// A class of a run file. Its argument `lr` is the option whose key is SECTION.lr.
struct Class {
  const char *name, *section;
  const char* arguments;  ///< "lr=0.001": what the class has without it, if not what the option has
  const char *option = nullptr, *value = nullptr;  ///< that the class itself is
};
constexpr Class kModel = {"", "model", "init model tokenizer save_dtype activation_checkpointing"};
constexpr Class kData = {"", "data", "train val batch_size seq_len val_batch_size drop_last test predict"};
constexpr Class kOptimizers[] = {
    {"AdamW", "optimizer", "lr=0.001 weight_decay=0.01 eps=1e-08 betas=0.9,0.999", "--optimizer", "adamw"},
    {"FusedAdamW", "optimizer", "lr=0.001 weight_decay=0 eps=1e-06 betas=0.9,0.999", "--optimizer", "adamw"},
    {"Muon", "optimizer", "lr weight_decay", "--optimizer", "muon"}};
constexpr Class kSchedules[] = {{"CosineWithWarmup", "lr_scheduler", "warmup min_lr", "--schedule", "cosine"},
                                {"LinearWithWarmup", "lr_scheduler", "warmup min_lr", "--schedule", "linear"},
                                {"ConstantWithWarmup", "lr_scheduler", "warmup min_lr", "--schedule", "constant"}};

void take_betas(const std::string& first, const std::string& second, Options& options, const std::string& place) {
  options.take("--beta1", first, place);
  options.take("--beta2", second, place);
}

void take_betas(const io::Json& value, Options& options, const std::string& place) {
  if (!value.is_array() || value.size() != 2)
    throw io::Error(place + ": found " + io::printable(value.dump()) + ", allowed: two numbers");
  take_betas(option_text(value[0], place), option_text(value[1], place), options, place);
}

void take_argument(const std::string& option, const std::string& name, const io::Json& value, const std::string& place,
                   Options& options, RunSettings& run) {
  if (name == "betas") {
    take_betas(value, options, place);
  } else if (name == "test" || name == "predict") {
    (name == "test" ? run.test_data : run.predict_data) = option_text(value, place);
  } else if (name == "train" && value.is_array()) {
    std::vector<std::string> files;
    for (const auto& file : value) files.push_back(option_text(file, place));
    options.take(option, files, place);
  } else {
    options.take(option, option_text(value, place), place);
  }
}

void take_arguments(const trainer::Part& part, const Class& one, Options& options, RunSettings& run) {
  std::vector<std::string> names;
  std::map<std::string, std::string> fallbacks;
  for (const auto& word : words_of(one.arguments)) {
    names.push_back(word.substr(0, word.find('=')));
    if (names.back() != word) fallbacks[names.back()] = word.substr(names.back().size() + 1);
  }
  for (const auto& [name, value] : part.init_args.items())
    if (std::ranges::find(names, name) == names.end())
      throw io::Error(part.places.at(name) + ": " + part.class_path + " has no such argument here, allowed: " +
                      io::joined(names) + "; " + io::the_nearest(name, names));
  for (const auto& name : names) {
    const TrainRow* row = find_key(std::string(one.section) + "." + name);
    const auto found = part.init_args.find(name);
    const auto fallback = fallbacks.find(name);
    if (found != part.init_args.end() && !found->is_null())
      take_argument(row != nullptr ? row->flag() : "", name, *found, part.places.at(name), options, run);
    else if (name == "betas")
      take_betas(fallback->second.substr(0, 3), fallback->second.substr(4), options, part.place);
    else if (fallback != fallbacks.end())
      options.take(row->flag(), fallback->second, part.place);
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
  take_arguments(*part, one, options, run);
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
