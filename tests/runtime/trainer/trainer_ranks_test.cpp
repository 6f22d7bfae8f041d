// SPDX-License-Identifier: Apache-2.0
// Two and three processes that train together: what one process with batches as large as theirs would do, whatever the
// strategy; checkpoints that any number of ranks goes on from; and that they skip, stop and fail together.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <future>
#include <numeric>

#include "fp8/runtime/distributed/exchange.h"
#include "fp8/runtime/trainer/batch_share.h"
#include "fp8/runtime/trainer/callbacks/model_checkpoint.h"
#include "fp8/runtime/trainer/callbacks/on_exception_checkpoint.h"
#include "fp8/runtime/trainer/callbacks/prediction_writer.h"
#include "fp8/runtime/trainer/callbacks/timer.h"
#include "runtime/trainer/toy_task.h"
#include "support/hpu_test.h"
#include "support/ranks.h"
#include "support/temp_dir.h"

namespace fp8::trainer {
namespace {

using test::same_bits;
using test::throws_with;
using testing::Recorder;
using testing::ToyBatches;
using testing::ToyTask;
using Group = std::shared_ptr<runtime::distributed::ProcessGroup>;

TEST(BatchShare, EveryBatchIsSomebodysOnce) {
  for (const int size : {1, 2, 3, 5}) {
    for (const std::int64_t taken : {0, 1, 4, 9, 10}) {
      std::vector<std::int64_t> seen;
      for (int rank = 0; rank < size; ++rank) {
        BatchShare share{rank, size};
        for (auto group = share.go_to(3, taken, 10); group < share.groups(3, 10); ++group)
          if (share.index(3, group) < 10) seen.push_back(share.index(3, group));
        EXPECT_EQ(share.groups(4, 10), (10 + size - 1) / size);  // the next epoch is whole
        EXPECT_EQ(share.index(4, 0), rank);
      }
      std::sort(seen.begin(), seen.end());
      std::vector<std::int64_t> left(static_cast<std::size_t>(10 - taken));
      std::iota(left.begin(), left.end(), taken);
      EXPECT_EQ(seen, left) << size << " " << taken;
    }
  }
}

/// A network without random numbers.
class PlainTask : public TrainingModule {
 public:
  explicit PlainTask(std::uint64_t seed) {
    torch::manual_seed(seed);
    net = torch::nn::Sequential(torch::nn::Linear(4, 40), torch::nn::Tanh(), torch::nn::Linear(40, 1));
    net->to(test::kHpu);
  }
  torch::nn::Module& network() override { return *net; }
  at::Tensor training_step(const Batch& batch, std::int64_t) override {
    return torch::mse_loss(net->forward(moved(batch.tensors[0])), moved(batch.tensors[1]));
  }
  at::Tensor moved(const at::Tensor& t) const {
    return pinned ? t.pin_memory().to(test::kHpu, /*non_blocking=*/true) : t.to(test::kHpu);
  }
  Optimizers configure_optimizers() override {
    return {{std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(0.01))}};
  }
  torch::nn::Sequential net;
  bool pinned = false;  ///< copies that do not wait
};

bool same_everywhere(const at::Tensor& t, const Group& group) {
  at::Tensor of_first = t.detach().clone();
  group->broadcast(of_first, 0);
  return same_bits(of_first, t.detach());
}

struct Result {
  std::vector<double> losses, validations, norms;
  std::vector<at::Tensor> weights;
};

/// 3 epochs of 44 samples: the last group of each is not whole.
Result train(const Group& group, const StrategyOptions& strategy, std::int64_t batch, std::int64_t accumulate,
             std::uint64_t seed, bool pinned = false) {
  PlainTask task(seed);
  task.pinned = pinned;
  ToyBatches data(44, batch), val(12, 2);
  auto recorder = std::make_shared<Recorder>();
  Trainer trainer({.max_epochs = 3,
                   .accumulate_grad_batches = accumulate,
                   .gradient_clip_val = 0.5,
                   .group = group,
                   .strategy = strategy},
                  {recorder});
  trainer.fit(task, data, &val);
  Result result;
  for (const auto& report : recorder->reports) {
    result.losses.push_back(report.loss);
    result.norms.push_back(report.grad_norm);
    if (report.val_loss) result.validations.push_back(*report.val_loss);
  }
  for (const auto& p : task.net->parameters()) result.weights.push_back(p.detach());
  return result;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance) << i;
}

