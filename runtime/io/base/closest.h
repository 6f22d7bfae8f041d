// SPDX-License-Identifier: Apache-2.0
// Spelling help: the allowed word that is nearest to what was found, by edit distance.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::io {

/// Least number of insertions, deletions and replacements of one byte, and of exchanges of two neighbours of which no
/// other touches either, that make `a` to `b` ("optimal string alignment"; ASCII case is ignored).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  const auto same = [&](std::size_t i, std::size_t j) { return lower(a[i]) == lower(b[j]); };
  // Of the first i - 2, i - 1 and i bytes of `a`, to each beginning of `b`.
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j - 1] + (same(i - 1, j - 1) ? 0 : 1), above[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && same(i - 1, j - 2) && same(i - 2, j - 1)) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

/// The nearest of `allowed` (the first of equals); "" if there is none. Only the first 64 bytes of `found` are looked
/// at.
inline std::string closest(std::string_view found, const std::vector<std::string>& allowed) {
  std::string best;
  std::size_t best_distance = 0;
  for (const std::string& word : allowed) {
    const std::size_t distance = edit_distance(found.substr(0, 64), word);
    if (best.empty() || distance < best_distance) best = word, best_distance = distance;
  }
  return best;
}

/// "the nearest is 'word'", of names of which there is one at least.
inline std::string the_nearest(std::string_view found, const std::vector<std::string>& allowed) {
  return "the nearest is " + in_quotes(closest(found, allowed));
}

}  // namespace fp8::io
