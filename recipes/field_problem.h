// SPDX-License-Identifier: Apache-2.0
// What is wrong with one field of a recipe: readers of files put the file and the key before it, validate() throws it
// as "DelayedScaling: margin is 99, allowed: -64 to 64".
#pragma once
#include <optional>
#include <stdexcept>
#include <string>

namespace fp8::recipes {

struct FieldProblem {
  std::string field;    ///< the member's name
  std::string found;    ///< its value
  std::string allowed;  ///< what it may be
};

/// Throws std::invalid_argument for a problem, in one line; `type` is the struct's name.
inline void throw_problem(const char* type, const std::optional<FieldProblem>& problem) {
  if (!problem) return;
  throw std::invalid_argument(std::string(type) + ": " + problem->field + " is " + problem->found +
                              ", allowed: " + problem->allowed);
}

}  // namespace fp8::recipes