TEST(TrainerRanks, DISABLED_TrainsAsOne) {
  FP8_RANK_ONLY();
  const Group group = test::rank_group();
  const auto seed = static_cast<std::uint64_t>(7 + group->rank());  // rank 0's weights become everybody's
  const std::int64_t ranks = group->size();
  for (const std::int64_t accumulate : ranks == 2 ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{3}) {
    const Result whole = train(nullptr, {}, 2 * ranks, accumulate, 7);
    ASSERT_GE(whole.losses.size(), 6u);
    const auto expect_as_one = [&](const StrategyOptions& strategy, double tolerance) {
      SCOPED_TRACE(name_of(strategy.kind));
      Result mine = train(group, strategy, 2, accumulate, seed);
      expect_near(mine.losses, whole.losses, tolerance);
      expect_near(mine.norms, whole.norms, 10 * tolerance);
      expect_near(mine.validations, whole.validations, tolerance);
      for (const auto& w : mine.weights) EXPECT_TRUE(same_everywhere(w, group));
      return mine;
    };
    const Result parallel = expect_as_one({}, 1e-6);
    const auto expect_same = [&](const Result& other) {
      for (std::size_t i = 0; ranks == 2 && i < other.weights.size(); ++i)  // a sum of two has one order
        EXPECT_TRUE(same_bits(other.weights[i], parallel.weights[i])) << i;
    };
    expect_same(expect_as_one({.kind = StrategyKind::hpu_parallel}, 1e-6));
    expect_same(expect_as_one({.kind = StrategyKind::hpu_ddp}, 1e-6));
    expect_same(expect_as_one({.kind = StrategyKind::hpu_ddp, .ddp = {.gradient_as_bucket_view = true}}, 1e-6));
    expect_same(expect_as_one({.kind = StrategyKind::hpu_ddp, .ddp = {.find_unused_parameters = true}}, 1e-6));
    expect_same(expect_as_one({.kind = StrategyKind::hpu_ddp, .ddp = {.static_graph = true}}, 1e-6));
    expect_same(expect_as_one({.kind = StrategyKind::fast_ddp, .fusion_buffer_dtype = at::kFloat}, 1e-6));
    expect_as_one({.kind = StrategyKind::fast_ddp}, 5e-2);
    using runtime::distributed::BucketDtype;
    expect_as_one({.kind = StrategyKind::hpu_ddp, .ddp = {.bucket_dtype = BucketDtype::bf16}}, 5e-2);
  }
}

TEST(TrainerRanks, DISABLED_CopiesDoNotWait) {
  FP8_RANK_ONLY();
  const Group group = test::rank_group();
  for (const auto kind : {StrategyKind::hpu_ddp, StrategyKind::fast_ddp}) {
    const Result waits = train(group, {.kind = kind}, 2, 2, 7), goes_on = train(group, {.kind = kind}, 2, 2, 7, true);
    EXPECT_EQ(waits.losses, goes_on.losses);
    for (std::size_t i = 0; i < waits.weights.size(); ++i)
      EXPECT_TRUE(same_bits(waits.weights[i], goes_on.weights[i])) << name_of(kind) << " " << i;
  }
}

/// Gives out its batches' numbers, and remembers them.
class Numbers : public BatchSource {
 public:
  explicit Numbers(std::int64_t batches) : batches_(batches) {}
  std::int64_t batches() const override { return batches_; }
  void seek(std::int64_t, std::int64_t batch) override { next_ = batch; }
  std::optional<Batch> next() override {
    if (next_ >= batches_) return std::nullopt;
    seen.push_back(next_++);
    return Batch{{torch::rand({2, 4}), torch::rand({2, 1})}, 2, 0};
  }
  std::vector<std::int64_t> seen;

 private:
  std::int64_t batches_, next_ = 0;
};

std::vector<std::int64_t> batches_of(const Group& group, const std::filesystem::path& root, std::int64_t steps) {
  PlainTask task(1);
  Numbers data(10);
  Trainer trainer({.max_steps = steps, .checkpoint_root = root, .resume = true, .group = group});
  trainer.fit(task, data);
  return data.seen;
}

