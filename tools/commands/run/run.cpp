// SPDX-License-Identifier: Apache-2.0
// fp8 run: a TorchScript model on inputs from a file, in high precision or with measured modules in fp8. Samples run in
// order, so a model that keeps state in itself carries it from one to the next.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <optional>

#include "fp8/configs/configs.h"
#include "fp8/measure/calibration/recorder.h"
#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/quant/model/serve.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/progress.h"
#include "fp8/tools/commands/cli/stopwatch.h"
#include "fp8/tools/commands/cli/table.h"
#include "fp8/tools/commands/cli/torch_scope.h"
#include "fp8/tools/commands/inputs/script_input.h"
#include "fp8/tools/commands/run/run_options.h"
#include "fp8/tools/commands/run/run_output.h"

namespace fp8::commands {
namespace {

/// The config that is in force: --config, or QUANT_CONFIG of the environment where nothing else asks for fp8.
std::optional<configs::QuantConfig> config_of(const RunOptions& o) {
  std::optional<configs::QuantConfig> config;
  if (!o.config.empty()) {
    config = configs::read_quant_config(o.config, measure::parse_options());
  } else if (const auto path = configs::quant_config_from_environment(); path.has_value() && o.measurements.empty()) {
    config = configs::read_quant_config(*path, measure::parse_options());
  }
  if (!config.has_value() || config->mode == configs::QuantMode::NONE) return std::nullopt;
  if (config->mode == configs::QuantMode::MEASURE || config->mode == configs::QuantMode::SHAPE) {
    throw io::Error(config->source + ": key 'mode': found " + configs::name_of(config->mode) +
                    ", expected QUANTIZE (fp8 measure --config measures)");
  }
  configs::refuse_type_paths(*config);
  return config;
}

/// Nothing: the model stays in high precision.
std::optional<quant::PlanOptions> plan_of(const RunOptions& o, const Context& context) {
  quant::PlanOptions plan;
  plan.activations = quant::ActivationScaling::static_tensor;
  plan.config = config_of(o);
  plan.include = o.include;
  plan.exclude = o.exclude;
  // It runs here, so its codes are the emulated device's (FP8_HPU_DEVICE) unless somebody says otherwise.
  const bool gaudi2 = runtime::device_kind() == runtime::DeviceKind::gaudi2;
  plan.dialect = context.dialect.value_or(gaudi2 ? kernels::Dialect::gaudi2 : kernels::Dialect::ocp);
  if (plan.config.has_value()) {
    if (!o.include.empty() || !o.exclude.empty())
      throw UsageError("run: the QUANT_CONFIG decides the modules, --include and --exclude don't go with it");
    if (!context.dialect.has_value()) plan.dialect = runtime::device_dialect("run");
    if (!o.measurements.empty()) plan.measurements = measure::measurements_for(*plan.config, o.measurements);
    return plan;
  }
  if (o.measurements.empty()) {
    if (!o.include.empty() || !o.exclude.empty())
      throw UsageError("run: --include and --exclude go with --measurements");
    return std::nullopt;
  }
  plan.measurements = measure::read_measurements(o.measurements);
  return plan;
}

/// Converts the model. Modules that were watched and never called stay as they are.
quant::ConversionReport convert_script(const torch::jit::Module& model, const RunOptions& o, quant::PlanOptions plan) {
  if (plan.config.has_value() && o.measurements.empty())
    return quant::convert_with_config(model, *plan.config, *plan.dialect);
  if (plan.measurements.has_value() && !plan.config.has_value()) {
    for (const auto& name : plan.measurements->selected) {
      if (plan.measurements->find(name) == nullptr) plan.keep[name] = "never called while it was measured";
    }
  }
  return quant::convert(model, plan);
}

io::Json json_of(const quant::ConversionReport& report) {
  io::Json kept = io::Json::array(), converted = io::Json::array();
  for (const auto& m : report.converted)
    converted.push_back({{"name", m.name}, {"type", m.type}, {"scheme", m.scheme}});
  for (const auto& m : report.skipped) kept.push_back({{"name", m.name}, {"reason", m.reason}});
  return {{"modules_quantized", converted}, {"modules_kept", kept}};
}

/// All samples through the model; returns the seconds spent in forward.
double forward_all(const RunOptions& o, torch::jit::Module& model, const ScriptInputs& inputs, const Context& context,
                   RunOutput& output) {
  const auto device = resolve_device(context);
  Progress progress(context, "run", inputs.samples());
  double seconds = 0;
  for (std::int64_t first = 0; first < inputs.samples(); first += inputs.batch()) {
    check_interrupted();
    const std::int64_t count = std::min(inputs.batch(), inputs.samples() - first);
    auto arguments = inputs.arguments(first, count, device, compute_dtype(context));
    const Stopwatch forward;
    const auto result = call_forward(model, std::move(arguments), o.model);
    seconds += forward.seconds();
    output.append(output_tensors(result), first, count);
    progress.update(first + count);
  }
  return seconds;
}

void convert_and_run(const RunOptions& o, Context& context) {
  const at::NoGradGuard no_grad;
  const Stopwatch watch;
  const auto plan = plan_of(o, context);
  if (!plan.has_value() && context.dialect.has_value())
    throw UsageError("run: --dialect goes with --measurements, --config or a QUANT_CONFIG");
  if (plan.has_value() && context.device != "hpu")
    throw UsageError("--device: found '" + context.device + "', but fp8 modules run on hpu");
  auto model = load_script(o.model, context);
  const ScriptInputs inputs(o.inputs, model, o);
  quant::ConversionReport report;
  if (plan.has_value()) {
    report = convert_script(model, o, *plan);
    quant::serve(model);
    for (const auto& warning : report.warnings) context.warn(warning);
    if (report.converted.empty()) context.warn(o.model.string() + ": no module is quantized");
  }
  RunOutput output(o.out, inputs.samples(), o.reference);
  const double forward_seconds = forward_all(o, model, inputs, context, output);
  output.commit();
  const double seconds = watch.seconds();
  io::Json json = json_of(report);
  json.update({{"chunks", inputs.samples()},
               {"batch", inputs.batch()},
               {"seconds", seconds},
               {"forward_seconds", forward_seconds},
               {"outputs", output.json()},
               {"out", o.out.string()}});
  Table table({"run", ">" + o.model.filename().string()});
  table.row({"chunks", grouped(inputs.samples())});
  table.row({"modules in fp8", std::to_string(report.converted.size())});
  table.row({"modules kept", std::to_string(report.skipped.size())});
  output.rows(table);
  table.row({"seconds", human_seconds(seconds)});
  table.row({"out", o.out.string()});
  std::string text = table.text();
  for (const auto& m : report.skipped) text += fmt::format("kept {}: {}\n", m.name, m.reason);
  context.result(json, text);
}

const Provided g_run(run_script, convert_and_run);

}  // namespace
}  // namespace fp8::commands
