// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/observers/configured.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "fp8/measure/observers/kept.h"
#include "fp8/measure/observers/observer_types.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::measure {
namespace {

/// There is one rank's part of that measurement, or several.
bool has_ranks(const StatsName& name) {
  const std::filesystem::path prefix(name.prefix), folder = prefix.has_parent_path() ? prefix.parent_path() : ".";
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return false;
  const auto all = list_stats(folder);
  return std::any_of(all.begin(), all.end(), [&](const StatsName& n) {
    return n.rank.has_value() && !n.is_scales() && n.observer == name.observer &&
           std::filesystem::path(n.prefix).filename() == prefix.filename();
  });
}

}  // namespace

StatsName measurement_of(const configs::QuantConfig& config, const std::string& prefix) {
  return {prefix, config.observer, {}, configs::file_rank(config, configs::environment())};
}

MeasurementFile measurements_for(const configs::QuantConfig& config, const std::string& where) {
  refuse_observer_without_amax(config);
  if (where.empty()) {
    configs::require_stats_path(config, "scale_method " + config.scale_methods.name() + " reads measurements there");
    const StatsName exact{config.dump_stats_path.string(), config.observer};
    return read_measurements(!exact.exists() && has_ranks(exact) ? find_measurement(exact.prefix, config.observer)
                                                                 : exact);  // which says what is missing
  }
  const StatsName found = find_measurement(where, config.observer);
  if (found.observer != config.observer && config.file_keys.count("observer") != 0) {
    throw io::Error(config.source + ": key 'observer': found \"" + config.observer + "\", but " + where +
                    " holds measurements of observer '" + found.observer + "'");
  }
  return read_measurements(found);
}

configs::ParseOptions parse_options() {
  configs::ParseOptions options;
  for (const ObserverType& type : observer_types()) options.observers.push_back({type.name, type.parameters});
  return options;
}

}  // namespace fp8::measure