TEST(TrainerRanks, DISABLED_AnotherNumberOfRanksGoesOn) {
  FP8_RANK_ONLY();
  using List = std::vector<std::int64_t>;
  const Group group = test::rank_group();
  const bool first = group->rank() == 0;
  const std::filesystem::path root = std::getenv("FP8_TEST_ROOT");
  EXPECT_EQ(batches_of(group, root, 2), (first ? List{0, 2} : List{1, 3}));
  group->barrier();
  if (first) {
    EXPECT_EQ(batches_of(nullptr, root, 5), (List{4, 5, 6}));
  }
  group->barrier();
  EXPECT_EQ(batches_of(group, root, 7), (first ? List{7, 9} : List{8, 0}));  // the tenth is the last: 0 does not count
  EXPECT_EQ(batches_of(group, root, 9), (first ? List{0, 2} : List{1, 3}));
}

/// Random numbers of its own on each rank, and a buffer that counts.
std::vector<at::Tensor> dropout_run(const Group& group, const std::filesystem::path& root, std::int64_t steps) {
  ToyTask task(static_cast<std::uint64_t>(3 + group->rank()), test::kHpu);
  task.note = group->rank();
  ToyBatches data(24, 2);
  Trainer trainer({.max_steps = steps, .checkpoint_root = root, .resume = true, .group = group});
  trainer.fit(task, data);
  EXPECT_EQ(task.note, group->rank());
  std::vector<at::Tensor> all = {torch::rand({4})};
  for (const auto& p : task.net->parameters()) all.push_back(p.detach());
  return all;
}

TEST(TrainerRanks, DISABLED_ResumedIsTheSameRun) {
  FP8_RANK_ONLY();
  const Group group = test::rank_group();
  const std::filesystem::path root = std::getenv("FP8_TEST_ROOT");
  const auto whole = dropout_run(group, root / "whole", 9);
  dropout_run(group, root / "cut", 4);
  const auto resumed = dropout_run(group, root / "cut", 9);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(same_bits(whole[i], resumed[i])) << i;
  EXPECT_EQ(same_everywhere(whole[0], group), group->rank() == 0);
  for (std::size_t i = 1; i < whole.size(); ++i) EXPECT_TRUE(same_everywhere(whole[i], group));
}

TEST(TrainerRanks, DISABLED_SkipTogether) {
  FP8_RANK_ONLY();
  const Group group = test::rank_group();
  for (const auto kind : {StrategyKind::hpu_parallel, StrategyKind::hpu_ddp}) {
    PlainTask task(1);
    ToyBatches data(40, 2);
    if (group->rank() == 1) data.poison = 4;  // the loss of rank 1 alone
    auto recorder = std::make_shared<Recorder>();
    Trainer trainer({.max_steps = 4, .nonfinite = NonFinite::skip, .group = group, .strategy = {.kind = kind}},
                    {recorder});
    EXPECT_EQ(trainer.fit(task, data).skipped_steps, 1);
    EXPECT_TRUE(recorder->reports[1].skipped);
    for (const auto& p : task.net->parameters()) EXPECT_TRUE(same_everywhere(p, group));
  }
  ToyTask task(1, test::kHpu, testing::ToyOptimizer::sgd);
  if (group->rank() == 1) task.overflow_above = 512;  // gradients of rank 1 alone, as of f16
  ToyBatches data(40, 2);
  Trainer trainer({.max_steps = 4, .grad_scaler = GradScalerOptions{.init_scale = 1024}, .group = group});
  EXPECT_EQ(trainer.fit(task, data).skipped_steps, 1);  // found_inf is everybody's, the scale halves everywhere
  for (const auto& p : task.net->parameters()) EXPECT_TRUE(same_everywhere(p, group));
}

TEST(TrainerRanks, DISABLED_StopTogether) {
  FP8_RANK_ONLY();
  const Group group = test::rank_group();
  PlainTask task(1);
  ToyBatches data(40, 2);
  int asked = 0;
  Trainer trainer({.max_steps = 10, .should_stop = [&] { return ++asked == 3 && group->rank() == 1; }, .group = group});
  const auto result = trainer.fit(task, data);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.steps, 3);
}

