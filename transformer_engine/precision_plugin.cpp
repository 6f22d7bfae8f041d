// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/precision_plugin.h"

#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <cstdlib>

#include "fp8/measure/calibration_options.h"
#include "fp8/quant/config_convert.h"
#include "fp8/runtime/device/device.h"

namespace fp8::te {
namespace {

using configs::QuantConfig;
using configs::QuantMode;

struct Name {
  const char* spelling;
  const char* precision;
};
constexpr Name kPrecisions[] = {{"32-true", "32-true"}, {"32", "32-true"}, {"bf16-mixed", "bf16-mixed"}, {"bf16", "bf16-mixed"}, {"16-mixed", "16-mixed"}, {"fp8", "fp8"}};

/// What a conversion is asked to do: the config in force (none: our own convention) and the mode.
struct Request {
  std::optional<QuantConfig> config;
  QuantMode mode = QuantMode::NONE;
};

Request request_of(const ConvertOptions& options) {
  Request request;
  const auto environment = configs::quant_config_from_environment();
  const auto& value = options.quant.value();
  if (const bool* quantize = std::get_if<bool>(&value)) {
    if (environment.has_value()) request.config = configs::read_quant_config(*environment, measure::parse_options());
    const bool load = request.config.has_value() && request.config->mode == QuantMode::LOAD;
    request.mode = !*quantize ? QuantMode::MEASURE : load ? QuantMode::LOAD : QuantMode::QUANTIZE;
    return request;
  }
  if (environment.has_value()) {
    TORCH_WARN("[convert_modules] the config that was passed wins over QUANT_CONFIG=", environment->string());
  }
  const auto* path = std::get_if<std::filesystem::path>(&value);
  const auto observers = measure::parse_options();
  request.config = path != nullptr ? configs::read_quant_config(*path, observers) : configs::parse_quant_config(std::get<io::Json>(value), "quant", observers);
  request.mode = request.config->mode;
  return request;
}

template <class Model>
quant::ConversionReport measure_model(const Model& model, const Request& request, const std::string& prefix) {
  measure::ConfiguredCalibration calibration;
  if (request.config.has_value()) {
    configs::refuse_load(*request.config);
    calibration = measure::calibration_options(*request.config);
  }
  calibration.options.prefix = prefix;
  quant::ConversionReport report;
  calibration.options.select = [&, select = calibration.options.select](const std::string& name, const std::string& type) {
    const bool measured = select ? select(name, type) : type == "Linear" || type == "Conv2d";
    if (measured) {
      report.converted.push_back({name, type, "measured (" + calibration.options.observer + ")", 0, 0});
    } else {
      report.skipped.push_back({name, select ? "not selected by allowlist and blocklist" : "type " + type + " is not measured"});
    }
    return measured;
  };
  measure::CalibrationSession::attach(model, calibration.options);
  if (calibration.filter != nullptr) {
    for (const auto& entry : calibration.filter->unused_entries()) report.warnings.push_back(entry.message);
  }
  return report;
}

template <class Model>
quant::ConversionReport quantize_model(const Model& model, const Request& request, const std::string& prefix) {
  if (const auto session = measure::CalibrationSession::of(model)) session->finalize();
  const auto dialect = runtime::device_dialect("convert_modules");
  if (request.config.has_value()) {
    configs::QuantConfig config = *request.config;
    config.mode = request.mode;
    return quant::convert_with_config(model, config, dialect);
  }
  quant::PlanOptions plan;
  plan.dialect = dialect;
  plan.activations = quant::ActivationScaling::static_tensor;
  plan.measurements = measure::read_measurements(prefix);
  return quant::convert(model, plan);
}

/// Where measurements are without a config: as the vendor's packages put them under fp8_data_path.
std::string prefix_of(const ConvertOptions& options, const Request& request) {
  if (request.config.has_value()) return request.config->dump_stats_path.string();
  if (!options.fp8_data_path.empty()) return options.fp8_data_path + "/inc_output/measure";
  if (!options.dump_stats_path.empty()) return options.dump_stats_path;
  const char* logs = std::getenv("HABANA_LOGS");
  return logs != nullptr && *logs != '\0' ? std::string(logs) + "/inc_output/measure" : "fp8_measure/inc_output";
}

template <class Model>
quant::ConversionReport convert_for_inference(const Model& model, const ConvertOptions& options) {
  const Request request = request_of(options);
  const std::string prefix = prefix_of(options, request);
  switch (request.mode) {
    case QuantMode::NONE: return {};
    case QuantMode::MEASURE:
    case QuantMode::SHAPE: return measure_model(model, request, prefix);
    case QuantMode::LOAD:
    case QuantMode::QUANTIZE: return quantize_model(model, request, prefix);
    case QuantMode::AUTO: TORCH_CHECK(false, "[convert_modules] ", request.config->source, ": key 'mode': found AUTO, allowed with a config that is passed: NONE, QUANTIZE, MEASURE");
  }
  return {};
}

}  // namespace

Availability is_fp8_available() {
  if (runtime::device_kind() != runtime::DeviceKind::gaudi) return {};
  return {false, "fp8 not supported on GAUDI: Gaudi2 or higher required (FP8_HPU_DEVICE=gaudi2|gaudi3)"};
}

Availability is_fp16_available() {
  if (runtime::device_kind() != runtime::DeviceKind::gaudi) return {};
  return {false, "fp16 not supported on GAUDI: Gaudi2 or higher required (FP8_HPU_DEVICE=gaudi2|gaudi3)"};
}

ForwardContext::ForwardContext(std::optional<at::ScalarType> autocast, std::optional<Fp8AutocastOptions> fp8) {
  if (autocast.has_value()) autocast_.emplace(*autocast);
  if (fp8.has_value()) fp8_.emplace(std::move(*fp8));
}

ForwardContext::~ForwardContext() noexcept(false) {
  if (fp8_.has_value()) fp8_->end();  // may throw, which optional's own end may not
}

HPUPrecisionPlugin::HPUPrecisionPlugin(const std::string& precision, const std::string& device) : device_(device) {
  std::string allowed;
  for (const Name& name : kPrecisions) {
    if (precision == name.spelling) precision_ = name.precision;
    allowed += (allowed.empty() ? "" : ", ") + std::string(name.spelling);
  }
  TORCH_CHECK(!precision_.empty(), "[HPUPrecisionPlugin] found precision \"", precision, "\", allowed: ", allowed);
  TORCH_CHECK(device == "hpu" || device == "hpu:0", "[HPUPrecisionPlugin] found device \"", device, "\", allowed: hpu, hpu:0");
  const Availability needed = precision_ == "fp8" ? is_fp8_available() : precision_ == "16-mixed" ? is_fp16_available() : Availability{};
  TORCH_CHECK(needed.available, "[HPUPrecisionPlugin] ", needed.reason);
}

ForwardContext HPUPrecisionPlugin::forward_context(Fp8AutocastOptions options) const {
  if (precision_ == "bf16-mixed") return {at::kBFloat16, std::nullopt};
  if (precision_ == "16-mixed") return {at::kHalf, std::nullopt};
  if (precision_ == "32-true") return {std::nullopt, std::nullopt};
  options.enabled = true;
  options.recipe = recipe_;
  return {nested_bf16 ? std::optional<at::ScalarType>(at::kBFloat16) : std::nullopt, std::move(options)};
}

void HPUPrecisionPlugin::check_precision() const {
  TORCH_CHECK(precision_ == "fp8", "[convert_modules] HPUPrecisionPlugin.convert_modules() should only be used with precision=`fp8`, found ", precision_);
}

quant::ConversionReport HPUPrecisionPlugin::convert_modules(torch::nn::Module& model, const ConvertOptions& options) {
  check_precision();
  return convert_now(model, options);
}

void HPUPrecisionPlugin::set_recipe(const recipes::Recipe& recipe) {
  recipes::validate(recipe);
  recipe_ = recipe;
}

quant::ConversionReport HPUPrecisionPlugin::convert_now(torch::nn::Module& model, const ConvertOptions& options) {
  if (options.inference) return convert_for_inference(model, options);
  if (options.recipe.has_value()) set_recipe(*options.recipe);
  TrainingOptions training;
  training.recipe = recipe_;
  training.rules = options.rules;
  training.allow = options.allow;
  training.block = options.block;
  training.alignment = options.alignment;
  training.minimize_memory = options.minimize_memory;
  training.plan_only = options.plan_only || !options.replace_layers;
  if (!options.warm_start.empty()) training.warm_start = measure::read_measurements(options.warm_start);
  quant::ConversionReport report = convert_for_training(model, training);
  if (!options.replace_layers && !options.plan_only) {
    report = {};
    report.warnings.push_back("replace_layers is false: the recipe is kept for forward_context(), no module was converted");
  }
  return report;
}

quant::ConversionReport HPUPrecisionPlugin::convert_modules(torch::jit::Module& model, const ConvertOptions& options) const {
  check_precision();
  TORCH_CHECK(options.inference, "[convert_modules] expected inference = true for a TorchScript module: training is of torch::nn::Module trees");
  return convert_for_inference(model, options);
}

}  // namespace fp8::te
