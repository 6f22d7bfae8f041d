// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/precision_plugin.h"

#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

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

template <class Model>
quant::ConversionReport convert(const Model& model, const ConvertOptions& options, const std::string& precision) {
  TORCH_CHECK(precision == "fp8", "[convert_modules] expected a plugin of precision fp8, got ", precision);
  TORCH_CHECK(options.inference, "[convert_modules] expected inference = true; conversion for training is not built yet");
  const Request request = request_of(options);
  const std::string prefix = request.config.has_value() ? request.config->dump_stats_path.string() : options.dump_stats_path;
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

HPUPrecisionPlugin::HPUPrecisionPlugin(const std::string& precision) {
  std::string allowed;
  for (const Name& name : kPrecisions) {
    if (precision == name.spelling) precision_ = name.precision;
    allowed += (allowed.empty() ? "" : ", ") + std::string(name.spelling);
  }
  TORCH_CHECK(!precision_.empty(), "[HPUPrecisionPlugin] found precision \"", precision, "\", allowed: ", allowed);
}

quant::ConversionReport HPUPrecisionPlugin::convert_modules(torch::nn::Module& model, const ConvertOptions& options) const {
  return convert(model, options, precision_);
}

quant::ConversionReport HPUPrecisionPlugin::convert_modules(torch::jit::Module& model, const ConvertOptions& options) const {
  return convert(model, options, precision_);
}

}  // namespace fp8::te