/// The file of one process, whoever had the batches; results are each rank's own.
TEST(TrainerRanks, DISABLED_PredictTogether) {
  FP8_RANK_ONLY();
  const Group group = test::rank_group();
  const std::filesystem::path root = std::getenv("FP8_TEST_ROOT");
  const auto run = [&](const Group& with, const std::filesystem::path& file, bool own_data, BatchLimit limit) {
    ToyTask task(5, test::kHpu);
    ToyBatches data(9, 2);
    TrainerOptions options;
    options.max_steps = 1;
    options.group = with;
    options.strategy.use_distributed_sampler = !own_data;
    options.limit_predict_batches = limit;
    Trainer trainer(options, {std::make_shared<PredictionWriter>(file)});
    return trainer.predict(task, data);
  };
  const auto together = run(group, root / "all.safetensors", false, 1.0);
  EXPECT_EQ(together.batches, 5);
  EXPECT_EQ(together.samples, 9);
  std::vector<std::int64_t> mine, expected;
  for (const auto& p : together.predictions) mine.push_back(p.batch);
  for (std::int64_t i = group->rank(); i < 5; i += group->size()) expected.push_back(i);
  EXPECT_EQ(mine, expected);
  if (group->rank() == 0) {
    run(nullptr, root / "one.safetensors", false, 1.0);
    const auto all = read_tensors(root / "all.safetensors"), one = read_tensors(root / "one.safetensors");
    ASSERT_EQ(all.size(), one.size());
    for (const auto& [name, tensor] : one) EXPECT_TRUE(same_bits(all.at(name), tensor)) << name;
  }
  group->barrier();
  run(group, root / "own.safetensors", true, std::int64_t{2});
  if (group->rank() == 0) {
    const auto own = read_tensors(root / "own.safetensors");
    EXPECT_EQ(own.size(), static_cast<std::size_t>(2 * group->size()));
    EXPECT_TRUE(own.contains("rank.00001.batch.00000001.0"));
  }
  EXPECT_THROW(run(group, root / "all.safetensors" / "no folder", false, 1.0), std::exception);
}

/// One rank's callback ends it, at a validation, at an epoch's end or in a step; best checkpoints are written once.
TEST(TrainerRanks, DISABLED_EndTogether) {
  FP8_RANK_ONLY();
  const Group group = test::rank_group();
  struct AskingRank : TrainerCallback {
    enum When { validation, epoch, step } when = validation;
    void ask(Trainer& trainer) { trainer.stop("enough"); }
    void on_step_end(Trainer& trainer, const StepReport& report) override {
      if (when == validation ? report.val_loss.has_value() : when == step && report.step == 4) ask(trainer);
    }
    void on_train_epoch_end(Trainer& trainer, std::int64_t) override {
      if (when == epoch) ask(trainer);
    }
  };
  const std::filesystem::path root = std::getenv("FP8_TEST_ROOT");
  for (const auto& [when, steps] :
       {std::pair(AskingRank::validation, 3), std::pair(AskingRank::epoch, 3), std::pair(AskingRank::step, 5)}) {
    PlainTask task(3);
    ToyBatches data(12, 2), val(2, 2);
    const auto asking = std::make_shared<AskingRank>();
    asking->when = when;
    ModelCheckpointOptions best;
    best.dirpath = root / std::to_string(when);
    if (when == AskingRank::validation) best.monitor = "val_loss";
    std::vector<std::shared_ptr<TrainerCallback>> callbacks = {std::make_shared<ModelCheckpoint>(best)};
    if (group->rank() == 1) callbacks.push_back(asking);
    Trainer trainer({.max_epochs = 9, .group = group}, callbacks);
    const auto result = trainer.fit(task, data, when == AskingRank::validation ? &val : nullptr);
    EXPECT_EQ(result.steps, steps) << when;
    EXPECT_EQ(result.stop_reason, group->rank() == 1 ? "enough" : "another rank's") << when;
    EXPECT_FALSE(result.stopped);
    group->barrier();
    EXPECT_TRUE(std::filesystem::exists(best.dirpath / "epoch=0-step=3")) << when;
  }
}

