// SPDX-License-Identifier: Apache-2.0
// Shares of forwards: all samples, each once, in order, and never a part of a forward.
#include "fp8/tools/commands/inputs/forwards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace fp8::commands {
namespace {

using ::testing::ElementsAre;

TEST(Forwards, SharesAreOfWholeOnes) {
  const std::vector<std::int64_t> sizes = {2, 2, 1, 4, 2};  // samples 0-1, 2-3, 4, 5-8, 9-10
  const Forwards forwards(11, [&](std::int64_t first) {
    std::int64_t at = 0;
    for (const auto size : sizes) {
      if (at == first) return size;
      at += size;
    }
    ADD_FAILURE() << first;
    return std::int64_t{1};
  });
  EXPECT_EQ(forwards.count(), 5);
  EXPECT_EQ(forwards.samples(), 11);
  for (const std::int64_t shares : {1, 2, 3, 5, 8, 1000}) {
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < shares; ++i) {
      const auto share = forwards.share(i, shares);
      EXPECT_EQ(share.first, next);
      next += share.count;
      const auto starts = forwards.starts(share);
      EXPECT_EQ(starts.front(), share.first);
      EXPECT_EQ(starts.back(), next);
    }
    EXPECT_EQ(next, 11) << shares;
  }
  EXPECT_THAT(forwards.starts(forwards.share(1, 2)), ElementsAre(4, 5, 9, 11));
  EXPECT_THAT(forwards.starts(forwards.share(0, 1000)), ElementsAre(0));
}

TEST(Forwards, OfNothing) {
  const Forwards none(0, [](std::int64_t) { return 1; });
  EXPECT_EQ(none.count(), 0);
  EXPECT_EQ(none.share(0, 3).count, 0);
}

}  // namespace
}  // namespace fp8::commands
