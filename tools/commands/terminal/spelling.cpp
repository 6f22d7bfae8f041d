// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/spelling.h"

#include <algorithm>
#include <cstddef>

#include "fp8/runtime/io/base/text.h"

namespace fp8::commands {
namespace {

std::string_view without_dashes(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  return word;
}

/// Letters that may be wrong in a word so long: "keep" is no misspelt "help", "quantise" is one of quantize.
std::size_t tolerance(std::size_t letters) { return letters < 3 ? 0 : letters < 5 ? 1 : letters < 9 ? 2 : 3; }

}  // namespace

std::string meant(std::string_view found, const std::vector<std::string>& allowed) {
  const std::string_view word = without_dashes(found.substr(0, 64));
  std::string best;
  std::size_t best_distance = tolerance(word.size()) + 1, beginnings = 0;
  const std::string* begun = nullptr;
  for (const std::string& candidate : allowed) {
    const std::string_view name = without_dashes(candidate);
    if (word.size() > 2 && name.starts_with(word)) ++beginnings, begun = &candidate;
    const std::size_t distance = io::edit_distance(word, name);
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return best_distance > 1 && beginnings == 1 ? *begun : best;
}

std::string did_you_mean(std::string_view found, const std::vector<std::string>& allowed) {
  const std::string word = meant(found, allowed);
  return word.empty() ? "" : ", did you mean '" + word + "'?";
}

}  // namespace fp8::commands
