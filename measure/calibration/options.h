// SPDX-License-Identifier: Apache-2.0
// What a QUANT_CONFIG asks of a calibration.
#pragma once
#include <memory>

#include "fp8/configs/configs.h"
#include "fp8/measure/calibration/session.h"
#include "fp8/measure/files/measurement_file.h"

namespace fp8::measure {

struct ConfiguredCalibration {
  CalibrationOptions options;
  /// What options.select asks; after attach() it knows which entries of the lists matched nothing.
  std::shared_ptr<configs::ModuleFilter> filter;
};

/// Selects every type of configs::module_types() that INC's rule over allowlist and blocklist selects. Outputs are left
/// out by measure_exclude OUTPUT and ALL (as in INC the other values have no effect), the observer is "shape" in mode
/// SHAPE, mse and kl aim at fp8_config on device_for_scales, else on `device`. prefix: dump_stats_path (empty as it may
/// be: configs::require_stats_path). Throws io::Error for class names with a module path.
ConfiguredCalibration calibration_options(const configs::QuantConfig& config, recipes::Dialect device,
                                          const configs::Environment& environment);
/// On the device and in the environment of this process. Throws io::Error for environment variables that don't parse.
ConfiguredCalibration calibration_options(const configs::QuantConfig& config);

/// The measurement that a config reads when it quantizes: its observer's, of this process's rank.
StatsName measurement_of(const configs::QuantConfig& config, const std::string& prefix);

/// What a config that quantizes reads from `where`: a folder, prefix or file that the user named, empty for its
/// dump_stats_path. Measurements of its observer; where the user named a place and the config no observer, the only
/// ones there. Throws io::Error: there are none, an empty dump_stats_path, an observer that keeps no amax.
MeasurementFile measurements_for(const configs::QuantConfig& config, const std::string& where = {});

/// Configs may name observers that are registered (observer.h) as well as those built in.
configs::ParseOptions parse_options();

}  // namespace fp8::measure
