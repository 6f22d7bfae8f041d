// SPDX-License-Identifier: Apache-2.0
// Classes that a run file names: callbacks, loggers, models and data, with arguments of their own. No torch
// here.
//
//   callbacks:                                               Part{"lightning.pytorch.callbacks.EarlyStopping",
//   - class_path: lightning.pytorch.callbacks.EarlyStopping       {"monitor": "val_loss", "patience": 3}}
//     init_args: {monitor: val_loss, patience: 3}
#pragma once
#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::trainer {

struct Part {
  std::string class_path;
  io::Json init_args = io::Json::object();
  std::string place = {};                          ///< of class_path, "run.yaml:12: trainer.callbacks.0"
  std::map<std::string, std::string> places = {};  ///< of arguments
};

/// Modules of Python that this program stands for.
inline constexpr std::string_view kModules[] = {
    "lightning", "pytorch_lightning", "lightning_habana", "habana_frameworks", "fp8", "torch"};

/// "EarlyStopping" of "lightning.pytorch.callbacks.EarlyStopping"; whole for a class of another package.
inline std::string own_name(const std::string& class_path) {
  const std::string_view first = std::string_view(class_path).substr(0, class_path.find('.'));
  const bool ours = first.size() < class_path.size() && std::ranges::find(kModules, first) != std::end(kModules);
  return ours ? class_path.substr(class_path.rfind('.') + 1) : class_path;
}

// How Lightning's files write a time: 90, "DD:HH:MM:SS", {hours: 1, minutes: 30}. No torch here.

/// Throws io::Error naming `place` and what is allowed.
inline double seconds_of(const io::Json& value, const std::string& place) {
  const auto fail = [&]() {
    throw io::Error(place + ": found " + io::printable(value.dump()) +
                    ", allowed: seconds, \"DD:HH:MM:SS\", or an object of weeks, days, hours, minutes, seconds");
  };
  constexpr std::pair<const char*, double> kUnits[] = {
      {"days", 86400}, {"hours", 3600}, {"minutes", 60}, {"seconds", 1}, {"weeks", 604800}};
  double seconds = 0;
  if (value.is_number()) return value.get<double>();
  if (value.is_object()) {
    for (const auto& [unit, number] : value.items()) {
      const auto* row = std::ranges::find(kUnits, unit, [](const auto& pair) { return std::string(pair.first); });
      if (row == std::end(kUnits) || !number.is_number() || number < 0) fail();
      seconds += row->second * number.get<double>();
    }
    return seconds;
  }
  if (!value.is_string()) fail();
  std::string rest = value.get<std::string>();
  for (int unit = 0; unit < 4; ++unit) {
    const auto end = unit < 3 ? rest.find(':') : rest.size();
    const auto number = end == std::string::npos ? std::nullopt : io::parse_integer(rest.substr(0, end), 0, 1 << 30);
    if (!number) fail();
    seconds += kUnits[unit].second * static_cast<double>(number.value_or(0));
    rest = end < rest.size() ? rest.substr(end + 1) : "";
  }
  return seconds;
}

}  // namespace fp8::trainer
