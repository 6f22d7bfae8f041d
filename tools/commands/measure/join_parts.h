// SPDX-License-Identifier: Apache-2.0
// The measurement that one process would have written, of those that several wrote, each of its samples: elementwise
// the largest values, samples added, what observers know merged by themselves (measurement_file.h). The parts stay.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/measure/files/stats_files.h"

namespace fp8::commands {

struct JoinedParts {
  std::size_t parts = 0, modules = 0;
  std::int64_t samples = 0;
  std::vector<std::filesystem::path> out;  ///< written
};

struct Part {
  measure::StatsName name;
  std::string mark;  ///< that it must have (measure_mark.h)
};

/// parts: in the order of their samples; mark: of what comes of them. Files of another measurement under the target's
/// name go into a backup. Throws io::Error for a part without its mark: it was cut short, or is of other data or
/// options.
JoinedParts join_parts(const std::vector<Part>& parts, const measure::StatsName& target, const std::string& mark);

}  // namespace fp8::commands
