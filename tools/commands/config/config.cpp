// SPDX-License-Identifier: Apache-2.0
// fp8 config explain|check FILE: what a config means here, or what is wrong with it. fp8 config deepspeed NAME: the
// JSON that a strategy makes.
#include "fp8/tools/commands/config/config.h"

#include <system_error>

#include "fp8/measure/files/observer_types.h"
#include "fp8/tools/commands/cli/command.h"

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
  for (const auto& key : configs::describe({}))
    if (key.key != "$schema") names.push_back(key.key);
  return names;
}

std::vector<std::string> recipe_names() {
  std::vector<std::string> names = {"preset", "dialect", "modules"};
  for (const auto& preset : configs::recipe_preset_names()) {
    const auto recipe = configs::recipe_preset(preset);
    if (!recipe) continue;
    const io::Json json = configs::to_json(*recipe);
    for (const auto& [key, value] : json.items())
      if (std::ranges::find(names, key) == names.end()) names.push_back(key);
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

/// The kind whose keys most of the file's are, quant where none is; gaudi_config.json by its name.
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

/// Of every kind but quant. source: the file.
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

/// Every key with value and effect, what the whole comes to, and `findings`. Of every kind but quant.
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

/// Writes the two lists of a gaudi_config.json into a folder, named as its variables say; nothing if it has none.
/// Throws io::Error for one that is there already, without `overwrite`.
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

/// fp8 config deepspeed: DeepSpeed's JSON of a strategy that is called so, or whose arguments stand in a file.
/// settings: "stage=3", over those.
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

struct ConfigOptions {
  std::string action;
  std::filesystem::path file, model, out;
  std::optional<ConfigKind> kind;
  std::int64_t world_size = 0;  ///< 0: the launcher's
  std::optional<configs::DeepSpeedReader> reader;
  std::vector<std::string> settings;
  bool overwrite = false;
};

/// Returns the problems of a config that parses: broken rules, and class names that match no known class.
std::vector<std::string> problems_in_use(const configs::QuantConfig& config, const configs::Environment& environment,
                                         const Context& context) {
  auto problems = configs::rule_problems(config, device_dialect(context, "config"), environment);
  if (config.mode == configs::QuantMode::QUANTIZE)
    if (auto problem = measure::observer_problem(config); !problem.empty()) problems.push_back(std::move(problem));
  for (auto& problem : configs::unknown_type_problems(config)) problems.push_back(std::move(problem));
  return problems;
}

/// Everything wrong with a QUANT_CONFIG, the environment, and the two together.
std::vector<std::string> problems_of(const ConfigOptions& o, const io::Json& json, const Context& context) {
  auto problems = configs::quant_config_problems(json, o.file.string(), measure::parse_options());
  const bool parses = problems.empty();
  configs::Environment environment;
  try {
    environment = configs::environment();
    (void)environment.process();
  } catch (const io::Error& error) {
    problems.emplace_back(error.what());
  }
  if (!parses) return problems;
  const auto config = configs::parse_quant_config(json, o.file.string(), measure::parse_options());
  for (auto& problem : problems_in_use(config, environment, context)) problems.push_back(std::move(problem));
  return problems;
}

ConfigKind kind_of_file(const ConfigOptions& o, const io::Json& json) {
  const ConfigKind kind = o.kind.value_or(kind_of(json, o.file));
  const std::string is = o.file.string() + " is " + name_of(kind);
  if (kind != ConfigKind::deepspeed && o.world_size > 0)
    io::fail<UsageError>("config: --world-size goes with a DeepSpeed JSON, {}", is);
  if (kind != ConfigKind::deepspeed && o.reader)
    io::fail<UsageError>("config: --reader goes with a DeepSpeed JSON, {}", is);
  if (kind != ConfigKind::quant && !o.model.empty())
    io::fail<UsageError>("config: --model goes with a QUANT_CONFIG, {}", is);
  if (kind != ConfigKind::gaudi && !o.out.empty())
    io::fail<UsageError>("config: --out goes with deepspeed, or explain of a gaudi_config.json; {}", is);
  return kind;
}

configs::DeepSpeedUse deepspeed_use(const ConfigOptions& o) {
  const auto launched = io::launched();
  return {o.world_size > 0 ? o.world_size : launched ? launched->size : 0, o.reader};
}

void run_check(const ConfigOptions& o, const Context& context) {
  const io::Json json = io::read_json(o.file);
  const ConfigKind kind = kind_of_file(o, json);
  configs::Findings found;
  if (kind == ConfigKind::quant)
    found.problems = problems_of(o, json, context);
  else
    found = check_kind(kind, json, o.file.string(), deepspeed_use(o));
  std::string text;
  for (const auto& problem : found.problems) text += problem + "\n";
  if (found.problems.empty()) text = o.file.string() + ": ok\n";
  for (const auto& note : found.notes) text += "note: " + note + "\n";
  context.result({{"file", o.file.string()},
                  {"kind", name_of(kind)},
                  {"ok", found.problems.empty()},
                  {"problems", found.problems},
                  {"notes", found.notes}},
                 text);
  const auto count = found.problems.size();
  if (count > 0) io::fail<io::Error>("{}: {}{}", o.file.string(), count, count == 1 ? " problem" : " problems");
}

Report explain_quant(const ConfigOptions& o, const io::Json& json, const Context& context) {
  // A config that does not parse has nothing to explain, so this throws.
  const auto config = configs::parse_quant_config(json, o.file.string(), measure::parse_options());
  const auto environment = configs::environment();
  Report result = explain(config, environment, problems_in_use(config, environment, context));
  if (!o.model.empty()) {
    Report model = explain_modules(config, modules_of(o.model));
    model.json["path"] = o.model.string();
    result.json["model"] = std::move(model.json);
    result.below += "\n" + o.model.string() + "\n" + model.text();
  }
  return result;
}

void run_explain(const ConfigOptions& o, const Context& context) {
  const io::Json json = io::read_json(o.file);
  const ConfigKind kind = kind_of_file(o, json);
  if (kind == ConfigKind::quant) return explain_quant(o, json, context).print(context);
  const auto use = deepspeed_use(o);
  const auto findings = check_kind(kind, json, o.file.string(), use);
  if (!o.out.empty() && findings.problems.empty()) write_op_lists(json, o.out, o.overwrite);
  explain_kind(kind, json, o.file.string(), use, findings).print(context);
}

void run_deepspeed(const ConfigOptions& o, const Context& context) {
  if (!o.model.empty() || o.kind) throw UsageError("config: --model and --kind go with explain and check");
  refuse_existing(o.out, o.overwrite);
  const io::Json config = deepspeed_of(o.file, o.settings);
  const auto reader = o.reader.value_or(configs::DeepSpeedReader::lightning);
  const bool filled_in = config.contains("gradient_accumulation_steps");
  configs::DeepSpeedUse use = deepspeed_use(o);
  use.reader = filled_in ? configs::DeepSpeedReader::deepspeed : reader;
  for (const auto& problem : configs::check_deepspeed(config, o.file.string(), use).problems) context.warn(problem);
  if (o.out.empty()) return context.result(config, config.dump(2) + "\n");
  io::write_json(o.out, config);
  context.result({{"out", o.out.string()}, {"config", config}}, o.out.string() + ": written\n");
}

}  // namespace

Action add_config(Options& options) {
  auto values = std::make_shared<ConfigOptions>();
  options.text("ACTION", values->action,
               "explain: value, origin and effect of every key; check: one line per problem, exit code 1 if there is "
               "one; deepspeed: the JSON of Lightning's HPUDeepSpeedStrategy",
               Options::Need::required);
  options.offer("ACTION", {"explain", "check", "deepspeed"});
  options.path("FILE", values->file, io::Reach::read,
               "QUANT_CONFIG, recipe, DeepSpeed JSON, gaudi_config.json or training arguments (JSON); deepspeed: a "
               "strategy's name (hpu_deepspeed_stage_3) or a JSON of its arguments",
               Options::Need::required);
  options.choice<ConfigKind>("--kind", values->kind, "What FILE is (default: by its keys)");
  options.path("--model", values->model, io::Reach::read,
               "explain a QUANT_CONFIG: checkpoint folder or TorchScript file, to see which modules are meant");
  options.integer("--world-size", values->world_size, 1, io::kMaxRanks, "Processes, for a DeepSpeed JSON's batch",
                  "the launcher's, else any");
  options.choice<configs::DeepSpeedReader>("--reader", values->reader,
                                           "Who reads a DeepSpeed JSON (default: what one of them takes is right)");
  options.list("--set", values->settings,
               "deepspeed: NAME=VALUE, an argument of the strategy, or of its Trainer (precision, "
               "accumulate_grad_batches, gradient_clip_val, batch_size)");
  options.path("--out", values->out, io::Reach::file,
               "deepspeed: the file to write; explain a gaudi_config.json: a folder for its lists of operators");
  options.flag("--overwrite", values->overwrite, kOverwriteHelp);
  return [values](Context& context) {
    if (values->action == "deepspeed") return run_deepspeed(*values, context);
    if (!values->settings.empty()) throw UsageError("config: --set goes with deepspeed");
    if (values->action == "explain") return run_explain(*values, context);
    if (values->action != "check")
      io::fail<UsageError>("config: found '{}', allowed: explain, check, deepspeed", values->action);
    if (!values->model.empty()) throw UsageError("config: --model goes with explain");
    if (!values->out.empty()) throw UsageError("config: --out goes with deepspeed and explain");
    run_check(*values, context);
  };
}

}  // namespace fp8::commands
