// SPDX-License-Identifier: Apache-2.0
// A QUANT_CONFIG's observer: which names it may have, and the measurements that it reads. No torch here.
#pragma once
#include <string>

#include "fp8/configs/configs.h"
#include "fp8/measure/files/measurement_file.h"

namespace fp8::measure {

/// The measurement that a config reads when it quantizes: its observer's, of this process's rank.
StatsName measurement_of(const configs::QuantConfig& config, const std::string& prefix);

/// What a config that quantizes reads from `where`: a folder, prefix or file that the user named, empty for its
/// dump_stats_path. Measurements of its observer; where the user named a place and the config no observer, the only
/// ones there. Throws io::Error: there are none, an empty dump_stats_path, an observer that keeps no amax.
MeasurementFile measurements_for(const configs::QuantConfig& config, const std::string& where = {});

/// For reading a QUANT_CONFIG: it may name the observers of the table (observer_types.h), with their parameters.
configs::ParseOptions parse_options();

}  // namespace fp8::measure
