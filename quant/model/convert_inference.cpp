// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/convert_inference.h"

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/damage/damage.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/leaf/pending_work.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {
namespace {

using configs::QuantConfig, configs::QuantMode;
using measure::WeightModule;

/// The request of a conversion: the config in force (none: our own convention) and the mode.
struct Request {
  std::optional<QuantConfig> config;
  QuantMode mode = QuantMode::NONE;
};

/// A path or JSON that was passed.
QuantConfig passed_config(const QuantSource& source) {
  const auto observers = measure::parse_options();
  if (const auto* path = std::get_if<std::filesystem::path>(&source.value())) {
    TORCH_CHECK(!path->empty(),
                "[convert_modules] `quant` must be either a bool, file path or a dictionary. Got an empty path");
    return configs::read_quant_config(*path, observers);
  }
  const auto& json = std::get<io::Json>(source.value());
  TORCH_CHECK(json.is_object(), "[convert_modules] `quant` must be either a bool, file path or a dictionary. Got ",
              json.type_name(), " ", json.dump().substr(0, 40));
  return configs::parse_quant_config(json, "quant", observers);
}

Request request_of(const InferenceOptions& options) {
  Request request;
  const auto environment = configs::quant_config_from_environment();
  if (const bool* quantize = std::get_if<bool>(&options.quant.value())) {
    if (environment.has_value()) request.config = configs::read_quant_config(*environment, measure::parse_options());
    const bool load = request.config.has_value() && request.config->mode == QuantMode::LOAD;
    request.mode = !*quantize ? QuantMode::MEASURE : load ? QuantMode::LOAD : QuantMode::QUANTIZE;
    return request;
  }
  if (environment.has_value())
    TORCH_WARN("[convert_modules] the config that was passed wins over QUANT_CONFIG=", environment->string());
  request.config = passed_config(options.quant);
  request.mode = request.config->mode;
  return request;
}

/// Tells RuntimeFlags of the last conversion: a config that was passed stands for QUANT_CONFIG, and whatever says
/// where measurements are for HABANA_LOGS.
void note_flags(const InferenceOptions& options, const Request& request) {
  using enum io::FlagSource;
  std::optional<io::FlagSetting> config, logs;
  const bool passed = request.config.has_value() && !std::holds_alternative<bool>(options.quant.value());
  if (passed) config = {request.config->source, call, "convert_modules()"};
  const std::string& folder = options.fp8_data_path.empty() ? options.dump_stats_path : options.fp8_data_path;
  if (request.config.has_value())
    logs = {request.config->dump_stats_path.string(), passed ? call : config_file, request.config->source};
  else if (!folder.empty())
    logs = {folder, call, "convert_modules()"};
  io::override_flag("QUANT_CONFIG", std::move(config));
  io::override_flag("HABANA_LOGS", std::move(logs));
}

/// Returns the prefix of the measurements; without a config, the vendor's packages' place under fp8_data_path.
std::string prefix_of(const InferenceOptions& options, const Request& request) {
  if (request.config.has_value()) return request.config->dump_stats_path.string();
  if (!options.fp8_data_path.empty()) return options.fp8_data_path + "/inc_output/measure";
  if (!options.dump_stats_path.empty()) return options.dump_stats_path;
  const char* logs = io::environment_value("HABANA_LOGS");
  return logs != nullptr ? std::string(logs) + "/inc_output/measure" : "fp8_measure/inc_output";
}

/// Of the files that several processes of one launcher measure into without a config; none where there is one.
std::optional<configs::Rank> one_of_several() {
  const auto process = configs::environment().process();
  return process.has_value() && process->world > 1 ? process : std::nullopt;
}

template <class Model>
ConversionReport measure_model(const Model& model, const Request& request, const std::string& prefix,
                               const NameLists& lists, bool plan_only) {
  measure::ConfiguredCalibration calibration;
  if (request.config.has_value()) {
    configs::refuse_load(*request.config);
    configs::require_stats_path(*request.config,
                                std::string("mode ") + configs::name_of(request.mode) + " writes measurements there");
    calibration = measure::calibration_options(*request.config);
  } else {
    calibration.options.rank = one_of_several();
  }
  calibration.options.prefix = prefix;
  ConversionReport report;
  std::vector<std::string> names;
  calibration.options.select = [&, select = calibration.options.select](const std::string& name,
                                                                        const std::string& type) {
    names.push_back(name);
    const auto keep = lists.reason_to_keep(name);
    const bool measured = (select ? select(name, type) : type == "Linear" || type == "Conv2d") && !keep.has_value();
    if (measured) {
      report.converted.push_back({name, type, "measured (" + calibration.options.observer + ")", 0, 0});
    } else {
      report.skipped.push_back({name, keep.has_value() ? *keep
                                      : select         ? "not selected by allowlist and blocklist"
                                                       : "type " + type + " is not measured"});
    }
    return measured;
  };
  if (plan_only) {
    for (const auto& m : measure::weight_modules(model)) calibration.options.select(m.name, m.type);
    for (const auto& n : measure::op_nodes(model)) calibration.options.select(n.name, n.type);
  } else {
    measure::CalibrationSession::attach(model, calibration.options);
  }
  if (calibration.filter != nullptr)
    for (const auto& entry : calibration.filter->unused_entries()) report.warnings.push_back(entry.message);
  lists.warn_of_idle(names, report.warnings);
  return report;
}

bool is_convolution(const WeightModule& m) { return configs::type_is(m.type, &configs::KindInfo::convolution); }

/// The report that convert() would give, with costs: 2 flops a weight for each row; an embedding multiplies nothing.
ConversionReport report_of(const Plan& plan, const std::vector<WeightModule>& modules) {
  ConversionReport report{{}, plan.skipped, plan.warnings};
  const auto scales = planned_weight_scales(plan, modules);
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    const auto& p = plan.modules[i];
    const auto m = std::ranges::find_if(modules, [&](const auto& w) { return w.name == p.info.name; });
    TORCH_INTERNAL_ASSERT(m != modules.end(), p.info.name, ": planned, and no module of the model");
    const at::Tensor w = m->weight.detach().contiguous();
    const bool simulated = p.scheme.compute == Compute::fake_quant;
    ConvertedModule line{m->name, m->type, p.scheme.describe(), static_cast<std::int64_t>(w.nbytes()),
                         simulated ? static_cast<std::int64_t>(w.nbytes()) : w.numel()};
    if (!configs::type_is(m->type, &configs::KindInfo::lookup))
      line.flops_per_row = 2.0 * static_cast<double>(w.numel());
    if (w.numel() != 0) {
      const std::int64_t rows = is_convolution(*m) ? w.size(0) : w.numel() / w.size(-1);
      const auto damage = weight_damage(w.const_data_ptr(), runtime::ops::float_type_of(w.scalar_type()), rows,
                                        w.numel() / rows, scales[i], p.scheme);
      const double input = p.scheme.activations == ActivationScaling::none || line.flops_per_row == 0
                               ? 0.0
                               : expected_rounding(p.scheme.format);
      if (damage.signal > 0) line.expected_error = std::hypot(std::sqrt(damage.noise / damage.signal), input);
    }
    report.converted.push_back(std::move(line));
  }
  for (const auto& n : plan.nodes) report.converted.push_back({n.info.name, n.info.type, n.scheme.describe(), 0, 0});
  return report;
}

std::vector<WeightModule> weights_of(const torch::nn::Module& model) { return measure::weight_modules(model); }
std::vector<WeightModule> weights_of(const torch::jit::Module& model) { return script_weight_modules(model); }

/// The vendor's words, for users who search for them.
[[noreturn]] void throw_unmeasured(const std::string& what) {
  io::fail<io::Error>("Failed to load file {}; run the fp8 measurement using a portion of data and try again: {}", what,
                      io::option("measure", "convert_modules(model, {.inference = true, .quant = false})"));
}

PlanOptions own_options(const std::string& prefix, recipes::Dialect dialect, std::map<std::string, std::string> keep) {
  PlanOptions plan;
  plan.dialect = dialect;
  plan.activations = ActivationScaling::static_tensor;
  plan.keep = std::move(keep);
  const measure::StatsName own_rank{prefix, "maxabs", {}, one_of_several()};
  try {
    plan.measurements = own_rank.rank.has_value() && own_rank.exists() ? measure::read_measurements(own_rank)
                                                                       : measure::read_measurements(prefix);
  } catch (const io::Error& e) {
    throw_unmeasured(io::raw_message(e));
  }
  return plan;
}

template <class Model>
ConversionReport quantize_model(const Model& model, const Request& request, const std::string& prefix,
                                const NameLists& lists, bool plan_only) {
  const runtime::RunsAtOnce addresses;
  // finalize() of the session alone would leave its watchers on the weights that stay in high precision.
  if (!plan_only && measure::CalibrationSession::of(model) != nullptr) measure::finalize_calibration(model);
  const auto dialect = runtime::device_dialect("convert_modules");
  const auto modules = weights_of(model);
  const auto nodes = measure::op_nodes(model);
  std::vector<std::string> names;
  for (const auto& m : modules) names.push_back(m.name);
  for (const auto& n : nodes) names.push_back(n.name);
  std::map<std::string, std::string> keep;
  for (const auto& name : names)
    if (auto reason = lists.reason_to_keep(name)) keep[name] = std::move(*reason);
  ConversionReport report;
  if (!request.config.has_value()) {
    const auto plan = own_options(prefix, dialect, std::move(keep));
    report = plan_only ? report_of(plan_for(modules, nodes, plan), modules) : convert(model, plan);
  } else {
    QuantConfig config = *request.config;
    config.mode = request.mode;
    const auto name = measure::measurement_of(config, prefix);
    try {
      report = plan_only ? report_of(plan_with_config(model, config, dialect, keep), modules)
                         : convert_with_config(model, config, dialect, keep);
    } catch (const io::Error& e) {
      if (config.mode == QuantMode::QUANTIZE && !name.exists() &&
          std::string_view(e.what()).starts_with(name.json().string()))
        throw_unmeasured(io::raw_message(e));
      throw;
    }
  }
  lists.warn_of_idle(names, report.warnings);
  return report;
}

template <class Model>
ConversionReport convert_as_asked(const Model& model, const InferenceOptions& options) {
  const Request request = request_of(options);
  note_flags(options, request);
  const std::string prefix = prefix_of(options, request);
  const NameLists lists(options.allow, options.block);
  switch (request.mode) {
    case QuantMode::NONE: return {};
    case QuantMode::MEASURE:
    case QuantMode::SHAPE: return measure_model(model, request, prefix, lists, options.plan_only);
    case QuantMode::LOAD:
    case QuantMode::QUANTIZE: return quantize_model(model, request, prefix, lists, options.plan_only);
    case QuantMode::AUTO:
      TORCH_CHECK(false, "[convert_modules] ", request.config->source,
                  ": key 'mode': found AUTO, allowed with a config that is passed: NONE, QUANTIZE, MEASURE");
  }
  return {};
}

/// A tagged weight as high-precision values; undefined if nothing of ours is on it.
at::Tensor values_of(const WeightModule& m) {
  auto* handler = fp8_handler(m.weight);
  if (handler == nullptr) return {};
  const at::Tensor codes = m.weight.detach();
  if (is_convolution(m)) return handler->all_values(codes, handler->original_dtype());
  const auto* tag = runtime::find_tag(m.weight);
  const auto view = runtime::view_of(*tag, codes);
  TORCH_CHECK(view.has_value(), "[restore] module '", m.name, "': expected its fp8 weight of sizes ", tag->sizes,
              ", found ", codes.sizes());
  return handler->dequantize(*tag, *view, codes).to(handler->original_dtype()).contiguous();
}

}  // namespace