TEST(TrainerRanks, DISABLED_OthersAreRefused) {
  FP8_RANK_ONLY();
  const Group group = test::rank_group();
  PlainTask task(1);
  ToyBatches data(group->rank() == 1 ? 38 : 40, 2);
  Trainer trainer({.max_steps = 1, .group = group});
  EXPECT_TRUE(throws_with({"[trainer] rank 1 differs from rank 0", "found 19, rank 0 has 20"},
                          [&] { trainer.fit(task, data); }));
  EXPECT_TRUE(throws_with({"[OnExceptionCheckpoint] ranks: found 2, allowed: 1"}, [&] {
    ToyBatches same(40, 2);
    Trainer({.max_steps = 1, .group = group}, {std::make_shared<OnExceptionCheckpoint>("/nowhere")}).fit(task, same);
  }));
  EXPECT_TRUE(throws_with({"strategy: found hpu_single with 2 ranks", "hpu_ddp"}, [&] {
    Trainer({.max_steps = 1, .group = group, .strategy = {.kind = StrategyKind::hpu_single}});
  }));
}

/// Whose numbers differ from rank to rank, in which order they are better, too.
class DisagreeingTask : public PlainTask {
 public:
  explicit DisagreeingTask(int rank) : PlainTask(7), rank(rank) {}
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    log("step_score", score());
    return PlainTask::training_step(batch, index);
  }
  at::Tensor validation_step(const Batch& batch, std::int64_t index) override {
    log("score", score());
    if (rank == 1) log("of_rank_1", score());
    return PlainTask::training_step(batch, index);
  }
  double score() { return rank == 0 ? 0.1 * ++calls : 9 - 0.3 * ++calls; }
  int rank, calls = 0;
};

TEST(TrainerRanks, DISABLED_NoRankDecidesAlone) {
  FP8_RANK_ONLY();
  const Group group = test::rank_group();
  const std::filesystem::path root = std::getenv("FP8_TEST_ROOT");
  const auto fit = [&](std::shared_ptr<TrainerCallback> callback, double max_time = 0) {
    DisagreeingTask task(group->rank());
    ToyBatches data(16, 2), val(8, 2);
    const auto result =
        Trainer({.max_epochs = 6, .max_time = max_time, .group = group}, {callback}).fit(task, data, &val);
    EXPECT_TRUE(
        same_everywhere(torch::tensor({static_cast<double>(result.epochs), static_cast<double>(result.steps)}), group));
    return result.epochs;
  };
  for (const char* monitor : {"score", "of_rank_1", "step_score"})
    for (const auto mode : {MonitorMode::min, MonitorMode::max}) {
      fit(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = monitor, .patience = 1, .mode = mode}));
      for (const std::int64_t every : {0, 3}) {
        ModelCheckpointOptions o;
        o.dirpath = root / monitor;
        o.filename = "{epoch}-{step}-{" + std::string(monitor) + ":.2f}";
        o.monitor = monitor;
        o.mode = mode;
        o.every_n_train_steps = every;
        if (every > 0 && std::string(monitor) != "step_score") continue;  // nothing is validated by then
        const auto best = std::make_shared<ModelCheckpoint>(o);
        fit(best);
        EXPECT_TRUE(same_everywhere(torch::tensor(best->best_model_score().value()), group));
      }
    }
  // The mean over all batches of all ranks: 0.1 and 0.2 here, 8.7 and 8.1 there.
  DisagreeingTask task(group->rank());
  ToyBatches val(8, 2);
  EXPECT_NEAR(Trainer({.max_steps = 1, .group = group}).validate(task, val).metrics.at("score"), (0.3 + 16.8) / 4,
              1e-12);
  fit(std::make_shared<Timer>(group->rank() == 1 ? 0.0 : 1e6));
}

