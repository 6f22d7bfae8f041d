// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fp8/tools/commands/evaluate/scoring.h"

namespace fp8::commands {
namespace {

TEST(Confidence, StudentsQuantilesAreScipys) {
  // scipy.stats.t.ppf(0.975, n)
  for (const auto& [n, t] : {std::pair{1, 12.70620},
                             {2, 4.30265},
                             {3, 3.18245},
                             {4, 2.77645},
                             {5, 2.57058},
                             {7, 2.36462},
                             {10, 2.22814},
                             {31, 2.03951},
                             {63, 1.99834},
                             {1'000'000, 1.95997}})
    EXPECT_NEAR(student_t(n) / t, 1, 4e-4) << n;
}

TEST(Confidence, OfEqualChunksItIsTheStandardErrorOfTheMean) {
  // Python's statistics: mean, and stdev / sqrt(5), of [1, 2, 4, 4.5, 3.5]
  const auto e = estimate({2, 4, 8, 9, 7}, {2, 2, 2, 2, 2});
  EXPECT_DOUBLE_EQ(e.mean, 3);
  EXPECT_NEAR(e.error.value(), 0.6519202405202649, 1e-12);
  EXPECT_NEAR(e.interval.value()[0], 3 - 2.77645 * 0.65192, 1e-3);
  EXPECT_NEAR(e.interval.value()[1], 3 + 2.77645 * 0.65192, 1e-3);
}

TEST(Confidence, LongChunksWeighMore) {
  const auto e = estimate({3, 5, 1, 7}, {2, 4, 1, 5});
  EXPECT_DOUBLE_EQ(e.mean, 16.0 / 12);
  EXPECT_NEAR(e.error.value(), 0.06415002990995843, 1e-12);  // sqrt(4) stdev(x - mean n) / 12, with Python's statistics
  EXPECT_NEAR(e.interval.value()[0], 1.1291793076625112, 1e-12);
}

TEST(Confidence, OneChunkHasNone) {
  const auto e = estimate({3}, {2});
  EXPECT_EQ(e.mean, 1.5);
  EXPECT_FALSE(e.error.has_value() || e.interval.has_value());
}

}  // namespace
}  // namespace fp8::commands
