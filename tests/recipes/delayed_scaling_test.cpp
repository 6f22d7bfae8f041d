// SPDX-License-Identifier: Apache-2.0
// The documented defaults of the two dialects of delayed scaling.
#include "fp8/recipes/recipes.h"

#include <gtest/gtest.h>

#include <string>

namespace fp8::recipes {
namespace {

TEST(DelayedScaling, DefaultIsTheGaudiDialect) {
  EXPECT_EQ(DelayedScaling{}, DelayedScaling::habana());
  const DelayedScaling recipe;
  EXPECT_EQ(recipe.margin, 0);
  EXPECT_EQ(recipe.interval, 1);
  EXPECT_EQ(recipe.fp8_format, RecipeFormat::E5M2);
  EXPECT_EQ(recipe.amax_history_len, 1);
  EXPECT_EQ(recipe.amax_compute_algo, AmaxComputeAlgo::most_recent);
  EXPECT_TRUE(recipe.reduce_amax);
  EXPECT_TRUE(recipe.power_of_two_scale);
}

TEST(DelayedScaling, NvidiaDiffersInFourFields) {
  const DelayedScaling recipe = DelayedScaling::nvidia();
  EXPECT_EQ(recipe.fp8_format, RecipeFormat::HYBRID);
  EXPECT_EQ(recipe.amax_history_len, 1024);
  EXPECT_EQ(recipe.amax_compute_algo, AmaxComputeAlgo::max);
  EXPECT_FALSE(recipe.power_of_two_scale);
  EXPECT_EQ(recipe.margin, 0);
  EXPECT_EQ(recipe.interval, 1);
  EXPECT_TRUE(recipe.reduce_amax);
  EXPECT_NE(recipe, DelayedScaling::habana());
}

TEST(DelayedScaling, NamesOfTheAlgorithms) {
  EXPECT_EQ(std::string(name_of(AmaxComputeAlgo::most_recent)), "most_recent");
  EXPECT_EQ(std::string(name_of(AmaxComputeAlgo::max)), "max");
}

}  // namespace
}  // namespace fp8::recipes
