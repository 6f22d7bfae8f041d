// SPDX-License-Identifier: Apache-2.0
// Lightning's rules by hand-made rows of numbers; and what goes through a checkpoint.
#include "fp8/runtime/trainer/callbacks/early_stopping.h"

#include "fp8/runtime/trainer/callbacks/model_checkpoint.h"
#include "runtime/trainer/toy_task.h"

namespace fp8::trainer {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Its validations log the next of `scores`.
struct ScoredTask : ToyTask {
  explicit ScoredTask(std::vector<double> scores) : scores(std::move(scores)) {}
  at::Tensor validation_step(const Batch& batch, std::int64_t index) override {
    log("score", scores.at(static_cast<std::size_t>(note)));
    ++note;  // in the checkpoint, with the rest of extra_state()
    return ToyTask::training_step(batch, index);
  }
  std::vector<double> scores;
};

TrainerOptions epochs(std::int64_t count) { return TrainerOptions{.max_epochs = count}; }

/// Epochs that are trained where each is validated once, with these scores.
std::int64_t epochs_with(const EarlyStoppingOptions& options, const std::vector<double>& scores) {
  ScoredTask task(scores);
  ToyBatches train(4, 2), val(2, 2);
  const auto stopping = std::make_shared<EarlyStopping>(options);
  Trainer trainer(epochs(static_cast<std::int64_t>(scores.size())), {stopping});
  const auto result = trainer.fit(task, train, &val);
  EXPECT_EQ(result.stop_reason.empty(), result.epochs == static_cast<std::int64_t>(scores.size()))
      << result.stop_reason;
  EXPECT_FALSE(result.stopped);
  return result.epochs;
}

EarlyStoppingOptions watch(std::int64_t patience, MonitorMode mode = MonitorMode::min) {
  return EarlyStoppingOptions{.monitor = "score", .patience = patience, .mode = mode};
}

TEST(EarlyStopping, EndsAfterPatienceLooksWithoutABetterOne) {
  EXPECT_EQ(epochs_with(watch(2), {3, 2, 2.5, 2, 1, 1}), 4);  // 2 again is not better
  EXPECT_EQ(epochs_with(watch(3), {3, 2, 2.5, 2, 1, 1}), 6);
  EXPECT_EQ(epochs_with(watch(1, MonitorMode::max), {1, 2, 3, 2, 9}), 4);
  EXPECT_EQ(epochs_with(watch(0), {1, 1, 0}), 2);
}

TEST(EarlyStopping, MinDeltaIsWhatBetterNeeds) {
  auto options = watch(2);
  options.min_delta = 0.5;
  EXPECT_EQ(epochs_with(options, {3, 2.75, 2.5, 9}), 3);  // neither is below 2.5
  EXPECT_EQ(epochs_with(options, {3, 2.75, 2.25, 2, 1}), 5);
  options.mode = MonitorMode::max;
  EXPECT_EQ(epochs_with(options, {1, 1.25, 1.5, 9}), 3);
}

TEST(EarlyStopping, EndsAtThresholdsAndWhatIsNotFinite) {
  auto options = watch(9);
  options.stopping_threshold = 1;
  EXPECT_EQ(epochs_with(options, {3, 1, 0.5, 0.25}), 3);
  options.stopping_threshold = {};
  options.divergence_threshold = 10;
  EXPECT_EQ(epochs_with(options, {3, 10, 11, 1}), 3);
  EXPECT_EQ(epochs_with(watch(9), {3, kNan, 1}), 2);
  auto any = watch(9);
  any.check_finite = false;
  EXPECT_EQ(epochs_with(any, {3, kNan, 1}), 3);
}

TEST(EarlyStopping, LooksAtEpochsWhereNothingIsValidated) {
  ToyTask task;
  ToyBatches train(4, 2);
  EarlyStoppingOptions options{.monitor = "train_loss", .min_delta = 1e9, .patience = 2};
  Trainer trainer(epochs(9), {std::make_shared<EarlyStopping>(options)});
  EXPECT_EQ(trainer.fit(task, train).epochs, 3);
}

TEST(EarlyStopping, AMonitorThatNobodyLogsIsAnError) {
  ToyTask task;
  ToyBatches train(4, 2), val(2, 2);
  EarlyStoppingOptions options{.monitor = "acc"};
  Trainer strict(epochs(2), {std::make_shared<EarlyStopping>(options)});
  EXPECT_EQ(error_of([&] { strict.fit(task, train, &val); }),
            "[EarlyStopping] monitor: found 'acc', allowed: train_loss, val_loss");
  options.strict = false;
  Trainer lenient(epochs(2), {std::make_shared<EarlyStopping>(options)});
  EXPECT_EQ(lenient.fit(task, train, &val).epochs, 2);
}

TEST(EarlyStopping, OptionsOutOfRangeAreRefused) {
  const auto thrown = [](auto change) {
    EarlyStoppingOptions o;
    change(o);
    return error_of([&] { EarlyStopping{o}; });
  };
  EXPECT_EQ(thrown([](auto& o) { o.patience = -1; }), "[EarlyStopping] patience: found -1, allowed: 0 or more");
  EXPECT_THAT(thrown([](auto& o) { o.min_delta = kNan; }), HasSubstr("min_delta: found nan, allowed: 0 or more"));
  EXPECT_THAT(thrown([](auto& o) { o.monitor = ""; }), HasSubstr("monitor: found none"));
  EXPECT_THAT(thrown([](auto& o) { o.stopping_threshold = kNan; }), HasSubstr("stopping_threshold: found nan"));
}

ModelCheckpointOptions best_of(const std::filesystem::path& folder, std::int64_t top) {
  return ModelCheckpointOptions{
      .dirpath = folder, .filename = "{epoch}-{score:.2f}", .monitor = "score", .save_top_k = top};
}

TEST(ModelCheckpoint, KeepsTheBest) {
  const test::TempDir folder;
  ScoredTask task({3, 1, 2, kNan, 0.5, 1});
  ToyBatches train(4, 2), val(2, 2);
  auto options = best_of(folder / "best", 2);
  options.save_last = true;
  const auto callback = std::make_shared<ModelCheckpoint>(options);
  Trainer trainer(epochs(6), {callback});
  trainer.fit(task, train, &val);
  EXPECT_THAT(names_in(folder / "best"), ElementsAre("epoch=1-score=1.00", "epoch=4-score=0.50", "last"));
  EXPECT_EQ(callback->best_model_path(), folder / "best" / "epoch=4-score=0.50");
  EXPECT_EQ(callback->best_model_score(), 0.5);
  const auto state = HPUCheckpointIO().load_checkpoint(folder / "best" / "last");
  EXPECT_EQ(state.json["step"], 12);
  EXPECT_EQ(state.json["callbacks"]["ModelCheckpoint.best.score.{epoch}-{score:.2f}"]["kept"].size(), 2u);
}

/// Where the names are the same: Lightning's, in which one that goes gives its name to the one that comes.
TEST(ModelCheckpoint, OneThatGoesGivesItsName) {
  for (const int most : {1, 2}) {
    const test::TempDir folder;
    ScoredTask task({3, 2, 1});
    ToyBatches train(4, 2), val(2, 2);
    auto options = best_of(folder / "best", most);
    options.filename = "best";
    const auto callback = std::make_shared<ModelCheckpoint>(options);
    Trainer(epochs(3), {callback}).fit(task, train, &val);
    EXPECT_EQ(names_in(folder / "best"),
              most == 1 ? std::vector<std::string>{"best"} : (std::vector<std::string>{"best", "best-v1"}));
    EXPECT_EQ(callback->best_model_path(), folder / "best/best");
    EXPECT_EQ(HPUCheckpointIO().load_checkpoint(folder / "best/best").json["step"], 6);
  }
}

TEST(ModelCheckpoint, WithoutAMonitorTheNewestOrAll) {
  const test::TempDir folder;
  const auto run = [&](const char* name, std::int64_t top, std::int64_t every_steps, std::int64_t every_epochs) {
    ToyTask task;
    ToyBatches train(6, 2);
    ModelCheckpointOptions options{.dirpath = folder / name,
                                   .save_top_k = top,
                                   .every_n_train_steps = every_steps,
                                   .every_n_epochs = every_epochs};
    Trainer(epochs(3), {std::make_shared<ModelCheckpoint>(options)}).fit(task, train);
    return names_in(folder / name);
  };
  EXPECT_THAT(run("newest", 1, 0, 1), ElementsAre("epoch=2-step=9"));
  EXPECT_THAT(run("all", -1, 0, 2), ElementsAre("epoch=1-step=6"));
  EXPECT_THAT(run("steps", -1, 4, 1), ElementsAre("epoch=1-step=4", "epoch=2-step=8"));
}

/// The texts are those of Python's format().
TEST(ModelCheckpoint, FilenamesAreFormattedAsPythonFormats) {
  const test::TempDir folder;
  struct SlashTask : ToyTask {
    at::Tensor validation_step(const Batch& batch, std::int64_t index) override {
      log("val/acc", 0.375);
      return ToyTask::training_step(batch, index);
    }
  };
  const auto name = [&](const std::string& filename, bool insert = true) {
    SlashTask task;
    ToyBatches train(4, 2), val(2, 2);
    ModelCheckpointOptions o{.dirpath = folder / "best", .filename = filename, .auto_insert_metric_name = insert};
    const auto checkpoint = std::make_shared<ModelCheckpoint>(o);
    Trainer(epochs(1), {checkpoint}).fit(task, train, &val);
    return checkpoint->best_model_path().filename().string();
  };
  EXPECT_EQ(name("{epoch:02d}-{val/acc:.2f}"), "epoch=00-val_acc=0.38");
  EXPECT_EQ(name("{epoch:02d}-{val/acc:.2f}", false), "00-0.38");
  EXPECT_EQ(name("{step:06d}"), "step=000002");
  EXPECT_EQ(name("{val/acc:.3e}-{step:.1f}"), "val_acc=3.750e-01-step=2.0");
  EXPECT_EQ(name("{val/acc:08.3f}"), "val_acc=0000.375");
  EXPECT_EQ(name("best"), "best");
  EXPECT_REFUSED(name("{nope}"), "[ModelCheckpoint] filename: found 'nope', allowed: ");
  for (const char* wrong : {"a/{epoch}", "{val/acc:d}", "{epoch:s}", "{epoch:.999f}", "{epoch", "../x"})
    EXPECT_REFUSED(name(wrong), "[ModelCheckpoint] filename: found") << wrong;
}

TEST(EarlyStopping, AnotherFitBeginsAnew) {
  ScoredTask task({1, 2, 3, 1, 2, 3});
  ToyBatches train(4, 2), val(2, 2);
  Trainer trainer(epochs(3), {std::make_shared<EarlyStopping>(watch(2))});
  EXPECT_EQ(trainer.fit(task, train, &val).epochs, 3);
  EXPECT_EQ(trainer.fit(task, train, &val).epochs, 3);  // not ended before its first step
}

TEST(ModelCheckpoint, OptionsOutOfRangeAreRefused) {
  const auto thrown = [](auto change) {
    ModelCheckpointOptions o = best_of("best", 1);
    change(o);
    return error_of([&] { ModelCheckpoint{o}; });
  };
  EXPECT_THAT(thrown([](auto& o) { o.dirpath = ""; }), HasSubstr("dirpath: found none"));
  EXPECT_THAT(thrown([](auto& o) { o.save_top_k = -2; }), HasSubstr("save_top_k: found -2"));
  EXPECT_THAT(thrown([](auto& o) { o.monitor = {}, o.save_top_k = 2; }), HasSubstr("or 1, without a monitor"));
  EXPECT_THAT(thrown([](auto& o) { o.every_n_epochs = 0; }), HasSubstr("every_n_epochs: found 0"));
  for (const char* name : {"", "a/b", ".x", "{epoch", "epoch}", "}{", "{}", "{a:3}", "{a:.x}"})
    EXPECT_THAT(thrown([&](auto& o) { o.filename = name; }), HasSubstr("filename: found '")) << name;
  TrainerOptions same = epochs(1);
  const test::TempDir folder;
  same.checkpoint_root = folder / "best";
  ScoredTask task({1});
  ToyBatches train(2, 2), val(2, 2);
  Trainer trainer(same, {std::make_shared<ModelCheckpoint>(best_of(folder / "best", 1))});
  EXPECT_THROW(trainer.fit(task, train, &val), std::invalid_argument);
}

/// Stopped after each step in turn and resumed, a run ends with the folders, the best and the wait of one that was not.
TEST(EarlyStopping, ARunThatIsResumedEndsAsOneThatWasNot) {
  const std::vector<double> scores = {3, 2, 2.5, 1, 4, 4, 4, 0};
  const auto run = [&](const std::filesystem::path& folder, std::int64_t stop_at) {
    ScoredTask task(scores);
    ToyBatches train(4, 2), val(2, 2);
    TrainerOptions options = epochs(8);
    options.checkpoint_root = folder / "checkpoints";
    options.resume = true;
    std::int64_t steps = 0;
    if (stop_at > 0) options.should_stop = [&] { return ++steps == stop_at; };
    const auto best = std::make_shared<ModelCheckpoint>(best_of(folder / "best", 2));
    Trainer trainer(options, {std::make_shared<EarlyStopping>(watch(3)), best});
    return trainer.fit(task, train, &val);
  };
  const test::TempDir whole;
  const auto undisturbed = run(whole.path(), 0);
  EXPECT_EQ(undisturbed.epochs, 7);
  EXPECT_THAT(undisturbed.stop_reason, HasSubstr("'score' was not better than 1.0 for 3 looks in a row"));
  for (const std::int64_t stop_at : {1, 2, 5, 8, 13}) {
    const test::TempDir cut;
    EXPECT_TRUE(run(cut.path(), stop_at).stopped);
    EXPECT_EQ(run(cut.path(), 0).stop_reason, undisturbed.stop_reason);
    EXPECT_EQ(names_in(cut / "best"), names_in(whole / "best")) << stop_at;
    const auto state_in = [](const std::filesystem::path& folder) {
      return HPUCheckpointIO().load_checkpoint(folder / "checkpoints" / "step-00000014");
    };
    auto found = state_in(cut.path()), expected = state_in(whole.path());
    for (auto* state : {&found, &expected})
      state->json.erase("optimizer.0");  // LibTorch numbers its tensors by where they are in memory
    EXPECT_EQ(found.json, expected.json) << stop_at;
    for (const auto& [name, tensor] : expected.tensors) {
      if (!name.starts_with("parameter.")) continue;
      EXPECT_TRUE(at::equal(found.tensors.at(name), tensor)) << name;
    }
    EXPECT_EQ(run(cut.path(), 0).steps, 14) << "an ended run stays ended";
  }
}

}  // namespace
}  // namespace fp8::trainer
