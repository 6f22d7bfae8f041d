// SPDX-License-Identifier: Apache-2.0
// kill -9 at random moments of a run with EarlyStopping, ModelCheckpoint, LearningRateMonitor, SWA and loggers, and
// again while it goes on: it ends with the files of a run that was not disturbed. FP8_KILLS in the environment sets how
// many kills must have met a run at work (3).

#include <random>

#include "fp8/runtime/trainer/callbacks/model_checkpoint.h"
#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "fp8/runtime/trainer/callbacks/stochastic_weight_averaging.h"
#include "runtime/trainer/toy_task.h"

namespace fp8::trainer {
namespace {

constexpr char kRootVariable[] = "FP8_TEST_ROOT";
constexpr char kBegun[] = ".begun";  ///< there while a run is at work

/// Says that training has begun.
struct Marker : TrainerCallback {
  explicit Marker(fs::path f) : file(std::move(f)) {}
  void on_fit_start(Trainer&, std::int64_t) override { std::ofstream(file) << getpid(); }
  fs::path file;
};

struct LoggedTask : ToyTask {
  at::Tensor validation_step(const Batch& batch, std::int64_t index) override {
    const auto loss = ToyTask::validation_step(batch, index);
    log("score", loss.item<double>());
    return loss;
  }
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    const auto loss = ToyTask::training_step(batch, index);
    if (net->is_training() && at::GradMode::is_enabled())
      log("train", loss.item<double>(), {.on_step = true, .on_epoch = true});
    return loss;
  }
};

/// One start of the run, which continues from its checkpoint.
TEST(TrainerKills, DISABLED_Run) {
  const char* text = std::getenv(kRootVariable);
  if (text == nullptr) GTEST_SKIP() << "run by another case";
  const fs::path root = text;
  LoggedTask task;
  task.step_lr = true;
  ToyBatches train(10, 2), val(4, 2);
  EarlyStoppingOptions stopping{.monitor = "score", .min_delta = 0.02, .patience = 3};
  ModelCheckpointOptions best;
  best.dirpath = root / "best";
  best.monitor = "score";
  best.filename = "{epoch}-{score:.3f}";
  best.save_top_k = 2;
  best.save_last = true;
  StochasticWeightAveragingOptions swa{.swa_lrs = {0.02}, .swa_epoch_start = std::int64_t{3}, .annealing_epochs = 4};
  TrainerOptions options{.max_epochs = 25,
                         .log_every_n_steps = 2,
                         .checkpoint_root = root / "checkpoints",
                         .save_every_n_steps = 3,
                         .resume = true};
  Trainer trainer(options, {std::make_shared<EarlyStopping>(stopping), std::make_shared<ModelCheckpoint>(best),
                            std::make_shared<LearningRateMonitor>(), std::make_shared<StochasticWeightAveraging>(swa),
                            std::make_shared<JsonlLogger>(root / "log.jsonl"),
                            std::make_shared<CsvLogger>(root / "log.csv"), std::make_shared<Marker>(root / kBegun)});
  ASSERT_GT(trainer.fit(task, train, &val).steps, 30);
  std::map<std::string, at::Tensor> weights;
  for (const auto& p : task.net->named_parameters()) weights[p.key()] = p.value().detach();
  write_tensors(root / "final.safetensors", weights);
}

using Clock = std::chrono::steady_clock;

/// Starts it, kills it `after` it began to train; none: lets it end. Returns the exit status, -9 where it was killed.
int start(const fs::path& root, std::optional<Clock::duration> after, Clock::duration* took = nullptr) {
  fs::remove(root / kBegun);
  const pid_t child = fork();
  if (child == 0) {
    setenv(kRootVariable, root.c_str(), 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(126);
    execl("/proc/self/exe", "run", "--gtest_also_run_disabled_tests", "--gtest_filter=TrainerKills.DISABLED_Run",
          static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  const auto wait_until = [&](auto&& done) {
    while (!done()) {
      if (waitpid(child, &status, WNOHANG) != 0) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return false;
  };
  bool ended = wait_until([&] { return fs::exists(root / kBegun); });
  const auto begin = Clock::now();
  if (!ended) ended = wait_until([&] { return after && Clock::now() - begin >= *after; });
  if (took != nullptr) *took = Clock::now() - begin;
  if (!ended) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string bytes_of(const at::Tensor& t) {
  return c10::str(t.sizes()) + std::string(static_cast<const char*>(t.const_data_ptr()), t.nbytes());
}

/// The content of a file without the numbers that LibTorch gives an optimizer's tensors, by where they are in memory.
std::multiset<std::string> content_of(const fs::path& file) {
  if (file.filename() == HPUCheckpointIO::kJson) {
    auto json = io::read_json(file);
    json.erase("optimizer.0");
    return {json.dump()};
  }
  if (file.extension() != ".safetensors") return {read_file(file)};
  std::multiset<std::string> all;
  for (const auto& [name, tensor] : read_tensors(file))
    all.insert((name.starts_with("optimizer.") ? "optimizer" : name) + bytes_of(tensor));
  return all;
}

std::map<std::string, std::multiset<std::string>> files_in(const fs::path& root) {
  std::map<std::string, std::multiset<std::string>> files;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.is_regular_file() && entry.path().filename().string()[0] != '.')
      files[fs::relative(entry.path(), root).string()] = content_of(entry.path());
  return files;
}

TEST(TrainerKilled, EndsWithTheFilesOfAnUndisturbedRun) {
  const test::TempDir whole;
  Clock::duration took{};
  ASSERT_EQ(start(whole.path(), std::nullopt, &took), 0);
  const auto expected = files_in(whole.path());
  EXPECT_GT(expected.size(), 9u);
  const char* text = std::getenv("FP8_KILLS");
  const int wanted = text == nullptr ? 3 : std::atoi(text);
  std::mt19937 random(std::random_device{}());
  const auto moment = [&] { return std::chrono::duration_cast<Clock::duration>(took * (random() % 1000 / 1000.0)); };
  int kills = 0;
  for (int trial = 0; kills < wanted && trial < 10 * wanted; ++trial) {
    const test::TempDir cut;
    int met = 0;
    while (met < 3 && start(cut.path(), moment()) == -SIGKILL) ++met;
    kills += met;
    ASSERT_EQ(start(cut.path(), std::nullopt), 0);
    const auto found = files_in(cut.path());
    for (const auto& [name, content] : expected) {
      ASSERT_TRUE(found.contains(name)) << name;
      EXPECT_TRUE(found.at(name) == content) << name << " after " << met << " kills";
    }
    EXPECT_EQ(found.size(), expected.size());
  }
  EXPECT_GE(kills, wanted);
}

}  // namespace
}  // namespace fp8::trainer
