// SPDX-License-Identifier: Apache-2.0
// Training through the loader: any number of threads ends with the same weights, and so does a run that is killed
// (SIGKILL) in an epoch and resumes.

#include "fp8/runtime/data/torch_data.h"
#include "runtime/data/numbered.h"
#include "runtime/trainer/toy_task.h"
#include "support/child.h"

namespace fp8::data {
namespace {

using testing::Door;
using trainer::testing::ToyTask;

/// x [4] with a random part, y [1]: what ToyTask learns.
struct Points : Dataset {
  std::int64_t size() const override { return 61; }
  std::vector<at::Tensor> get(std::int64_t index, SampleRandom& random) const override {
    if (index % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    const auto x =
        torch::arange(4 * index, 4 * index + 4, torch::kFloat).sin() + 0.1 * torch::randn({4}, random.generator());
    return {x, x.sum(0, true)};
  }
};

struct Outcome {
  std::map<std::string, at::Tensor> weights;
  std::vector<double> losses;
};

/// kill_at: the step after which the process ends itself, 0: none.
Outcome train(int workers, const std::filesystem::path& root, bool resume, std::int64_t kill_at = 0) {
  ToyTask task(resume ? 9 : 1);
  DataLoader data(std::make_shared<Points>(), {.batch_size = 4, .shuffle = true, .num_workers = workers, .seed = 3});
  auto recorder = std::make_shared<trainer::testing::Recorder>();
  trainer::TrainerOptions options{.max_epochs = 3, .checkpoint_root = root, .save_every_n_steps = 5, .resume = resume};
  std::int64_t steps = 0;
  options.should_stop = [&] {
    if (++steps == kill_at) ::kill(::getpid(), SIGKILL);
    return false;
  };
  trainer::Trainer(options, {recorder}).fit(task, data);
  Outcome outcome;
  for (const auto& item : task.net->named_parameters()) outcome.weights[item.key()] = item.value().detach().clone();
  for (const auto& report : recorder->reports) outcome.losses.push_back(report.loss);
  return outcome;
}

void expect_same(const Outcome& a, const Outcome& b) {
  for (const auto& [name, tensor] : a.weights) EXPECT_TRUE(test::same_bits(tensor, b.weights.at(name))) << name;
}

TEST(Training, ThreadsDoNotChangeIt) {
  const test::TempDir root;
  const Outcome alone = train(0, root / "0", false);
  EXPECT_EQ(alone.losses.size(), 48u);
  for (const int workers : {1, 4}) {
    const Outcome found = train(workers, root / std::to_string(workers), false);
    EXPECT_EQ(found.losses, alone.losses) << workers;
    expect_same(alone, found);
  }
}

/// In a process of its own: one that was forked has no threads of LibTorch's.
TEST(Training, DISABLED_KillsItself) {
  train(2, std::getenv("KILLED_FOLDER"), false, std::atoi(std::getenv("KILLED_STEP")));
  FAIL() << "it lives";
}

/// The killed run has threads at work; the resumed one has another number of them.
TEST(Training, KilledInAnEpochItGoesOnWithTheSameBits) {
  const test::TempDir root;
  const Outcome whole = train(2, root / "whole", false);
  for (const auto& [kill_at, workers] : {std::pair(7, 4), std::pair(38, 0)}) {
    const auto folder = root / ("killed" + std::to_string(kill_at));
    const std::string command =
        "KILLED_FOLDER=" + folder.string() + " KILLED_STEP=" + std::to_string(kill_at) + " exec " +
        std::filesystem::canonical("/proc/self/exe").string() +
        " --gtest_also_run_disabled_tests --gtest_filter=Training.DISABLED_KillsItself >/dev/null";
    const int status = std::system(command.c_str());  // NOLINT
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    const Outcome rest = train(workers, folder, true);
    EXPECT_EQ(rest.losses.size(), 48u - static_cast<std::size_t>(kill_at / 5 * 5));
    EXPECT_EQ(
        std::vector<double>(whole.losses.end() - static_cast<std::ptrdiff_t>(rest.losses.size()), whole.losses.end()),
        rest.losses);
    expect_same(whole, rest);
  }
}

// LibTorch's datasets and loaders: the trainer gets from them what a program of LibTorch's would.

/// Example i: data [4], target [1] = their sum.
struct Sums : torch::data::datasets::Dataset<Sums> {
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

// Threads: jobs begin in order, errors stay in their job, threads that hang are left behind, a forked process gets an
// error.

std::shared_ptr<Job> job_of(std::function<void(Job&)> work) {
  auto job = std::make_shared<Job>();
  job->work = std::move(work);
  return job;
}

TEST(WorkerPool, BeginsInOrderAndKeepsErrorsApart) {
  std::vector<int> begun;
  WorkerPool pool(1);
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 20; ++i) {
    jobs.push_back(job_of([&begun, i](Job&) {
      begun.push_back(i);
      if (i == 7) throw std::runtime_error("seven");
    }));
    pool.add(jobs.back());
  }
  for (const auto& job : jobs) EXPECT_TRUE(pool.wait(*job, 0));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(begun[static_cast<std::size_t>(i)], i);
    EXPECT_EQ(jobs[static_cast<std::size_t>(i)]->error != nullptr, i == 7) << i;
  }
  EXPECT_TRUE(pool.stop(5));
  EXPECT_TRUE(pool.stop(5));
  EXPECT_TRUE(pool.unfinished().empty());
}

TEST(WorkerPool, WhatHangsIsLetGo) {
  auto door = std::make_shared<Door>();
  std::atomic<bool> second = false;
  {
    WorkerPool pool(2);
    const auto hangs = job_of([door](Job& job) {
      job.at = 42;
      door->wait();
    });
    pool.add(hangs);
    EXPECT_FALSE(pool.wait(*hangs, 0.05));
    const auto other = job_of([&](Job&) { second = true; });
    pool.add(other);
    EXPECT_TRUE(pool.wait(*other, 0));
    EXPECT_FALSE(pool.stop(0.05));
    ASSERT_EQ(pool.unfinished().size(), 1u);
    EXPECT_EQ(pool.unfinished()[0]->at, 42);
  }
  EXPECT_TRUE(second);
  door->open();
}

TEST(WorkerPool, WhatIsDroppedDoesNotBegin) {
  Door door;
  std::atomic<int> done = 0;
  WorkerPool pool(1);
  const auto first = job_of([&](Job&) { door.wait(); });
  const auto dropped = job_of([&](Job&) { ++done; }), last = job_of([&](Job&) { done += 10; });
  for (const auto& job : {first, dropped, last}) pool.add(job);
  pool.drop(dropped);
  door.open();
  EXPECT_TRUE(pool.wait(*last, 0));
  EXPECT_EQ(done, 10);
}

TEST(WorkerPool, AForkedProcessIsToldAndEnds) {
  Door door;
  auto pool = std::make_unique<WorkerPool>(2);
  pool->add(job_of([&](Job&) { door.wait(); }));
  EXPECT_EQ(test::status_of_child([&] {
              const std::string told = test::error_of<std::logic_error>([&] { pool->add(job_of([](Job&) {})); });
              pool.reset();  // must not wait
              return told.find("forked") != std::string::npos ? 0 : 2;
            }),
            0);
  door.open();
}

TEST(WorkerPool, IdleThreadsSleep) {
  WorkerPool pool(4);
  const auto begin = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC / 10);
}

}  // namespace
}  // namespace fp8::data
