// SPDX-License-Identifier: Apache-2.0
// The file beside a measurement that holds what its observers know: with it the measurements of several ranks or runs
// are merged (merge_states.h) as if one observer had seen all of the data. (It does not end in
// .json: other tools count those.) No torch here.
//
//   P_hooks_{observer}R.observers
//   {"Observer": "percentile", "Format": "E4M3", "Fp8Max": 448, "Parameters": {"percentile": 99.99},
//    "Nodes": {module: {"inputs": [state, ...], "outputs": [state, ...]?, "weight": state?}}}
#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "fp8/measure/files/measurement_file.h"
#include "fp8/recipes/scaling.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::measure {

struct ObserverStates {
  std::string observer;
  recipes::Format format = recipes::Format::E4M3;
  float fp8_max = 448.0f;
  std::map<std::string, double, std::less<>> parameters = {};
  std::map<std::string, io::Json> nodes = {};  ///< by module; as WatchedNode::states() gives them
};

/// "P_hooks_percentile_0_2.observers".
std::filesystem::path observer_states_path(const StatsName& name);

io::Json to_json(const ObserverStates& states);

/// Throws io::Error naming file and key.
ObserverStates read_observer_states(const std::filesystem::path& path);

/// For Observer::restore(): throws io::Error "WHERE: expected ..., found ...".
[[noreturn]] void bad_state(const std::string& where, const std::string& expected, const io::Json& found);

}  // namespace fp8::measure
