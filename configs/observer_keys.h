// SPDX-License-Identifier: Apache-2.0
// What a QUANT_CONFIG may say of observers: their names, and their parameters in scale_params. Configs knows none
// itself; who does passes them (ParseOptions).
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::configs {

/// A number that an observer reads.
struct ObserverParameter {
  std::string_view name;  ///< a literal: "bins"
  double otherwise;       ///< its value where scale_params has none
  double low, high;       ///< above low, up to high; of an integer low itself too
  bool integer = false;

  bool takes(double value) const;
  /// "an integer from 16 to 65536", "a number above 0, up to 100".
  std::string allowed() const;
};

struct ObserverKeys {
  std::string name;
  std::optional<std::vector<ObserverParameter>> parameters = {};  ///< none: any number by any name
};

/// Lower case letters, digits and _: names of observers stand in names of files.
bool is_observer_name(std::string_view name);
inline constexpr const char* kObserverNames = "lower case letters, digits and _";

}  // namespace fp8::configs
