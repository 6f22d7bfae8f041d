// SPDX-License-Identifier: Apache-2.0
// Two and three processes that train together: what one process with batches as large as theirs would do, whatever the
// strategy; checkpoints that any number of ranks goes on from; and that they skip, stop and fail together.

#include "fp8/runtime/trainer/callbacks/model_checkpoint.h"
#include "runtime/trainer/toy_task.h"

namespace fp8::trainer {
namespace {

using testing::Group;
using testing::PlainTask;
using testing::same_everywhere;

TEST(BatchShare, EveryBatchIsSomebodysOnce) {
  for (const int size : {1, 2, 3, 5})
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

FP8_TEST_RANKS(TrainerOfRanks, TrainsAsOneInEveryStrategy, 2, 3) {
  const Group group = test::rank_group();
  const auto seed = static_cast<std::uint64_t>(7 + group->rank());  // every rank gets rank 0's weights
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

FP8_TEST_RANKS(TrainerOfRanks, CopiesThatDoNotWaitChangeNoBit, 2) {
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

FP8_TEST_RANKS(TrainerOfRanks, AnotherNumberOfRanksTakesTheNextBatch, 2) {
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

FP8_TEST_RANKS(TrainerOfRanks, ResumedItIsTheSameRun, 2) {
  const Group group = test::rank_group();
  const std::filesystem::path root = std::getenv("FP8_TEST_ROOT");
  const auto whole = dropout_run(group, root / "whole", 9);
  dropout_run(group, root / "cut", 4);
  const auto resumed = dropout_run(group, root / "cut", 9);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(same_bits(whole[i], resumed[i])) << i;
  EXPECT_EQ(same_everywhere(whole[0], group), group->rank() == 0);
  for (std::size_t i = 1; i < whole.size(); ++i) EXPECT_TRUE(same_everywhere(whole[i], group));
}

FP8_TEST_RANKS(TrainerOfRanks, SkipTogether, 2) {
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
  EXPECT_EQ(trainer.fit(task, data).skipped_steps, 1);  // all ranks share found_inf, and halve the scale
  for (const auto& p : task.net->parameters()) EXPECT_TRUE(same_everywhere(p, group));
}

FP8_TEST_RANKS(TrainerOfRanks, StopTogether, 2) {
  const Group group = test::rank_group();
  PlainTask task(1);
  ToyBatches data(40, 2);
  int asked = 0;
  Trainer trainer({.max_steps = 10, .should_stop = [&] { return ++asked == 3 && group->rank() == 1; }, .group = group});
  const auto result = trainer.fit(task, data);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.steps, 3);
}

/// One process writes the file of all batches; each rank returns its own results.
FP8_TEST_RANKS(TrainerOfRanks, PredictTogether, 2) {
  const Group group = test::rank_group();
  const std::filesystem::path root = std::getenv("FP8_TEST_ROOT");
  const auto run = [&](const Group& with, const std::filesystem::path& file, bool own_data, BatchLimit limit) {
    ToyTask task(5, test::kHpu);
    ToyBatches data(9, 2);
    TrainerOptions options{.max_steps = 1, .group = with};
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
FP8_TEST_RANKS(TrainerOfRanks, EndTogether, 2) {
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
    ModelCheckpointOptions best{.dirpath = root / std::to_string(when)};
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

FP8_TEST_RANKS(TrainerOfRanks, OthersAreRefused, 2) {
  const Group group = test::rank_group();
  PlainTask task(1);
  ToyBatches data(group->rank() == 1 ? 38 : 40, 2);
  Trainer trainer({.max_steps = 1, .group = group});
  EXPECT_REFUSED(trainer.fit(task, data), "[trainer] rank 1 differs from rank 0", "found 19, rank 0 has 20");
  EXPECT_TRUE(throws_with({"[OnExceptionCheckpoint] ranks: found 2, allowed: 1"}, [&] {
    ToyBatches same(40, 2);
    Trainer({.max_steps = 1, .group = group}, {std::make_shared<OnExceptionCheckpoint>("/nowhere")}).fit(task, same);
  }));
  EXPECT_REFUSED(Trainer({.max_steps = 1, .group = group, .strategy = {.kind = StrategyKind::hpu_single}}),
                 "strategy: found hpu_single with 2 ranks", "hpu_ddp");
}

}  // namespace
}  // namespace fp8::trainer