/// Rank 1 stands still within backward; rank 0, told to end, waits there for its gradients.
TEST(TrainerRanks, DISABLED_EndsWithinBackward) {
  FP8_RANK_ONLY();
  static std::atomic<bool> told = false;
  auto options = test::rank_options();
  pid_t other = 0;
  options.stop_asked = [] { return told.load(); };
  options.give_up = [&](const std::string& why) {
    EXPECT_EQ(why, "rank 0 waits in backward 3, and rank 1 does not answer");
    kill(other, SIGKILL);
    _exit(HasFailure() ? 1 : 0);
  };
  const Group group = runtime::distributed::make_gloo_group(options);
  const at::Tensor pid = torch::full({1}, group->rank() == 1 ? static_cast<std::int64_t>(getpid()) : 0, at::kLong);
  group->all_reduce(pid, runtime::distributed::ReduceOp::sum);
  other = static_cast<pid_t>(pid.item<std::int64_t>());
  struct StandingTask : PlainTask {
    using PlainTask::PlainTask;
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      const at::Tensor loss = PlainTask::training_step(batch, index);
      if (index == 2)
        loss.register_hook([](const at::Tensor&) { std::getenv("RANK")[0] == '1' ? raise(SIGSTOP) : raise(SIGTERM); });
      return loss;
    }
  } task(1);
  std::signal(SIGTERM, [](int) { told = true; });
  ToyBatches data(40, 2);
  Trainer({.max_steps = 4, .group = group, .strategy = {.kind = StrategyKind::hpu_ddp}}).fit(task, data);
}

/// A callback asks for what all ranks do together, on one of them: each ends by name, whatever the others went on to.
TEST(TrainerRanks, DISABLED_OneRankAlone) {
  FP8_RANK_ONLY();
  struct Alone : TrainerCallback {
    void on_train_batch_end(Trainer& trainer, const Batch&, std::int64_t index, double) override {
      if (where == "batch" && index == 1) trainer.save_checkpoint(folder);
    }
    void on_step_end(Trainer& trainer, const StepReport& report) override {
      if (where == "step" && report.step == 2) trainer.save_checkpoint(folder);
    }
    void on_fit_end(Trainer& trainer) override {
      if (where == "last") trainer.save_checkpoint(folder);
    }
    void on_validation_batch_end(Trainer& trainer, const Batch&, std::int64_t, double) override {
      if (where == "validation") trainer.metric("val_loss");
    }
    std::string where, folder;
  };
  auto options = test::rank_options();
  options.agree = false;
  const Group group = runtime::distributed::make_gloo_group(options);
  const std::string where = std::getenv("FP8_TEST_WHERE");
  const auto alone = std::make_shared<Alone>();
  alone->folder = std::string(std::getenv("FP8_TEST_ROOT")) + "/alone";
  const int asks = where == "last" ? 1 : 0;
  if (group->rank() == asks) alone->where = where;
  PlainTask task(1);
  ToyBatches data(16, 2), val(8, 2);
  const auto fit = [&] { Trainer({.max_steps = 4, .group = group}, {alone}).fit(task, data, &val); };
  const std::string call = where == "validation" ? "metric val_loss" : "save_checkpoint after step ";
  if (group->rank() == asks) {
    EXPECT_TRUE(throws_with({"[ProcessGroup] rank ", call, "found on this rank alone (rank ",
                             where == "last" ? " has left), allowed:" : " waits in all_reduce sum of "},
                            fit));
    EXPECT_FALSE(std::filesystem::exists(alone->folder));
  } else if (where == "last") {
    fit();
  } else {
    EXPECT_TRUE(throws_with({"rank " + std::to_string(asks), "has left"}, fit));
  }
}

/// Uses one layer or the other, as `uses` says of a batch.
class ForkedTask : public PlainTask {
 public:
  explicit ForkedTask(std::function<bool(std::int64_t)> uses) : PlainTask(7), uses(std::move(uses)) {
    torch::manual_seed(7);
    net = torch::nn::Sequential(torch::nn::Linear(4, 1), torch::nn::Linear(4, 1));
    net->to(test::kHpu);
  }
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    const auto x = moved(batch.tensors[0]), y = moved(batch.tensors[1]);
    const auto layer = net->ptr<torch::nn::LinearImpl>(uses(index) ? 0 : 1);
    if (joins && ++steps == 3) net->ptr<torch::nn::LinearImpl>(1)->weight.set_requires_grad(true);
    return torch::mse_loss(
        joins ? net->ptr<torch::nn::LinearImpl>(0)->forward(x) + net->ptr<torch::nn::LinearImpl>(1)->forward(x)
              : layer->forward(x),
        y);
  }
  Optimizers configure_optimizers() override {
    return {{std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.05))}};
  }
  std::function<bool(std::int64_t)> uses;
  bool joins = false;
  int steps = 0;
};

