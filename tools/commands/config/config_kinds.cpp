// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <system_error>
#include <utility>

#include "fp8/configs/recipe_config.h"
#include "fp8/configs/training/deepspeed_config.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/commands/config/config.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
using configs::Findings;
using configs::KeyRow;
using configs::KeyRows;

constexpr const char* kGaudiConfigFile = "gaudi_config.json";

/// How many of the file's keys have one of these names, in hundredths.
int share_of_names(const io::Json& json, const std::vector<std::string>& names) {
  std::vector<KeyRow> rows;
  for (const auto& name : names) rows.push_back({name.c_str(), configs::allow::anything(), configs::KeyUse::read, ""});
  return configs::share_of_keys(json, rows);
}

std::vector<std::string> quant_names() {
  std::vector<std::string> names = {"whitelist", "blacklist"};
  for (const auto& key : configs::describe({})) {
    if (key.key != "$schema") names.push_back(key.key);
  }
  return names;
}

std::vector<std::string> recipe_names() {
  std::vector<std::string> names = {"preset", "dialect", "modules"};
  for (const auto& preset : configs::recipe_preset_names()) {
    const auto recipe = configs::recipe_preset(preset);
    if (!recipe) continue;
    const io::Json json = configs::to_json(*recipe);
    for (const auto& [key, value] : json.items()) {
      if (std::ranges::find(names, key) == names.end()) names.push_back(key);
    }
  }
  return names;
}

KeyRows rows_of(ConfigKind kind) {
  switch (kind) {
    case ConfigKind::deepspeed: return configs::deepspeed_keys();
    case ConfigKind::gaudi: return configs::gaudi_config_keys();
    case ConfigKind::arguments: return configs::training_argument_keys();
    case ConfigKind::quant:
    case ConfigKind::recipe: break;
  }
  return {};
}

Findings check_recipe(const io::Json& json, const std::string& source) {
  try {
    (void)configs::parse_recipe(json, source);
  } catch (const io::Error& error) {
    return {.problems = {error.what()}, .notes = {}};
  }
  return {};
}

/// A JSON's members as rows, one a leaf.
void add_members(const io::Json& json, Report& report) {
  for (const auto& [key, value] : json.items()) {
    const std::string text = io::printable(value.dump(-1, ' ', false, io::Json::error_handler_t::replace));
    report.add_entry("keys", {{"key", key}, {"value", value}}, {io::printable(key), text, "read", ""});
  }
}

void add_keys(ConfigKind kind, const io::Json& json, Report& report) {
  for (const auto& meaning : configs::key_meanings(json, rows_of(kind))) {
    const auto& row = *meaning.row;
    std::string effect = row.note;
    const io::Json flag = *row.flag != '\0' ? io::Json(configs::flag_of(row.flag)) : io::Json(nullptr);
    if (!flag.is_null()) effect = "fp8 train " + flag.get<std::string>() + ": " + effect;
    report.add_entry(
        "keys",
        {{"key", meaning.key}, {"value", meaning.value}, {"use", name_of(row.use)}, {"flag", flag}, {"note", row.note}},
        {meaning.key, meaning.value, name_of(row.use), effect});
  }
}

void add_batch(const io::Json& json, const configs::DeepSpeedUse& use, Report& result) {
  const auto batch = configs::deepspeed_batch(json, use);
  const auto known = [](std::int64_t n) { return n > 0 ? io::Json(n) : io::Json(nullptr); };
  result.json["batch"] = {{"train_batch_size", known(batch.train)},
                          {"train_micro_batch_size_per_gpu", known(batch.micro)},
                          {"gradient_accumulation_steps", known(batch.accumulation)},
                          {"processes", known(batch.processes)}};
  const auto text = [](std::int64_t n) { return n > 0 ? std::to_string(n) : std::string("?"); };
  result.below += "batch: " + text(batch.train) + " = micro batch " + text(batch.micro) + " x accumulation " +
                  text(batch.accumulation) + " x processes " + text(batch.processes) + "\n";
}

void add_command(const configs::TrainCommand& command, Report& result) {
  const auto arguments = command.arguments();
  result.json["command"] = arguments;
  result.json["environment"] = io::Json::object();
  std::string variables;
  for (const auto& [name, value] : command.variables) {
    result.json["environment"][name] = value;
    variables += name + "=" + value + " ";
  }
  std::vector<std::string> words;
  for (const auto& word : arguments) words.push_back(io::printable(word));
  result.below += variables + "fp8 train " + io::joined(words, " ") + "\n";
}

io::Json setting_value(const std::string& text) {
  io::Json value = io::Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool simple = !value.is_discarded() && !value.is_structured();
  return simple ? value : io::Json(text);
}

/// Arguments of the strategy and of its Trainer.
class StrategyArguments {
 public:
  void read(const fs::path& file) {
    const io::Json json = io::read_json(file);
    if (!json.is_object()) (void)configs::parse_deepspeed_strategy(json, file.string());  // throws, naming the keys
    for (const auto& [key, value] : json.items()) set(key, value);
  }

