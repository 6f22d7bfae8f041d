// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/run/run_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <ranges>
#include <set>
#include <string_view>
#include <utility>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/commands/train/run/language_model_keys.h"
#include "fp8/tools/commands/train/run/trainer_keys.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

/// Options that say where and how the command speaks, not what the run is.
constexpr std::string_view kNotOfTheRun[] = {"--config",        "--print-config", "--json",     "--quiet",   "--resume",
                                             "--overwrite",     "--help",         "--help-all", "--version", "--color",
                                             "--training-args", "--plan",         "STAGE"};

/// "--grad-accum": trainer.accumulate_grad_batches; of an option that no key of trainer: is: fp8.NAME.
std::string key_of(const std::string& flag) {
  std::string name = flag.substr(2);
  std::ranges::replace(name, '-', '_');
  const TrainRow* row = find_option(name);
  const std::string_view key = row != nullptr ? row->columns.key : "";
  return key.starts_with("trainer.") || key == "seed_everything" ? std::string(key) : "fp8." + name;
}

io::Json value_of(const std::vector<std::string>& values, bool is_list) {
  if (!is_list) return io::yaml_scalar(values.at(0));
  io::Json list = io::Json::array();
  for (const auto& value : values) list.push_back(value);
  return list;
}

/// A library is code that runs as soon as it is loaded. A run file may come from anybody, so it names none that the
/// user did not name: it says what it needs, and loads nothing.
void require_named_libraries(const Options& options, const std::vector<std::string>& files, const std::string& place) {
  std::set<fs::path> named;
  const auto add = [&](const std::string& file) { named.insert(fs::weakly_canonical(file)); };
  for (const auto& [option, values] : options.given())
    if (option == "--load") std::ranges::for_each(values, add);
  const char* environment = io::environment_value("FP8_EXTENSIONS");
  for (const auto part : std::views::split(std::string_view(environment != nullptr ? environment : ""), ':'))
    if (!part.empty()) add(std::string(part.begin(), part.end()));
  for (const std::string& file : files) {
    if (named.contains(fs::weakly_canonical(file))) continue;
    throw io::Error(
        place + ": found the library " + io::in_quotes(file) +
        ", whose code would run, allowed: one that the command line names as well; if you trust it, add --load " +
        io::shell_word(io::printable(file, 4096)));
  }
}

/// fp8: {lr: 1e-3, keep: [lm_head]}
void take_options(const RunTree& tree, Options& options) {
  const io::Json* section = tree.find("fp8");
  if (section == nullptr) return;
  if (!section->is_object())
    throw io::Error(tree.place("fp8") + ": found " + io::printable(section->dump()) + ", allowed: an object");
  const auto names = options.names();
  for (const auto& [key, value] : section->items()) {
    const std::string option = configs::flag_of(key);
    const std::string place = tree.place("fp8." + key);
    if (std::ranges::find(names, option) == names.end() ||
        std::ranges::find(kNotOfTheRun, option) != std::end(kNotOfTheRun))
      throw io::Error(place + ": there is no option " + option + " for a run file, " + io::the_nearest(option, names));
    if (value.is_null()) continue;
    std::vector<std::string> list;
    for (const auto& part : value.is_array() ? value : io::Json::array({value}))
      list.push_back(option_text(part, place));
    if (option == "--load")
      require_named_libraries(options, list, place);
    else if (!list.empty())
      options.take(option, list, place);
  }
}

void take_seed(const RunTree& tree, Options& options) {
  const io::Json* seed = tree.find("seed_everything");
  if (seed == nullptr || *seed == false) return;
  const std::string place = tree.place("seed_everything");
  options.take("--seed", *seed == true ? "0" : option_text(*seed, place), place);
}