TEST(TrainerRanks, DISABLED_EveryGradientIsAveraged) {
  FP8_RANK_ONLY();
  using Weights = std::vector<at::Tensor>;
  const auto fit = [](const Group& group, const StrategyOptions& strategy, std::int64_t accumulate,
                      std::function<bool(std::int64_t)> uses, bool joins = false) {
    ForkedTask task(std::move(uses));
    task.joins = joins;
    if (joins) task.net->ptr<torch::nn::LinearImpl>(1)->weight.set_requires_grad(false);
    ToyBatches data(32, 2);
    Trainer({.max_epochs = 2, .accumulate_grad_batches = accumulate, .group = group, .strategy = strategy})
        .fit(task, data);
    Weights weights;
    for (const auto& p : task.net->parameters()) weights.push_back(p.detach().cpu().clone());
    return weights;
  };
  const auto in_turns = [](std::int64_t index) { return index % 2 == 0; };
  const auto always = [](std::int64_t) { return true; };
  const StrategyOptions any[] = {
      {.kind = StrategyKind::hpu_parallel},
      {.kind = StrategyKind::hpu_ddp, .ddp = {.find_unused_parameters = true}},
      {.kind = StrategyKind::hpu_ddp, .ddp = {.find_unused_parameters = true, .gradient_as_bucket_view = true}},
      {.kind = StrategyKind::fast_ddp, .fusion_buffer_dtype = at::kFloat}};
  const Group group = test::rank_group();
  for (const std::int64_t accumulate : {1, 2}) {
    const Weights expected = fit(group, any[0], accumulate, in_turns);
    for (const auto& strategy : any) {
      const Weights found = fit(group, strategy, accumulate, in_turns);
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(same_everywhere(found[i], group));
        EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-6, 1e-7)) << name_of(strategy.kind) << accumulate << i;
      }
    }
  }
  // One that begins to learn in the third step.
  const Weights expected = fit(group, any[0], 1, always, true);
  for (const auto& strategy : {any[0], any[3], StrategyOptions{.kind = StrategyKind::hpu_ddp}}) {
    const Weights found = fit(group, strategy, 1, always, true);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(same_everywhere(found[i], group));
      EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-6, 1e-7)) << name_of(strategy.kind) << i;
    }
  }
  const int rank = group->rank();
  EXPECT_TRUE(throws_with({"parameters that learn] rank 1 differs from rank 0", "1.weight"},
                          [&] { fit(group, any[0], 1, always, rank == 1); }));
}

TEST(TrainerRanks, DISABLED_AGradientThatIsNotAveragedIsNamed) {
  FP8_RANK_ONLY();
  const Group group = test::rank_group();
  const bool fixed = std::getenv("FP8_TEST_STATIC") != nullptr;
  const auto recorder = std::make_shared<Recorder>();
  ForkedTask task([](std::int64_t index) { return index % 2 == 0; });
  ToyBatches data(32, 2);
  const StrategyOptions strategy{.kind = StrategyKind::hpu_ddp, .ddp = {.static_graph = fixed}};
  EXPECT_TRUE(throws_with(
      {"parameters that the last backward of the step did not meet: '0.weight', '0.bias', whose gradients"}, [&] {
        Trainer({.max_epochs = 2, .accumulate_grad_batches = 2, .group = group, .strategy = strategy}, {recorder})
            .fit(task, data);
      }));
  EXPECT_TRUE(recorder->reports.empty());
  // One that no strategy knows of.
  struct Spoils : TrainerCallback {
    void on_after_backward(Trainer& trainer) override { trainer.network().parameters()[0].mutable_grad().mul_(2); }
  };
  std::vector<std::shared_ptr<TrainerCallback>> callbacks;
  if (group->rank() == 1) callbacks.push_back(std::make_shared<Spoils>());
  EXPECT_TRUE(throws_with({"a gradient that was not averaged over the ranks] rank 1 differs from rank 0: 0.weight"},
                          [&] { Trainer({.max_epochs = 2, .group = group}, callbacks).fit(task, data); }));
}

