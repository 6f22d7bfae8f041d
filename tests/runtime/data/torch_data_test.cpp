// SPDX-License-Identifier: Apache-2.0
// LibTorch's datasets and loaders: the trainer gets from them what a program of LibTorch's would.
#include "fp8/runtime/data/torch_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fp8/runtime/data/data_loader.h"
#include "fp8/runtime/trainer/trainer.h"
#include "runtime/trainer/toy_task.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::data {
namespace {

using trainer::testing::ToyTask;

/// Example i: data [4], target [1] = their sum.
class Sums : public torch::data::datasets::Dataset<Sums> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    const auto first = static_cast<std::int64_t>(index) * 4;
    const auto x = torch::arange(first, first + 4, torch::kFloat).sin();
    return {x, x.sum(0, true)};
  }
  std::optional<std::size_t> size() const override { return 30; }
};

using Stack = torch::data::transforms::Stack<>;

TEST(FromTorch, DatasetsMappedAndStacked) {
  const auto plain = from_torch(Sums()), stacked = from_torch(Sums().map(Stack()));
  const auto shifted = from_torch(Sums().map(torch::data::transforms::Normalize<>(0.5, 2.0)).map(Stack()));
  const auto alone = from_torch(torch::data::datasets::TensorDataset(torch::arange(12).view({6, 2})));
  EXPECT_EQ(plain->size(), 30);
  SampleRandom random(0, 0, 0);
  for (const std::int64_t i : {0, 7, 29}) {
    const auto expected = Sums().get(static_cast<std::size_t>(i));
    for (const auto& data : {plain, stacked}) {
      const auto sample = data->get(i, random);
      EXPECT_TRUE(test::same_bits(sample.at(0), expected.data));
      EXPECT_TRUE(test::same_bits(sample.at(1), expected.target));
    }
    EXPECT_TRUE(test::same_bits(shifted->get(i, random).at(0), expected.data.sub(0.5).div(2.0).view({1, 1, 4})));
  }
  EXPECT_TRUE(at::equal(alone->get(2, random).at(0), torch::tensor({4, 5})));
  EXPECT_EQ(alone->get(2, random).size(), 1u);
}

TEST(FromTorch, InOurLoaderWithThreads) {
  std::vector<at::Tensor> found;
  for (const int workers : {0, 3}) {
    DataLoader loader(from_torch(Sums().map(Stack())), {.batch_size = 8, .shuffle = true, .num_workers = workers});
    std::vector<at::Tensor> parts;
    while (const auto batch = loader.next()) parts.push_back(batch->tensors.at(0));
    found.push_back(torch::cat(parts));
  }
  EXPECT_TRUE(test::same_bits(found[0], found[1]));
  EXPECT_EQ(found[0].size(0), 30);
}

template <class Sampler>
auto loader_of(int workers) {
  return [workers] {
    return torch::data::make_data_loader<Sampler>(
        Sums().map(Stack()), torch::data::DataLoaderOptions(8).workers(static_cast<std::size_t>(workers)));
  };
}

TEST(TorchBatches, AreThoseOfTheLoader) {
  TorchBatches batches(loader_of<torch::data::samplers::SequentialSampler>(2), 4);
  auto theirs = loader_of<torch::data::samplers::SequentialSampler>(0)();
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    batches.seek(epoch, 0);
    for (auto& expected : *theirs) {
      const auto batch = batches.next();
      ASSERT_TRUE(batch.has_value());
      EXPECT_TRUE(test::same_bits(batch->tensors.at(0), expected.data));
      EXPECT_TRUE(test::same_bits(batch->tensors.at(1), expected.target));
      EXPECT_EQ(batch->samples, expected.data.size(0));
    }
    EXPECT_FALSE(batches.next().has_value());
  }
}

TEST(TorchBatches, TheOrderIsAFunctionOfSeedAndEpochAndLeavesTheGenerator) {
  using Random = torch::data::samplers::RandomSampler;
  TorchBatches a(loader_of<Random>(0), 4, 7), b(loader_of<Random>(2), 4, 7), other(loader_of<Random>(0), 4, 8);
  torch::manual_seed(1);
  const auto expected = torch::rand({3});
  torch::manual_seed(1);
  a.seek(1, 0);
  std::vector<at::Tensor> first;
  while (const auto batch = a.next()) first.push_back(batch->tensors.at(0));
  EXPECT_EQ(first.size(), 4u);
  b.seek(0, 3);
  b.seek(1, 2);
  EXPECT_TRUE(test::same_bits(torch::rand({3}), expected));
  EXPECT_TRUE(test::same_bits(b.next()->tensors.at(0), first[2]));
  b.seek(1, 3);
  EXPECT_TRUE(test::same_bits(b.next()->tensors.at(0), first[3]));
  b.seek(1, 1);  // back
  EXPECT_TRUE(test::same_bits(b.next()->tensors.at(0), first[1]));
  other.seek(1, 0);
  EXPECT_FALSE(at::equal(other.next()->tensors.at(0), first[0]));
}

/// Without Stack a batch is a list of examples.
TEST(TorchBatches, ExamplesThatNobodyStacked) {
  TorchBatches batches([] { return torch::data::make_data_loader(Sums(), 7); }, 5);
  const auto batch = batches.next();
  EXPECT_EQ(batch->tensors.at(0).sizes(), (std::vector<std::int64_t>{7, 4}));
  EXPECT_EQ(batch->samples, 7);
  TorchBatches too_many([] { return torch::data::make_data_loader(Sums(), 30); }, 2);
  EXPECT_TRUE(too_many.next().has_value());
  EXPECT_FALSE(too_many.next().has_value());
}

TEST(TorchBatches, ATrainingIsResumedWithTheSameBits) {
  const auto train = [](const std::filesystem::path& root, std::int64_t steps, bool resume) {
    ToyTask task(resume ? 5 : 1);
    TorchBatches batches(loader_of<torch::data::samplers::RandomSampler>(2), 4, 3);
    trainer::Trainer({.max_steps = steps, .checkpoint_root = root, .resume = resume}).fit(task, batches);
    return torch::nn::utils::parameters_to_vector(task.net->parameters()).detach();
  };
  const test::TempDir root;
  const auto whole = train(root / "whole", 11, false);
  train(root / "cut", 6, false);
  EXPECT_TRUE(test::same_bits(train(root / "cut", 11, true), whole));
}

}  // namespace
}  // namespace fp8::data
