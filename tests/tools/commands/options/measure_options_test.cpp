// SPDX-License-Identifier: Apache-2.0
// Layers of ranks against all ways to cut them.
#include "fp8/tools/commands/options/measure_options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

namespace fp8::commands {
namespace {

using Numbers = std::vector<std::int64_t>;

/// The bytes of the largest rank.
std::int64_t most_of(const Numbers& bytes, std::int64_t after, const Numbers& starts) {
  std::int64_t most = 0;
  for (std::size_t r = 0; r + 1 < starts.size(); ++r)
    most = std::max(most, std::accumulate(bytes.begin() + starts[r], bytes.begin() + starts[r + 1],
                                          r + 2 == starts.size() ? after : std::int64_t{0}));
  return most;
}

/// The least that there is among all ways to cut.
std::int64_t least(const Numbers& bytes, std::int64_t after, std::int64_t ranks) {
  const auto layers = static_cast<std::int64_t>(bytes.size());
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  Numbers starts = {0};
  const std::function<void()> cut = [&] {
    if (static_cast<std::int64_t>(starts.size()) == ranks) {
      starts.push_back(layers);
      best = std::min(best, most_of(bytes, after, starts));
      starts.pop_back();
      return;
    }
    for (std::int64_t next = starts.back() + 1; next < layers; ++next) {
      starts.push_back(next);
      cut();
      starts.pop_back();
    }
  };
  cut();
  return best;
}

TEST(LayerRanges, OfEqualLayers) {
  EXPECT_EQ(layer_ranges({5, 5, 5, 5}, 0, 2), (Numbers{0, 2, 4}));
  EXPECT_EQ(layer_ranges({5, 5, 5, 5}, 5, 2), (Numbers{0, 3, 4}));  // the head is as large as a layer
  EXPECT_EQ(layer_ranges({5, 5, 5, 5}, 100, 3), (Numbers{0, 2, 3, 4}));
  EXPECT_EQ(layer_ranges({5}, 3, 1), (Numbers{0, 1}));
  EXPECT_EQ(layer_ranges({0, 0, 0}, 0, 3), (Numbers{0, 1, 2, 3}));
}

TEST(LayerRanges, NoOtherWayHasASmallerLargestRank) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    Numbers bytes(1 + random() % 8);
    for (auto& b : bytes) b = random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random() % 1000);
    const auto after = static_cast<std::int64_t>(random() % 3 == 0 ? 0 : random() % 2000);
    const auto ranks = static_cast<std::int64_t>(1 + random() % bytes.size());
    const auto starts = layer_ranges(bytes, after, ranks);
    ASSERT_EQ(static_cast<std::int64_t>(starts.size()), ranks + 1);
    EXPECT_EQ(starts.front(), 0);
    EXPECT_EQ(starts.back(), static_cast<std::int64_t>(bytes.size()));
    for (std::size_t r = 0; r + 1 < starts.size(); ++r) EXPECT_LT(starts[r], starts[r + 1]);
    EXPECT_EQ(most_of(bytes, after, starts), least(bytes, after, ranks));
  }
}

}  // namespace
}  // namespace fp8::commands