std::vector<int> ranks_with_root(const std::string& name, int size) {
  const test::TempDir root;
  return test::run_ranks(name, size, {{"FP8_TEST_ROOT", root.path().string()}});
}

TEST(TrainerOfRanks, TrainsAsOneInEveryStrategy) {
  EXPECT_EQ(test::run_ranks("TrainerRanks.DISABLED_TrainsAsOne", 2), test::all_pass(2));
  EXPECT_EQ(test::run_ranks("TrainerRanks.DISABLED_TrainsAsOne", 3), test::all_pass(3));
}
TEST(TrainerOfRanks, CopiesThatDoNotWaitChangeNoBit) {
  EXPECT_EQ(test::run_ranks("TrainerRanks.DISABLED_CopiesDoNotWait", 2), test::all_pass(2));
}
TEST(TrainerOfRanks, AnotherNumberOfRanksTakesTheNextBatch) {
  EXPECT_EQ(ranks_with_root("TrainerRanks.DISABLED_AnotherNumberOfRanksGoesOn", 2), test::all_pass(2));
}
TEST(TrainerOfRanks, ResumedItIsTheSameRun) {
  EXPECT_EQ(ranks_with_root("TrainerRanks.DISABLED_ResumedIsTheSameRun", 2), test::all_pass(2));
}
TEST(TrainerOfRanks, SkipTogether) {
  EXPECT_EQ(test::run_ranks("TrainerRanks.DISABLED_SkipTogether", 2), test::all_pass(2));
}
TEST(TrainerOfRanks, StopTogether) {
  EXPECT_EQ(test::run_ranks("TrainerRanks.DISABLED_StopTogether", 2), test::all_pass(2));
}
TEST(TrainerOfRanks, PredictTogether) {
  EXPECT_EQ(ranks_with_root("TrainerRanks.DISABLED_PredictTogether", 2), test::all_pass(2));
}
TEST(TrainerOfRanks, EndTogether) {
  EXPECT_EQ(ranks_with_root("TrainerRanks.DISABLED_EndTogether", 2), test::all_pass(2));
}
TEST(TrainerOfRanks, NoRankDecidesAlone) {
  EXPECT_EQ(ranks_with_root("TrainerRanks.DISABLED_NoRankDecidesAlone", 2), test::all_pass(2));
}
TEST(TrainerOfRanks, WhatOneRankAsksForAloneIsNamed) {
  const test::TempDir root;
  std::map<std::string, std::future<std::vector<int>>> runs;  // each waits a while
  for (const char* where : {"batch", "step", "validation", "last"})
    runs[where] = std::async(std::launch::async, [&root, where] {
      return test::run_ranks("TrainerRanks.DISABLED_OneRankAlone", 2,
                             {{"FP8_TEST_WHERE", where}, {"FP8_TEST_ROOT", root.path().string()}},
                             std::chrono::seconds(20));
    });
  for (auto& [where, run] : runs) EXPECT_EQ(run.get(), test::all_pass(2)) << where;
}
TEST(TrainerOfRanks, EndsWithinBackward) {
  EXPECT_EQ(test::run_ranks("TrainerRanks.DISABLED_EndsWithinBackward", 2, {}, std::chrono::seconds(10)),
            (std::vector<int>{0, 128 + SIGKILL}));
}
TEST(TrainerOfRanks, EveryGradientIsAveragedOrNamed) {
  EXPECT_EQ(test::run_ranks("TrainerRanks.DISABLED_EveryGradientIsAveraged", 2), test::all_pass(2));
  for (const char* fixed : {"", "1"})
    EXPECT_EQ(
        test::run_ranks("TrainerRanks.DISABLED_AGradientThatIsNotAveragedIsNamed", 2, {{"FP8_TEST_STATIC", fixed}}),
        test::all_pass(2));
}
TEST(TrainerOfRanks, OthersAreRefused) {
  EXPECT_EQ(test::run_ranks("TrainerRanks.DISABLED_OthersAreRefused", 2), test::all_pass(2));
}

}  // namespace
}  // namespace fp8::trainer