  /// "stage=3".
  void set(const std::string& setting) {
    const auto equals = setting.find('=');
    if (equals == std::string::npos || equals == 0)
      io::fail<UsageError>("--set: found '{}', allowed: NAME=VALUE, such as stage=3", io::printable(setting));
    set(setting.substr(0, equals), setting_value(setting.substr(equals + 1)));
  }

  io::Json json(configs::DeepSpeedStrategy start, const std::string& source) const {
    start = configs::parse_deepspeed_strategy(strategy_, source, std::move(start));
    io::Json config = configs::deepspeed_json(start);
    if (!trainer_.empty())
      configs::fill_in_deepspeed(config, start, configs::parse_deepspeed_trainer(trainer_, source), source);
    return config;
  }

 private:
  void set(const std::string& key, const io::Json& value) {
    const bool of_trainer = configs::find_row(configs::deepspeed_trainer_keys(), key) != nullptr;
    (of_trainer ? trainer_ : strategy_)[key] = value;
  }

  io::Json strategy_ = io::Json::object(), trainer_ = io::Json::object();
};

}  // namespace

ConfigKind kind_of(const io::Json& json, const fs::path& file) {
  if (file.filename() == kGaudiConfigFile) return ConfigKind::gaudi;
  const std::pair<ConfigKind, int> shares[] = {
      {ConfigKind::quant, share_of_names(json, quant_names())},
      {ConfigKind::recipe, share_of_names(json, recipe_names())},
      {ConfigKind::deepspeed, configs::share_of_keys(json, configs::deepspeed_keys())},
      {ConfigKind::gaudi, configs::share_of_keys(json, configs::gaudi_config_keys())},
      {ConfigKind::arguments, configs::share_of_keys(json, configs::training_argument_keys())}};
  return std::ranges::max_element(shares, {}, &std::pair<ConfigKind, int>::second)->first;  // the first of equals
}

Findings check_kind(ConfigKind kind, const io::Json& json, const std::string& source,
                    const configs::DeepSpeedUse& use) {
  switch (kind) {
    case ConfigKind::recipe: return check_recipe(json, source);
    case ConfigKind::deepspeed: return configs::check_deepspeed(json, source, use);
    case ConfigKind::gaudi: return configs::check_gaudi_config(json, source);
    case ConfigKind::arguments: return configs::check_training_arguments(json, source);
    case ConfigKind::quant: break;
  }
  return {};
}

Report explain_kind(ConfigKind kind, const io::Json& json, const std::string& source, const configs::DeepSpeedUse& use,
                    const Findings& findings) {
  Report result({"key", "value", "use", "effect"});
  result.json = {{"file", source}, {"kind", name_of(kind)}, {"keys", io::Json::array()}};
  if (kind == ConfigKind::recipe && findings.problems.empty())
    add_members(configs::to_json(configs::parse_recipe(json, source)), result);
  else
    add_keys(kind, json, result);
  if (findings.problems.empty() && json.is_object()) {
    if (kind == ConfigKind::deepspeed) add_batch(json, use, result);
    if (kind == ConfigKind::gaudi) add_command(configs::gaudi_config_command(json), result);
    if (kind == ConfigKind::arguments) add_command(configs::training_arguments_command(json), result);
  }
  result.json["problems"] = findings.problems;
  result.json["notes"] = findings.notes;
  for (const auto& problem : findings.problems) result.below += "problem: " + problem + "\n";
  for (const auto& note : findings.notes) result.below += "note: " + note + "\n";
  return result;
}

void write_op_lists(const io::Json& json, const fs::path& folder, bool overwrite) {
  const auto command = configs::gaudi_config_command(json);
  const auto ops = configs::autocast_ops(json);
  if (!ops) return;
  for (const auto& [name, file] : command.variables) refuse_existing(folder / file, overwrite);
  std::error_code error;
  if (!fs::create_directories(folder, error) && error)
    io::fail<io::Error>("{}: can't be made: {}", folder.string(), error.message());
  for (const auto& [name, file] : command.variables)
    write_output_file(folder / file, configs::op_list_text(name == "LOWER_LIST" ? ops->bf16 : ops->fp32));
}

io::Json deepspeed_of(const fs::path& strategy, const std::vector<std::string>& settings) {
  const bool is_file = strategy.has_parent_path() || strategy.extension() == ".json";
  try {
    StrategyArguments arguments;
    if (is_file) arguments.read(strategy);
    for (const auto& setting : settings) arguments.set(setting);
    return arguments.json(configs::deepspeed_strategy(is_file ? "hpu_deepspeed" : strategy.string()),
                          strategy.string());
  } catch (const io::Error& error) {
    if (is_file) throw;
    io::fail<UsageError>("config: {}", error.what());
  }
}

}  // namespace fp8::commands
