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

/// Insertions, deletions, replacements, and exchanges of two neighbours.
std::size_t typing_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  const auto same = [&](std::size_t i, std::size_t j) { return io::lower(a[i]) == io::lower(b[j]); };
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (same(i - 1, j - 1) ? 0 : 1)});
      if (i > 1 && j > 1 && same(i - 1, j - 2) && same(i - 2, j - 1)) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
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
    const std::size_t distance = typing_distance(word, name);
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return best_distance > 1 && beginnings == 1 ? *begun : best;
}

std::string did_you_mean(std::string_view found, const std::vector<std::string>& allowed) {
  const std::string word = meant(found, allowed);
  return word.empty() ? "" : ", did you mean '" + word + "'?";
}

}  // namespace fp8::commands
