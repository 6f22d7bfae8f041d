// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/options.h"

#include "fp8/configs/module_types.h"
#include "fp8/configs/quant_config.h"
#include "fp8/runtime/device/device.h"

namespace fp8::measure {

ConfiguredCalibration calibration_options(const configs::QuantConfig& config, recipes::Dialect device,
                                          const configs::Environment& environment) {
  using configs::MeasureExclude;
  configs::refuse_type_paths(config);
  ConfiguredCalibration c;
  c.filter = std::make_shared<configs::ModuleFilter>(configs::module_filter(config));
  c.options.select = [filter = c.filter](const std::string& name, const std::string& type) {
    const bool selected = filter->selects(type, name);  // asked of every module, so that unused entries are known
    return selected && configs::type_is(type, &configs::KindInfo::quantized);
  };
  c.options.outputs = config.measure_exclude != MeasureExclude::OUTPUT && config.measure_exclude != MeasureExclude::ALL;
  c.options.prefix = config.dump_stats_path.string();
  c.options.observer = config.mode == configs::QuantMode::SHAPE ? "shape" : config.observer;
  c.options.parameters = {config.scale_params.observer.begin(), config.scale_params.observer.end()};
  c.options.format = config.fp8_config;
  c.options.fp8_max = recipes::fp8_max(config.fp8_config, config.device_for_scales.value_or(device));
  c.options.rank = configs::file_rank(config, environment);
  c.options.sample_interval = config.calibration_sample_interval;
  return c;
}

ConfiguredCalibration calibration_options(const configs::QuantConfig& config) {
  return calibration_options(config, runtime::device_dialect("measure"), configs::environment());
}

}  // namespace fp8::measure
