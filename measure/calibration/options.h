// SPDX-License-Identifier: Apache-2.0
// What is asked of a calibration, by its caller or by a QUANT_CONFIG.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "fp8/configs/configs.h"
#include "fp8/measure/observers/configured.h"
#include "fp8/recipes/scaling.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::measure {

struct CalibrationOptions {
  /// Which modules to watch: (name, type) -> bool. Default: every Linear and Conv2d.
  std::function<bool(const std::string&, const std::string&)> select;
  /// Key-value caches that `select` leaves out and this one takes, by name: watched per head, kept aside
  /// (MeasurementFile::kv_cache).
  std::function<bool(const std::string&)> kv_cache = {};
  /// outputs: false leaves out the outputs of kinds that don't need them (configs::KindInfo::outputs_always).
  bool inputs = true, outputs = true, weights = true;
  /// Where finalize() writes, "stats/inc_output"; empty: nowhere, the caller asks for result().
  std::string prefix;
  std::string observer = "maxabs";                             ///< observer_types.h
  std::map<std::string, double, std::less<>> parameters = {};  ///< of the observer
  recipes::Format format = recipes::Format::E4M3;              ///< what will be cast to, for mse and kl,
  float fp8_max = 448.0f;                                      ///< and where that saturates
  std::optional<configs::Rank> rank = {};  ///< one of several processes: its own files, P_hooks_maxabs_0_8.json
  /// The files are written every so many samples too (0: at the end). Without begin_samples() a sample is one forward.
  std::int64_t sample_interval = 0;
  /// What snapshot() of an earlier calibration said, which this one goes on from; null: from the beginning.
  io::Json resume = nullptr;
};

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

}  // namespace fp8::measure
