// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/ranks.h"

#include <optional>
#include <utility>

#include "fp8/configs/configs.h"
#include "fp8/measure/files/observer_types.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"

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

/// QUANT_CONFIG, where it asks for measurements.
std::optional<configs::QuantConfig> config_that_measures(const io::GetVariable& get) {
  const char* path = get("QUANT_CONFIG");
  if (path == nullptr || *path == '\0') return std::nullopt;
  auto config = configs::read_quant_config(path, measure::parse_options());
  const bool measures = config.mode == configs::QuantMode::MEASURE || config.mode == configs::QuantMode::SHAPE;
  return measures ? std::optional(std::move(config)) : std::nullopt;
}

}  // namespace

bool takes_part(Ranks ranks, const std::string& command, const Context& context, const io::GetVariable& get) {
  if (ranks == Ranks::any) return true;
  const auto process = one_of_several(get);
  if (!process.has_value()) return true;
  const bool may_measure = ranks == Ranks::first_unless_measures || ranks == Ranks::share_unless_measures;
  const auto config = may_measure ? config_that_measures(get) : std::nullopt;
  if (config.has_value()) return measures_as_rank(config->separate_measure_files, context);
  return ranks == Ranks::share_unless_measures || first_alone(*process, command, context);
}

bool takes_part(Ranks ranks, const std::string& command, const Context& context) {
  return takes_part(ranks, command, context, io::environment_value);
}

bool shares_work(const io::GetVariable& get) {
  return one_of_several(get).has_value() && !config_that_measures(get).has_value();
}

bool shares_work() { return shares_work(io::environment_value); }

bool is_first(const std::string& command, const Context& context) {
  const auto process = one_of_several(io::environment_value);
  return !process.has_value() || first_alone(*process, command, context);
}

bool measures_as_rank(bool separate_files, const Context& context) {
  const auto process = one_of_several(io::environment_value);
  if (!process.has_value()) return true;
  if (!separate_files) return first_alone(*process, "measure", context);
  context.warn(process->text() + ": each rank measures all of the samples, into files of its own (_" +
               std::to_string(process->rank) + "_" + std::to_string(process->size) +
               " in their names); fp8 measurements unify makes one of them");
  return true;
}

}  // namespace fp8::commands
