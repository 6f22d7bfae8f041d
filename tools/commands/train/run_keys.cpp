// SPDX-License-Identifier: Apache-2.0
#include <charconv>

#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

/// Options that say where and how the command speaks, not what the run is.
constexpr std::string_view kNotOfTheRun[] = {"--config",        "--print-config", "--json",     "--quiet",   "--resume",
                                             "--overwrite",     "--help",         "--help-all", "--version", "--color",
                                             "--training-args", "--dry-run",      "--verbose",  "STAGE"};

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

/// Throws io::Error for a library that the user did not name. A library runs code as soon as it is loaded, and a run
/// file may be untrusted: it declares the libraries that it needs, and loads none.
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
    io::fail<io::Error>(
        "{}: found the library {}, whose code would run, allowed: one that the command line names as well; if you "
        "trust it, add --load {}",
        place, io::in_quotes(file), io::shell_word(io::printable(file, 4096)));
  }
}

/// fp8: {lr: 1e-3, keep: [lm_head]}
void take_options(const RunTree& tree, Options& options) {
  const io::Json* section = tree.find("fp8");
  if (section == nullptr) return;
  if (!section->is_object())
    io::fail<io::Error>("{}: found {}, allowed: an object", tree.place("fp8"), io::printable(section->dump()));
  const auto names = options.names();
  for (const auto& [key, value] : section->items()) {
    const std::string option = configs::flag_of(key);
    const std::string place = tree.place("fp8." + key);
    if (std::ranges::find(names, option) == names.end() ||
        std::ranges::find(kNotOfTheRun, option) != std::end(kNotOfTheRun))
      io::fail<io::Error>("{}: there is no option {} for a run file, {}", place, option,
                          io::the_nearest(option, names));
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
    io::fail<io::Error>("{}: found \"best\", allowed: a folder that ModelCheckpoint wrote, last, or null", place);
  if (run.stage != Stage::fit)
    run.ckpt_path = text;
  else if (text == "last")
    options.take("--resume", "true", place);
  else
    io::fail<io::Error>(
        "{}: found {}, allowed for fit: null, or last, which is --resume from the newest checkpoint in --out", place,
        io::in_quotes(text));
}

// LanguageModel and TextData, and the optimizers and schedules that `fp8 train` has for them, as classes of a run file.
//
//   model: {class_path: LanguageModel, init_args: {init: config.json}}               or {model: DIR}
//   data: {class_path: TextData, init_args: {train: a.txt, val: b.txt, test: c.txt, batch_size: 16, seq_len: 256}}
//   optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.001}}               FusedAdamW, Muon
//   lr_scheduler: {class_path: CosineWithWarmup, init_args: {warmup: 100, min_lr: 0}}
//                                                                              LinearWithWarmup, ConstantWithWarmup

/// A class of a run file. Its argument `lr` is the option whose key is SECTION.lr.
struct Class {
  const char *name, *section;
  const char* arguments;  ///< "lr=0.001": what the class has without it, if not what the option has
  const char *option = nullptr, *value = nullptr;  ///< that the class itself is
};
constexpr Class kModel = {"", "model", "init model tokenizer save_dtype activation_checkpointing"};
constexpr Class kData = {"", "data", "train val batch_size seq_len val_batch_size drop_last last_batch test predict"};
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
    io::fail<io::Error>("{}: found {}, allowed: two numbers", place, io::printable(value.dump()));
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
      io::fail<io::Error>("{}: {} has no such argument here, allowed: {}; {}", part.places.at(name), part.class_path,
                          io::joined(names), io::the_nearest(name, names));
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
    io::fail<io::Error>("{}: found {}, allowed with a language model: {}; {}", part->place,
                        io::in_quotes(part->class_path), io::joined(names), io::the_nearest(last, names));
  const Class& one = classes[static_cast<std::size_t>(found - names.begin())];
  options.take(one.option, one.value, part->place);
  take_arguments(*part, one, options, run);
}

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
    io::fail<io::Error>(
        "{}: found -1 without trainer.max_steps, allowed: a number of epochs, or max_steps beside it, which the "
        "learning rate's schedule ends with",
        tree.place("trainer.max_epochs"));
  // Lightning's files without a length mean 1000 epochs.
  if ((given("max_steps") || given("max_epochs")) && !run.trainer.max_steps && !has_epochs &&
      tree.find("trainer.max_time") == nullptr && tree.find("fp8.steps") == nullptr &&
      tree.find("fp8.epochs") == nullptr && options.source_of("--steps") == "default")
    options.take("--epochs", "1000", "Lightning's default");
  if (run.trainer.max_steps && has_epochs)
    io::fail<io::Error>("{}: found beside trainer.max_epochs ({}), allowed: one of them, the other null or -1",
                        tree.place("trainer.max_steps"), tree.source("trainer.max_epochs"));
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
    io::fail<io::Error>("{}: found {} without a model of its own, allowed: {}, or model.class_path beside it",
                        run.data->place, io::in_quotes(run.data->class_path), kTextData);
  if (own_model) return;
  take_language_model(tree, options, run);
}

}  // namespace

std::string option_text(const io::Json& value, const std::string& place) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_structured() || value.is_null())
    io::fail<io::Error>("{}: found {}, allowed: a text, number or switch", place, io::printable(value.dump()));
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
