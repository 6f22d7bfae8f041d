// SPDX-License-Identifier: Apache-2.0
// fp8 config explain|check FILE: what a QUANT_CONFIG means here, or what is wrong with it.
#include "fp8/tools/commands/config/config.h"

#include <memory>

#include "fp8/measure/observers/configured.h"
#include "fp8/measure/observers/kept.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/tools/commands/cli/command.h"

namespace fp8::commands {
namespace {

struct ConfigOptions {
  std::string action;
  std::filesystem::path file, model;
};

/// What is wrong with a config that parses: rules, and class names that mean nothing.
std::vector<std::string> problems_in_use(const configs::QuantConfig& config, const configs::Environment& environment,
                                         const Context& context) {
  auto problems = configs::rule_problems(config, device_dialect(context, "config"), environment);
  if (config.mode == configs::QuantMode::QUANTIZE) {
    if (auto problem = measure::observer_problem(config); !problem.empty()) problems.push_back(std::move(problem));
  }
  for (auto& problem : configs::unknown_type_problems(config)) problems.push_back(std::move(problem));
  return problems;
}

/// Everything wrong with the file, the environment, and the two together.
std::vector<std::string> problems_of(const ConfigOptions& o, const Context& context) {
  const io::Json json = io::read_json(o.file);
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

void run_check(const ConfigOptions& o, const Context& context) {
  const auto problems = problems_of(o, context);
  std::string text;
  for (const auto& problem : problems) text += problem + "\n";
  if (problems.empty()) text = o.file.string() + ": ok\n";
  context.result({{"file", o.file.string()}, {"ok", problems.empty()}, {"problems", problems}}, text);
  if (!problems.empty()) {
    throw io::Error(o.file.string() + ": " + std::to_string(problems.size()) +
                    (problems.size() == 1 ? " problem" : " problems"));
  }
}

void run_explain(const ConfigOptions& o, const Context& context) {
  const auto config =
      configs::read_quant_config(o.file, measure::parse_options());  // what does not parse has no meaning
  const auto environment = configs::environment();
  Explanation result = explain(config, environment, problems_in_use(config, environment, context));
  if (!o.model.empty()) {
    Explanation model = explain_modules(config, modules_of(o.model));
    model.json["path"] = o.model.string();
    result.json["model"] = std::move(model.json);
    result.text += "\n" + o.model.string() + "\n" + model.text;
  }
  context.result(result.json, result.text);
}

}  // namespace

Action add_config(Options& options) {
  auto values = std::make_shared<ConfigOptions>();
  options.text(
      "ACTION", values->action,
      "explain: value, origin and effect of every key; check: one line per problem, exit code 1 if there is one",
      Options::Need::required);
  options.path("FILE", values->file, "QUANT_CONFIG (JSON)", Options::Need::required);
  options.path("--model", values->model,
               "explain: checkpoint folder or TorchScript file, to see which modules are meant");
  return [values](Context& context) {
    if (values->action == "explain") return run_explain(*values, context);
    if (values->action != "check") throw UsageError("config: found '" + values->action + "', allowed: explain, check");
    if (!values->model.empty()) throw UsageError("config: --model goes with explain");
    run_check(*values, context);
  };
}

}  // namespace fp8::commands