/// The checkpoint of ckpt_path: to go on from for fit, where that is the newest one; weights for the other stages.
void take_checkpoint(const RunTree& tree, Options& options, RunSettings& run) {
  const io::Json* path = tree.find("ckpt_path");
  if (path == nullptr) return;
  const std::string place = tree.place("ckpt_path"), text = option_text(*path, place);
  if (text == "best")
    throw io::Error(place + ": found \"best\", allowed: a folder that ModelCheckpoint wrote, last, or null");
  if (run.stage != Stage::fit)
    run.ckpt_path = text;
  else if (text == "last")
    options.take("--resume", "true", place);
  else
    throw io::Error(place + ": found " + io::in_quotes(text) +
                    ", allowed for fit: null, or last, which is --resume from the newest checkpoint in --out");
}

void take_classes(const RunTree& tree, Options& options, RunSettings& run) {
  const auto part = [&](const char* key, std::optional<trainer::Part>& target) {
    if (tree.find(key) != nullptr) target = tree.part(key);
  };
  part("model", run.model);
  part("data", run.data);
  part("optimizer", run.optimizer);
  part("lr_scheduler", run.lr_scheduler);
  const bool own_model = run.model && trainer::own_name(run.model->class_path) != kLanguageModel;
  if (!own_model && run.data && trainer::own_name(run.data->class_path) != kTextData)
    throw io::Error(run.data->place + ": found " + io::in_quotes(run.data->class_path) +
                    " without a model of its own, allowed: " + kTextData + ", or model.class_path beside it");
  if (own_model) return;
  take_language_model(tree, options, run);
}

}  // namespace

std::string option_text(const io::Json& value, const std::string& place) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_structured() || value.is_null())
    throw io::Error(place + ": found " + io::printable(value.dump()) + ", allowed: a text, number or switch");
  if (!value.is_number_float()) return value.dump();
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value.get<double>()).ptr};
}

RunTree take_run_files(Options& options, RunSettings& run) {
  const RunTree tree = read_run({run.configs.begin(), run.configs.end()}, name_of(run.stage),
                                io::environment_entries("PL_"), run.dotted);
  take_seed(tree, options);
  take_trainer(tree, options, run);
  take_classes(tree, options, run);
  take_checkpoint(tree, options, run);
  take_options(tree, options);
  run.tree = tree.value();
  return tree;
}

RunTree resolved(RunTree tree, const Options& options, const RunSettings& run, const std::vector<std::string>& files) {
  const auto of_the_run = [](const std::string& option) {
    return std::ranges::find(kNotOfTheRun, option) == std::end(kNotOfTheRun);
  };
  const auto has_alternative = [&](const std::string& option) {  // --epochs, where --steps is asked for
    const auto given = [&](const std::string& other) { return options.source_of(other) != "default"; };
    return std::ranges::any_of(train_table(), [&](const TrainRow& row) {
      if (*row.columns.instead_of == '\0') return false;
      const std::string other = configs::flag_of(row.columns.instead_of);
      return (option == other && given(row.flag())) || (option == row.flag() && given(other));
    });
  };
  const auto set = [&](const std::string& option, const std::vector<std::string>& values, const std::string& source) {
    std::string key = key_of(option);
    if (option == "--epochs" && !parse_integer(values.at(0))) key = "fp8.epochs";  // trainer.max_epochs are whole
    // A plugin's precision goes before the trainer's, and `fp8:` before both.
    if (option == "--precision" && tree.find("trainer.plugins") != nullptr) key = "fp8.precision";
    tree.set(key, value_of(values, options.is_list(option) || values.size() > 1), source);
  };
  for (const auto& [option, values] : options.given())
    if (of_the_run(option)) set(option, values, "command line");
  for (const auto& option : files) set(option, options.taken(option), options.source_of(option));
  if (run.model) return tree;  // options of language models are none of its
  for (const auto& [option, value] : options.defaults()) {
    const std::string key = key_of(option);
    if (of_the_run(option) && options.source_of(option) == "default" && !has_alternative(option) && !tree.contains(key))
      tree.set(key, io::yaml_scalar(value), "default");
  }
  return tree;
}

}  // namespace fp8::commands
