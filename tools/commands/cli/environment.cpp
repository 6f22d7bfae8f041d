// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/environment.h"

#include <stdexcept>
#include <string_view>
#include <utility>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/kernels/simd.h"

namespace fp8::commands {

std::vector<std::string> environment_problems() {
  std::vector<std::string> problems;
  try {
    kernels::simd_level();
  } catch (const std::invalid_argument& error) {
    problems.emplace_back(error.what());
  }
  for (const io::Variable& row : io::variables()) {
    if (std::string_view(row.reader) != "runtime/device") continue;
    if (std::string problem = io::environment_problem(row.name); !problem.empty())
      problems.push_back(std::move(problem));
  }
  return problems;
}

}  // namespace fp8::commands
