// SPDX-License-Identifier: Apache-2.0
// Orders, shares of a batch, the random numbers of a sample.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "fp8/runtime/data/data_loader.h"
#include "fp8/runtime/data/dataset.h"

namespace fp8::data {
namespace {

using ::testing::ElementsAre;

TEST(EpochOrder, IsAPermutationOfItsSeedAndEpoch) {
  EXPECT_THAT(epoch_order(4, false, 1, 2), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(epoch_order(0, true, 1, 2), ElementsAre());
  std::set<std::vector<std::int64_t>> orders;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32})
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      auto order = epoch_order(50, true, seed, epoch);
      EXPECT_EQ(order, epoch_order(50, true, seed, epoch));
      orders.insert(order);
      std::sort(order.begin(), order.end());
      std::vector<std::int64_t> all(50);
      std::iota(all.begin(), all.end(), std::int64_t{0});
      EXPECT_EQ(order, all);
    }
  EXPECT_EQ(orders.size(), 9u);
}

/// Values of a program in Python, by the standard's text on seed_seq and mt19937_64: runs go on by them.
TEST(EpochOrder, IsTheOneOfTheStandardsGenerator) {
  EXPECT_THAT(epoch_order(12, true, 42, 3), ElementsAre(4, 9, 11, 7, 10, 2, 5, 1, 3, 0, 8, 6));
  EXPECT_THAT(epoch_order(5, true, std::uint64_t{7} << 32 | 1, 0), ElementsAre(1, 2, 4, 0, 3));
}

/// Every permutation of 4 equally often: 24 classes, 2400 draws, chi squared of 23 degrees below its 99.9th percentile.
TEST(EpochOrder, IsUniform) {
  std::map<std::vector<std::int64_t>, double> counts;
  for (std::int64_t epoch = 0; epoch < 2400; ++epoch) counts[epoch_order(4, true, 7, epoch)] += 1;
  EXPECT_EQ(counts.size(), 24u);
  double chi = 0;
  for (const auto& [order, count] : counts) chi += (count - 100) * (count - 100) / 100;
  EXPECT_LT(chi, 49.7);
}

std::vector<std::int64_t> positions(const Share& share) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < share.count; ++i) all.push_back(share.first + i * share.step);
  return all;
}

TEST(BatchPlan, SharesOfOneAndOfTwo) {
  const BatchPlan all(10, 4, false), whole(10, 4, true);
  EXPECT_EQ(all.batches(), 3);
  EXPECT_EQ(whole.batches(), 2);
  EXPECT_THAT(positions(all.share(2)), ElementsAre(8, 9));
  EXPECT_THAT(positions(whole.share(1)), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(positions(whole.share(2)), ElementsAre());
  EXPECT_THAT(positions(all.share(9)), ElementsAre());
  EXPECT_THAT(positions(all.share(0, 1, 2)), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(positions(all.share(2, 0, 3)), ElementsAre(8));
  EXPECT_THAT(positions(all.share(2, 2, 3)), ElementsAre());
  EXPECT_EQ(BatchPlan(0, 4, false).batches(), 0);
  EXPECT_EQ(BatchPlan(3, 4, true).batches(), 0);
}

TEST(SampleRandom, IsAFunctionOfSeedEpochAndIndex) {
  std::set<std::uint64_t> first;
  for (const std::uint64_t seed : {0, 1})
    for (std::int64_t epoch = 0; epoch < 4; ++epoch)
      for (std::int64_t index = 0; index < 100; ++index) {
        SampleRandom a(seed, epoch, index), b(seed, epoch, index);
        EXPECT_EQ(a.next(), b.next());
        first.insert(a.next());
      }
  EXPECT_EQ(first.size(), 800u);
  SampleRandom random(3, 0, 0);
  double sum = 0;
  std::vector<double> dice(6);
  for (int i = 0; i < 6000; ++i) {
    const double x = random.uniform(-1, 3);
    EXPECT_TRUE(x >= -1 && x < 3);
    sum += x;
    dice[random.below(6)] += 1;
  }
  EXPECT_NEAR(sum / 6000, 1, 0.06);                       // 4 deviations
  for (const double d : dice) EXPECT_NEAR(d, 1000, 120);  // 4 deviations
  EXPECT_TRUE(
      at::equal(at::randn({3}, SampleRandom(1, 2, 3).generator()), at::randn({3}, SampleRandom(1, 2, 3).generator())));
  EXPECT_FALSE(
      at::equal(at::randn({3}, SampleRandom(1, 2, 3).generator()), at::randn({3}, SampleRandom(1, 2, 4).generator())));
}

TEST(TensorDataset, HasRows) {
  const TensorDataset data({torch::arange(6).view({3, 2}), torch::arange(3)});
  SampleRandom random(0, 0, 0);
  EXPECT_EQ(data.size(), 3);
  const auto sample = data.get(1, random);
  EXPECT_TRUE(at::equal(sample[0], torch::tensor({2, 3})));
  EXPECT_TRUE(at::equal(sample[1], torch::tensor(1)));
  EXPECT_THROW(TensorDataset({}), std::invalid_argument);
  EXPECT_THROW(TensorDataset({torch::zeros({3}), torch::zeros({4})}), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::data
