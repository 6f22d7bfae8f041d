// SPDX-License-Identifier: Apache-2.0
// fp8 config explain|check FILE: what a config means here, or what is wrong with it. fp8 config deepspeed NAME: the
// JSON that a strategy makes.
#include "fp8/tools/commands/config/config.h"

#include <memory>
#include <optional>

#include "fp8/measure/files/observer_types.h"
#include "fp8/runtime/io/base/fail.h"
#include "fp8/tools/commands/cli/command.h"

namespace fp8::commands {
namespace {

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
  if (config.mode == configs::QuantMode::QUANTIZE) {
    if (auto problem = measure::observer_problem(config); !problem.empty()) problems.push_back(std::move(problem));
  }
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
  options.path("FILE", values->file,
               "QUANT_CONFIG, recipe, DeepSpeed JSON, gaudi_config.json or training arguments (JSON); deepspeed: a "
               "strategy's name (hpu_deepspeed_stage_3) or a JSON of its arguments",
               Options::Need::required);
  options.choice<ConfigKind>("--kind", values->kind, "What FILE is (default: by its keys)");
  options.path("--model", values->model,
               "explain a QUANT_CONFIG: checkpoint folder or TorchScript file, to see which modules are meant");
  options.integer("--world-size", values->world_size, 1, io::kMaxRanks, "Processes, for a DeepSpeed JSON's batch",
                  "the launcher's, else any");
  options.choice<configs::DeepSpeedReader>("--reader", values->reader,
                                           "Who reads a DeepSpeed JSON (default: what one of them takes is right)");
  options.list("--set", values->settings,
               "deepspeed: NAME=VALUE, an argument of the strategy, or of its Trainer (precision, "
               "accumulate_grad_batches, gradient_clip_val, batch_size)");
  options.path("--out", values->out,
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
