// SPDX-License-Identifier: Apache-2.0
// Training through the loader: any number of threads ends with the same weights, and so does a run that is killed
// (SIGKILL) in an epoch and resumes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>

#include "fp8/runtime/data/data_loader.h"
#include "fp8/runtime/trainer/trainer.h"
#include "runtime/trainer/toy_task.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::data {
namespace {

using trainer::testing::ToyTask;

/// x [4] with a random part, y [1]: what ToyTask learns.
class Points : public Dataset {
 public:
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

}  // namespace
}  // namespace fp8::data
