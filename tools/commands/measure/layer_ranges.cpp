// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/measure/layer_ranges.h"

#include <algorithm>
#include <numeric>

namespace fp8::commands {
namespace {

/// Every rank takes what fits below `most` and leaves one layer for each rank behind it; the last takes the rest,
/// whether it fits or not.
std::vector<std::int64_t> fill(const std::vector<std::int64_t>& bytes, std::int64_t ranks, std::int64_t most) {
  const auto layers = static_cast<std::int64_t>(bytes.size());
  std::vector<std::int64_t> starts = {0};
  std::int64_t layer = 0;
  for (std::int64_t rank = 0; rank + 1 < ranks; ++rank) {
    std::int64_t sum = bytes[static_cast<std::size_t>(layer++)];
    for (; layer < layers - (ranks - 1 - rank); ++layer) {
      sum += bytes[static_cast<std::size_t>(layer)];
      if (sum > most) break;
    }
    starts.push_back(layer);
  }
  starts.push_back(layers);
  return starts;
}

std::int64_t largest(const std::vector<std::int64_t>& bytes, std::int64_t after,
                     const std::vector<std::int64_t>& starts) {
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank + 1 < starts.size(); ++rank) {
    const auto sum = std::accumulate(bytes.begin() + starts[rank], bytes.begin() + starts[rank + 1], std::int64_t{0});
    most = std::max(most, sum + (rank + 2 == starts.size() ? after : 0));
  }
  return most;
}

}  // namespace

std::vector<std::int64_t> layer_ranges(const std::vector<std::int64_t>& bytes, std::int64_t after, std::int64_t ranks) {
  std::int64_t low = 0, high = std::accumulate(bytes.begin(), bytes.end(), after);
  while (low < high) {
    const std::int64_t most = low + (high - low) / 2;
    if (largest(bytes, after, fill(bytes, ranks, most)) <= most) {
      high = most;
    } else {
      low = most + 1;
    }
  }
  return fill(bytes, ranks, high);
}

}  // namespace fp8::commands
