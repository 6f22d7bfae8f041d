// SPDX-License-Identifier: Apache-2.0
// merged_states().
#include "fp8/measure/observers/observer.h"
#include "fp8/tools/commands/cli/torch_scope.h"
#include "fp8/tools/commands/measure/measurements.h"

namespace fp8::commands {
namespace {

measure::ObserverStates merge_files(const std::vector<std::filesystem::path>& paths, measure::MeasurementFile& file) {
  auto states = measure::read_observer_states(paths[0]);
  for (std::size_t i = 1; i < paths.size(); ++i)
    measure::merge(states, measure::read_observer_states(paths[i]), paths[i].string());
  measure::apply(states, file, paths[0].string());
  return states;
}

const Provided g_states(merged_states, merge_files);

}  // namespace
}  // namespace fp8::commands
