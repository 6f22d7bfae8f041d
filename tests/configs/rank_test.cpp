// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <stdexcept>

#include "fp8/configs/environment.h"

namespace fp8::configs {
namespace {

TEST(RankSuffix, NamesTheRankAndItsWorld) {
  EXPECT_EQ(rank_suffix(std::nullopt), "");
  EXPECT_EQ(rank_suffix(Rank{0, 1}), "_0_1");
  EXPECT_EQ(rank_suffix(Rank{3, 8}), "_3_8");
}

TEST(RankSuffix, RankMustLieInItsWorld) {
  EXPECT_THROW(rank_suffix(Rank{2, 2}), std::invalid_argument);
  EXPECT_THROW(rank_suffix(Rank{-1, 2}), std::invalid_argument);
  EXPECT_THROW(rank_suffix(Rank{0, 0}), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::configs