ConversionReport convert_for_inference(const torch::nn::Module& model, const InferenceOptions& options) {
  return convert_as_asked(model, options);
}

ConversionReport convert_for_inference(const torch::jit::Module& model, const InferenceOptions& options) {
  return convert_as_asked(model, options);
}

int restore_inference(const torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  if (measure::CalibrationSession::of(model) != nullptr) measure::finalize_calibration(model);
  int count = 0;
  for (const auto& m : measure::weight_modules(model)) {
    const auto* tag = runtime::find_tag(m.weight);
    const bool simulated = tag != nullptr && runtime::handler_as<FakeQuantHandler>(tag->handler.get()) != nullptr;
    const at::Tensor values = values_of(m);
    if (!simulated && !values.defined()) continue;
    runtime::untag_weight(m.weight);
    if (values.defined()) at::Tensor(m.weight).set_data(values);
    ++count;
  }
  for (const auto& n : measure::op_nodes(model)) {
    if (n.slot == nullptr || node_handler(*n.slot) == nullptr) continue;
    n.slot->handler = nullptr;
    ++count;
  }
  return count;
}

std::size_t serve(const std::vector<at::Tensor>& weights) {
  std::size_t count = 0;
  for (const at::Tensor& weight : weights) {
    auto* handler = weight.defined() && weight.is_hpu() ? fp8_handler(weight) : nullptr;
    if (handler == nullptr) continue;
    handler->expect_products();
    ++count;
  }
  return count;
}

std::size_t serve(const torch::nn::Module& model) { return serve(model.parameters()); }

std::size_t serve(const torch::jit::Module& model) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : model.parameters()) weights.push_back(parameter);
  return serve(weights);
}

}  // namespace fp8::quant
