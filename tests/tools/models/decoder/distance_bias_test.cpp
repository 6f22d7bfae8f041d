// SPDX-License-Identifier: Apache-2.0
// Buckets of distances against transformers' T5Attention._relative_position_bucket (5.23), and what a bias hides.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "fp8/tools/models/decoder/attention.h"

namespace fp8::models {
namespace {

/// starts[b]: the nearest distance in bucket b; the bucket of a distance is the last that has begun.
void expect_starts(const BucketSpec& spec, bool both_ways, const std::vector<std::int64_t>& starts) {
  constexpr std::int64_t kRows = 300;
  const auto buckets = distance_buckets(spec, 0, kRows, both_ways);
  ASSERT_EQ(buckets.sizes(), (std::vector<std::int64_t>{kRows, kRows}));
  for (std::int64_t distance = 0; distance < kRows; ++distance) {
    const auto expected = std::upper_bound(starts.begin(), starts.end(), distance) - starts.begin() - 1;
    EXPECT_EQ(buckets[kRows - 1][kRows - 1 - distance].item<std::int64_t>(), expected) << distance;
    const auto behind = distance == 0 ? 0 : both_ways ? expected + spec.count / 2 : 0;
    EXPECT_EQ(buckets[0][distance].item<std::int64_t>(), behind) << "behind by " << distance;
  }
}

TEST(DistanceBuckets, AreThoseOfTransformers) {
  expect_starts({}, /*both_ways=*/true, {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91});
  expect_starts({}, /*both_ways=*/false, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                          16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113});
  expect_starts({.count = 8, .reach = 16}, /*both_ways=*/true, {0, 1, 2, 6});
  expect_starts({.count = 12, .reach = 100}, /*both_ways=*/false, {0, 1, 2, 3, 4, 5, 6, 10, 16, 25, 40, 63});
  expect_starts({.count = 7, .reach = 20}, /*both_ways=*/true, {0, 1, 5});
}

TEST(DistanceBuckets, LaterRowsSeeWhatIsInFront) {
  const BucketSpec spec;
  const auto all = distance_buckets(spec, 0, 50, false);
  EXPECT_TRUE(at::equal(distance_buckets(spec, 40, 10, false), all.narrow(0, 40, 10)));
}

TEST(SeenBias, HidesWhatIsNotSeen) {
  const auto bias = at::arange(12, at::kFloat).view({2, 3, 2});
  const auto all = seen_bias(bias, {});
  ASSERT_EQ(all.sizes(), (std::vector<std::int64_t>{1, 2, 2, 3}));
  EXPECT_EQ(all[0][1][0][2].item<float>(), 5);
  Sight causal;
  causal.causal = true;
  const auto triangle = seen_bias(bias, causal);
  EXPECT_EQ(triangle[0][0][1][1].item<float>(), 8);
  EXPECT_TRUE(std::isinf(triangle[0][0][0][1].item<float>()));
  const auto mask = at::tensor({1, 0, 1}, at::kLong).to(at::kBool).view({1, 1, 1, 3}).expand({4, 1, 2, 3});
  const auto masked = seen_bias(bias, {.mask = mask});
  ASSERT_EQ(masked.sizes(), (std::vector<std::int64_t>{4, 2, 2, 3}));
  EXPECT_TRUE(std::isinf(masked[3][1][1][1].item<float>()));
  EXPECT_EQ(masked[3][1][1][2].item<float>(), 11);
}

}  // namespace
}  // namespace fp8::models
