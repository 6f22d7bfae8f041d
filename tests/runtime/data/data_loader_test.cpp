// SPDX-License-Identifier: Apache-2.0
// Batches are equal for any number of threads and from any place; errors, threads that hang, forks.
#include "fp8/runtime/data/data_loader.h"

#include "runtime/data/numbered.h"
#include "support/child.h"
#include "support/hpu_test.h"

namespace fp8::data {
namespace {

using testing::Door;
using testing::ids_of;
using testing::Numbered;
using testing::rest;

/// All tensors of an epoch.
std::vector<at::Tensor> epoch_of(DataLoader& loader, std::int64_t epoch, std::int64_t from = 0) {
  std::vector<at::Tensor> all;
  loader.seek(epoch, from);
  while (auto batch = loader.next()) all.insert(all.end(), batch->tensors.begin(), batch->tensors.end());
  return all;
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](const auto& x, const auto& y) { return bool(test::same_bits(x, y)); });
}

TEST(DataLoader, AnyNumberOfThreadsGivesTheSame) {
  DataLoader none(std::make_shared<Numbered>(103), {.batch_size = 4, .shuffle = true, .seed = 5});
  EXPECT_EQ(none.batches(), 26);
  const auto first = epoch_of(none, 0), second = epoch_of(none, 1);
  EXPECT_FALSE(same(first, second));
  for (const int workers : {1, 2, 4})
    for (const bool persistent : {false, true}) {
      auto data = std::make_shared<Numbered>(103, [](std::int64_t i) {  // late ones now and then
        if (i % 9 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      });
      DataLoader loader(data, {.batch_size = 4,
                               .shuffle = true,
                               .num_workers = workers,
                               .prefetch_factor = 3,
                               .seed = 5,
                               .persistent_workers = persistent});
      EXPECT_TRUE(same(epoch_of(loader, 0), first)) << workers;
      EXPECT_TRUE(same(epoch_of(loader, 1), second)) << workers;
      EXPECT_TRUE(same(epoch_of(loader, 1, 10), {second.begin() + 20, second.end()})) << workers;
    }
}

TEST(DataLoader, InOrderWithOrWithoutTheLast) {
  DataLoader all(std::make_shared<Numbered>(7), {.batch_size = 3}),
      whole(std::make_shared<Numbered>(7), {.batch_size = 3, .last_batch = LastBatch::drop});
  EXPECT_THAT(rest(all), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(rest(whole), ElementsAre(0, 1, 2, 3, 4, 5));
  DataLoader pairs(std::make_shared<Numbered>(7), {.batch_size = 2, .last_batch = LastBatch::drop, .multiple = 4});
  EXPECT_THAT(rest(pairs), ElementsAre(0, 1, 2, 3));
  DataLoader filled(std::make_shared<Numbered>(7), {.batch_size = 3, .last_batch = LastBatch::fill});
  EXPECT_THAT(rest(filled), ElementsAre(0, 1, 2, 3, 4, 5, 6, 0, 1));
  EXPECT_EQ(whole.batches(), 2);
  EXPECT_EQ(all.next(), std::nullopt);
}

TEST(DataLoader, SeeksWithoutReading) {
  for (const int workers : {0, 2}) {
    const auto data = std::make_shared<Numbered>(1000);
    DataLoader loader(data, {.batch_size = 10, .shuffle = true, .num_workers = workers, .seed = 1});
    loader.seek(3, 98);
    const auto ids = rest(loader);
    const auto order = epoch_order(1000, true, 1, 3);
    EXPECT_EQ(ids, std::vector<std::int64_t>(order.end() - 20, order.end()));
    EXPECT_EQ(std::set<std::int64_t>(data->read.begin(), data->read.end()),
              std::set<std::int64_t>(ids.begin(), ids.end()));
  }
}

TEST(DataLoader, MakesNoMoreAheadThanItMay) {
  const auto data = std::make_shared<Numbered>(1000);
  DataLoader loader(data, {.batch_size = 5, .num_workers = 2, .prefetch_factor = 3});
  ASSERT_TRUE(loader.next().has_value());
  for (int i = 0; i < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::lock_guard lock(data->mutex);
    EXPECT_LE(data->read.size(), 5u * (1 + 2 * 3));
    EXPECT_LE(data->threads.size(), 2u);
    if (data->read.size() == 35) break;
  }
  EXPECT_EQ(data->read.size(), 35u);
}

TEST(DataLoader, DealsToRanksAsOneWouldTakeThem) {
  DataLoader alone(std::make_shared<Numbered>(23), {.batch_size = 3, .shuffle = true, .seed = 2});
  alone.seek(1, 0);
  const auto order = rest(alone);
  for (const int workers : {0, 3}) {
    std::vector<std::int64_t> found(order.size(), -1);
    for (int rank = 0; rank < 3; ++rank) {
      DataLoader loader(std::make_shared<Numbered>(23),
                        {.batch_size = 3, .shuffle = true, .num_workers = workers, .seed = 2});
      for (std::int64_t batch = 0; batch < 8; batch += 3) {
        const auto part = loader.deal(1, batch, rank, 3);
        ASSERT_TRUE(part.has_value());
        const auto ids = part->samples > 0 ? ids_of(*part) : std::vector<std::int64_t>();
        for (std::size_t i = 0; i < ids.size(); ++i) found[static_cast<std::size_t>(batch * 3 + rank) + 3 * i] = ids[i];
      }
    }
    EXPECT_EQ(found, order) << workers;
  }
}

/// Ranks that evaluate take every so many batches, with a seek before each: what is made ahead is what comes.
TEST(DataLoader, StridesAreForeseen) {
  const auto data = std::make_shared<Numbered>(60);
  DataLoader loader(data, {.batch_size = 1, .num_workers = 2, .persistent_workers = true});
  for (std::int64_t batch = 1; batch < 60; batch += 4) {
    loader.seek(0, batch);
    EXPECT_THAT(ids_of(*loader.next()), ElementsAre(batch));
  }
  EXPECT_LE(data->read.size(), 15u + 8u);  // 15 batches, and what was made before the stride was known
  loader.seek(0, 3);
  EXPECT_THAT(rest(loader).size(), 57u);
}

TEST(DataLoader, AnErrorNamesItsSampleAndComesInItsPlace) {
  for (const int workers : {0, 1, 4}) {
    DataLoader loader(std::make_shared<Numbered>(40,
                                                 [](std::int64_t i) {
                                                   if (i == 13) throw std::runtime_error("no such picture");
                                                 }),
                      {.batch_size = 4, .num_workers = workers});
    for (int batch = 0; batch < 3; ++batch) EXPECT_TRUE(loader.next().has_value());
    try {
      loader.next();
      ADD_FAILURE() << "no error";
    } catch (const SampleError& error) {
      EXPECT_STREQ(error.what(), "[data] sample 13 (file 13): no such picture");
      EXPECT_EQ(error.index, 13);
      EXPECT_THROW(std::rethrow_exception(error.cause), std::runtime_error);
    }
    EXPECT_FALSE(loader.next().has_value()) << workers;
    loader.seek(0, 4);
    EXPECT_EQ(rest(loader).size(), 24u) << workers;
  }
}

TEST(DataLoader, OddErrors) {
  DataLoader ints(std::make_shared<Numbered>(4, [](std::int64_t) { throw 7; }), {.num_workers = 1});  // NOLINT
  EXPECT_REFUSED(ints.next(), "sample 0 (file 0): an exception that is no std::exception");
  struct Uneven : Numbered {
    using Numbered::Numbered;
    std::vector<at::Tensor> get(std::int64_t index, SampleRandom&) const override {
      return {torch::zeros({index + 1})};
    }
  };
  DataLoader uneven(std::make_shared<Uneven>(4), {.batch_size = 2, .num_workers = 1});
  EXPECT_REFUSED(uneven.next(), "[data] sample 1 (file 1): found Float of sizes [2]");
}

TEST(DataLoader, OptionsAreChecked) {
  const auto said = [](DataLoaderOptions options) {
    return test::error_of([&] { DataLoader(std::make_shared<Numbered>(1), std::move(options)); });
  };
  EXPECT_EQ(said({.batch_size = 0}), "[data] batch_size: found 0, allowed: 1 to 2^40");
  EXPECT_EQ(said({.num_workers = -1}), "[data] num_workers: found -1, allowed: 0 to 1024");
  EXPECT_THAT(said({.prefetch_factor = 0}), HasSubstr("prefetch_factor: found 0"));
  EXPECT_THAT(said({.timeout = -1}), HasSubstr("timeout: found -1"));
  EXPECT_THAT(said({.persistent_workers = true}), HasSubstr("persistent_workers: found true with num_workers 0"));
}

TEST(DataLoader, ASlowSampleIsNamedAfterTheTimeout) {
  auto door = std::make_shared<Door>();
  DataLoader loader(std::make_shared<Numbered>(8,
                                               [door](std::int64_t i) {
                                                 if (i == 2) door->wait();
                                               }),
                    {.batch_size = 2, .num_workers = 1, .timeout = 0.2});
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_REFUSED(loader.next(), "sample 2 (file 2): its worker has not come back for 0.2 s");
  loader.seek(0, 2);
  EXPECT_THAT(rest(loader), ElementsAre(4, 5, 6, 7));
  door->open();
}

/// A thread that hangs when training ends: the loader goes after its grace, and what the thread has stays.
TEST(DataLoader, AThreadThatHangsDoesNotHoldTheEnd) {
  auto door = std::make_shared<Door>();
  auto data = std::make_shared<Numbered>(8, [door](std::int64_t i) {
    if (i == 2) door->wait();
  });
  const std::weak_ptr<Numbered> watched = data;
  const auto begin = std::chrono::steady_clock::now();
  {
    DataLoader loader(std::move(data), {.batch_size = 2, .num_workers = 1});
    EXPECT_TRUE(loader.next().has_value());
    while (true) {  // until it has begun with what hangs
      const auto held = watched.lock();
      const std::lock_guard lock(held->mutex);
      if (held->read.size() == 3) break;
    }
    EXPECT_REFUSED(loader.close(), "sample 2 (file 2): its worker has not come back for 5 s");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_FALSE(watched.expired());
  door->open();
  for (int i = 0; i < 500 && !watched.expired(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(watched.expired());
}

TEST(DataLoader, AForkedProcessIsTold) {
  DataLoader loader(std::make_shared<Numbered>(100), {.num_workers = 2});
  ASSERT_TRUE(loader.next().has_value());
  const auto child = test::start_child([&] {
    const std::string told = test::error_of<std::logic_error>([&] { loader.next(); });
    ::_exit(told.find("make another loader") != std::string::npos ? 0 : 2);
  });
  EXPECT_EQ(test::status_of(child), 0);
  EXPECT_TRUE(loader.next().has_value());
}

TEST(DataLoader, BatchesGoToTheDevice) {
  DataLoader loader(
      std::make_shared<Numbered>(4),
      {.batch_size = 2, .num_workers = 1, .pin_memory = true, .non_blocking = true, .device = test::kHpu});
  const auto batch = loader.next();
  for (const auto& tensor : batch->tensors) EXPECT_EQ(tensor.device(), test::kHpu);
  EXPECT_TRUE(at::equal(batch->tensors[1].cpu(), torch::tensor({0, 1}).view({2, 1})));
  DataLoader pinned(std::make_shared<Numbered>(4), {.num_workers = 1, .pin_memory = true});
  EXPECT_TRUE(pinned.next()->tensors[0].is_pinned());
}

TEST(DataLoader, TokensAndOtherWaysToJoin) {
  struct Counted : Numbered {
    using Numbered::Numbered;
    std::int64_t tokens_of(std::int64_t index) const override { return 10 + index; }
  };
  DataLoader loader(
      std::make_shared<Counted>(3),
      {.batch_size = 3, .num_workers = 1, .pin_memory = true, .collate = [](const std::vector<Sample>& samples) {
         return std::vector<at::Tensor>{torch::cat({samples[0][1], samples[2][1]})};
       }});
  const auto batch = loader.next();
  EXPECT_EQ(batch->tokens, 33);
  EXPECT_TRUE(at::equal(batch->tensors.at(0), torch::tensor({0, 2})));
  EXPECT_TRUE(batch->tensors.at(0).is_pinned());
  DataLoader bad(std::make_shared<Numbered>(3),
                 {.collate = [](const auto&) -> std::vector<at::Tensor> { throw std::runtime_error("no"); }});
  EXPECT_REFUSED(bad.next(), "the batch of sample 0 (file 0): no");
}

// Samples side by side are what torch::stack makes of them; samples that do not fit are named.

std::string numbered(std::size_t i) { return "sample " + std::to_string(i); }

TEST(StackSamples, IsTorchStack) {
  std::vector<Sample> samples;
  for (int i = 0; i < 3; ++i)
    samples.push_back({torch::randn({4, 2}).t(), torch::tensor(i), torch::zeros({0, 3}, torch::kBFloat16)});
  const auto batch = stack_samples(samples, false, numbered);
  ASSERT_EQ(batch.size(), 3u);
  for (std::size_t t = 0; t < 3; ++t)
    EXPECT_TRUE(test::same_bits(batch[t], torch::stack({samples[0][t], samples[1][t], samples[2][t]}))) << t;
  EXPECT_FALSE(batch[0].is_pinned());
  EXPECT_TRUE(stack_samples(samples, true, numbered)[0].is_pinned());
  EXPECT_TRUE(test::same_bits(stack_samples(samples, true, numbered)[0], batch[0]));
}

TEST(StackSamples, NamesWhatDoesNotFit) {
  const auto said = [](const std::vector<Sample>& samples) {
    return test::error_of([&] { stack_samples(samples, false, numbered); });
  };
  EXPECT_EQ(
      said({{torch::zeros({2})}, {torch::zeros({3})}}),
      "[data] sample 1: found Float of sizes [3] on cpu, allowed: Float of sizes [2] on cpu, as tensor 0 of sample 0");
  EXPECT_THAT(said({{torch::zeros({2})}, {torch::zeros({2}, torch::kLong)}}), HasSubstr("sample 1: found Long"));
  EXPECT_THAT(said({{torch::zeros({2})}, {}}), HasSubstr("sample 1: found 0 tensors, allowed: 1, as in sample 0"));
  EXPECT_THAT(said({{at::Tensor()}}), HasSubstr("sample 0: found no tensor"));
  EXPECT_THAT(said({{torch::zeros({2}, test::on_hpu())}}), HasSubstr("allowed: a dense tensor on the CPU"));
}

// Orders, shares of a batch, the random numbers of a sample.

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
  const BatchPlan all(10, 4, LastBatch::keep, 1), whole(10, 4, LastBatch::drop, 1), filled(10, 4, LastBatch::fill, 8);
  EXPECT_EQ(all.batches(), 3);
  EXPECT_EQ(whole.batches(), 2);
  EXPECT_THAT(positions(all.share(2)), ElementsAre(8, 9));
  EXPECT_THAT(positions(whole.share(1)), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(positions(whole.share(2)), ElementsAre());
  EXPECT_THAT(positions(all.share(9)), ElementsAre());
  EXPECT_THAT(positions(all.share(0, 1, 2)), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(positions(all.share(2, 0, 3)), ElementsAre(8));
  EXPECT_THAT(positions(all.share(2, 2, 3)), ElementsAre());
  EXPECT_THAT(positions(filled.share(2)), ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(positions(filled.share(2, 1, 2)), ElementsAre(9, 11, 13, 15));
  EXPECT_EQ(filled.batches(), 4);
  for (const auto last : {LastBatch::keep, LastBatch::drop, LastBatch::fill})
    EXPECT_EQ(BatchPlan(0, 4, last, 1).batches(), 0);
  EXPECT_EQ(BatchPlan(3, 4, LastBatch::drop, 1).batches(), 0);
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
