// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/observers/kept.h"

#include <optional>

#include "fp8/measure/observers/observer_types.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::measure {
namespace {

/// Files of unknown origin are taken for those of maxabs.
std::optional<ObserverType> type_of(const std::string& observer) {
  for (ObserverType& type : observer_types()) {
    if (type.name == (observer.empty() ? "maxabs" : observer)) return std::move(type);
  }
  return std::nullopt;
}

bool is_ground(Kept kept) { return kept == Kept::amax || kept == Kept::threshold; }

/// "which keeps sizes and is no ground for scales".
std::string reason_against(Kept kept) {
  return std::string("which keeps ") + (kept == Kept::sizes ? "sizes" : "tensors for a look at them") +
         " and is no ground for scales";
}

/// The observers that are: "a, b" + last + "c".
std::string grounds(const char* last) {
  const auto names = observer_names([](const ObserverType& type) { return is_ground(type.kept); });
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : i + 1 < names.size() ? ", " : last) + names[i];
  return text;
}

}  // namespace

std::string observer_problem(const configs::QuantConfig& config) {
  if (config.dynamic_quantization || !config.scale_methods.needs_measurements()) return "";
  const auto type = type_of(config.observer);
  if (!type.has_value() || is_ground(type->kept)) return "";
  return config.source + ": key 'observer': found \"" + config.observer + "\", " + reason_against(type->kept) +
         ", allowed where scales are made of measurements: " + grounds(", ");
}

void refuse_observer_without_amax(const configs::QuantConfig& config) {
  if (const std::string problem = observer_problem(config); !problem.empty()) throw io::Error(problem);
}

void require_amax(const MeasurementFile& file) {
  const bool shapes = file.mode == MeasurementMode::shape;
  for (const auto& m : file.modules) {
    for (std::size_t i = 0; !shapes && file.observer == "maxabs" && i < m.inputs.size(); ++i) {
      if (m.inputs[i].size() == 1) continue;
      throw io::Error("measurements: " + m.module + ".inputs[" + std::to_string(i) + "]: expected one amax, found " +
                      std::to_string(m.inputs[i].size()));
    }
  }
  const auto type = type_of(shapes ? "shape" : file.observer);
  if (!type.has_value() || is_ground(type->kept)) return;
  throw io::Error("measurements: found those of observer '" + type->name + "', " + reason_against(type->kept) +
                  "; measure with " + grounds(" or "));
}

bool has_thresholds(const MeasurementFile& file) {
  const auto type = type_of(file.observer);
  return !type.has_value() || type->kept == Kept::threshold;
}

bool has_heads(const MeasurementFile& file) {
  const auto type = type_of(file.observer);
  return type.has_value() && type->keeps_heads;
}

}  // namespace fp8::measure
