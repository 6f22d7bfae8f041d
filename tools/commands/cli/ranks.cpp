// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/ranks.h"

#include <optional>

#include "fp8/configs/configs.h"
#include "fp8/measure/observers/configured.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/error.h"

namespace fp8::commands {
namespace {

/// None where this process is alone.
std::optional<io::Launched> one_of_several(const io::GetVariable& get) {
  auto process = io::launched(get);
  return process.has_value() && process->size > 1 ? process : std::nullopt;
}

bool first_alone(const io::Launched& process, const std::string& command, const Context& context) {
  if (process.rank == 0) return true;
  context.warn(command + ": " + process.text() + ": rank 0 does the work alone, nothing is done here");
  return false;
}

bool measures(const configs::QuantConfig& config) {
  return config.mode == configs::QuantMode::MEASURE || config.mode == configs::QuantMode::SHAPE;
}

}  // namespace

bool takes_part(Ranks ranks, const std::string& command, const Context& context, const io::GetVariable& get) {
  if (ranks == Ranks::any) return true;
  const auto process = one_of_several(get);
  if (!process.has_value()) return true;
  const char* path = get("QUANT_CONFIG");
  if (ranks == Ranks::first_unless_measures && path != nullptr && *path != '\0') {
    const auto config = configs::read_quant_config(path, measure::parse_options());
    if (measures(config)) return measures_as_rank(config.separate_measure_files, context);
  }
  return first_alone(*process, command, context);
}

bool takes_part(Ranks ranks, const std::string& command, const Context& context) {
  return takes_part(ranks, command, context, io::environment_value);
}

bool measures_as_rank(bool separate_files, const Context& context) {
  const auto process = one_of_several(io::environment_value);
  if (!process.has_value()) return true;
  if (!separate_files) return first_alone(*process, "measure", context);
  context.warn(process->text() + ": each rank measures all of the samples, into files of its own (_" +
               std::to_string(process->rank) + "_" + std::to_string(process->size) +
               " in their names); fp8 measurements merge makes one of them");
  return true;
}

}  // namespace fp8::commands
