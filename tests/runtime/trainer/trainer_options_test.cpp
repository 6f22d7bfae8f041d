// SPDX-License-Identifier: Apache-2.0
// Options by Lightning's names: schedules of accumulation, overfit_batches, sanity steps, deterministic, progress bars.
#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "runtime/trainer/toy_task.h"
#include "support/throws_with.h"

namespace fp8::trainer {
namespace {

using Schedule = std::map<std::int64_t, std::int64_t>;

struct Estimate : TrainerCallback {
  void on_fit_start(Trainer& trainer, std::int64_t) override { steps = trainer.estimated_stepping_batches(); }
  std::int64_t steps = 0;
};

/// Batches of each step.
std::vector<std::int64_t> batches_of(const GradAccumulation& accumulation, std::int64_t epochs) {
  ToyTask task;
  ToyBatches train(10, 2);
  const auto recorder = std::make_shared<Recorder>();
  const auto estimate = std::make_shared<Estimate>();
  TrainerOptions options{.max_epochs = epochs, .accumulate_grad_batches = accumulation};
  Trainer(options, {recorder, estimate}).fit(task, train);
  std::vector<std::int64_t> batches;
  for (const auto& report : recorder->reports) batches.push_back(report.batches);
  EXPECT_EQ(estimate->steps, std::ssize(batches));
  return batches;
}

/// Lightning's: {4: 2} is 1 before epoch 4; a step at the end of an epoch has what is left.
TEST(Accumulation, ByEpoch) {
  EXPECT_THAT(batches_of(Schedule{{1, 2}, {2, 5}}, 4), ElementsAre(1, 1, 1, 1, 1, 2, 2, 1, 5, 5));
  EXPECT_THAT(batches_of(Schedule{{0, 3}}, 2), ElementsAre(3, 2, 3, 2));
  EXPECT_THAT(batches_of(std::int64_t{4}, 1), ElementsAre(4, 1));
  EXPECT_EQ(batches_of_step(Schedule{{4, 2}}, 3), 1);
  EXPECT_EQ(batches_of_step(Schedule{{4, 2}}, 4), 2);
  EXPECT_EQ(batches_of_step(Schedule{{4, 2}}, 400), 2);
}

TEST(Accumulation, MistakesAreNamed) {
  const auto thrown = [](GradAccumulation accumulation) {
    return error_of([&] { Trainer({.max_steps = 1, .accumulate_grad_batches = accumulation}); });
  };
  EXPECT_THAT(thrown(Schedule{}), HasSubstr("accumulate_grad_batches: found an empty schedule"));
  EXPECT_THAT(thrown(Schedule{{0, 0}}), HasSubstr("accumulate_grad_batches: found 0, allowed: 1 or more"));
  EXPECT_THAT(thrown(Schedule{{-1, 2}}), HasSubstr("accumulate_grad_batches, an epoch: found -1"));
}

/// Remembers which numbers it gave out.
struct Seen : BatchSource {
  explicit Seen(std::int64_t batches) : count(batches) {}
  std::int64_t batches() const override { return count; }
  void seek(std::int64_t to_epoch, std::int64_t batch) override { epoch = to_epoch, at = batch; }
  std::optional<Batch> next() override {
    if (at >= count) return std::nullopt;
    seen.push_back(100 * epoch + at++);
    return Batch{{torch::ones({1, 4}), torch::ones({1, 1})}, 1, 0};
  }
  std::int64_t count, epoch = 0, at = 0;
  std::vector<std::int64_t> seen;
};

TEST(OverfitBatches, TheSameBatchesEveryEpochAndAsManyOfValidation) {
  ToyTask task;
  Seen train(10), val(20), other(20);
  TrainerOptions options{.max_epochs = 3, .limit_train_batches = std::int64_t{7}, .overfit_batches = std::int64_t{2}};
  Trainer trainer(options);
  trainer.fit(task, train, &val);
  EXPECT_THAT(train.seen, ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(val.seen, ElementsAre(0, 1, 0, 1, 0, 1));
  trainer.test(task, other);  // Lightning's limit neither
  trainer.predict(task, other);
  EXPECT_EQ(other.seen.size(), 40u);
  options.overfit_batches = 0.25;
  train.seen.clear();
  val.seen.clear();
  Trainer(options).fit(task, train, &val);
  EXPECT_THAT(train.seen, ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_EQ(val.seen.size(), 15u);
  options.overfit_batches = 0.05;
  EXPECT_REFUSED(Trainer(options).fit(task, train), "overfit_batches: found 0.05, which leaves none of 10 batches");
  options.overfit_batches = 1.5;
  EXPECT_REFUSED(Trainer{options}, "overfit_batches: found 1.5");
}

/// Validates with random numbers, and logs.
struct NoisyTask : ToyTask {
  at::Tensor validation_step(const Batch& batch, std::int64_t index) override {
    ++validations;
    if (fails) throw std::runtime_error("validation is broken");
    log("noise", torch::rand({}).item<double>());
    return ToyTask::training_step(batch, index);
  }
  int validations = 0;
  bool fails = false;
};

struct SanityRun {
  std::vector<std::string> events;
  std::vector<double> losses;
  std::map<std::string, double> metrics;
  int validations = 0;
};

SanityRun run_with_sanity(std::int64_t steps) {
  NoisyTask task;
  ToyBatches train(6, 2), val(10, 2);
  const auto recorder = std::make_shared<Recorder>();
  TrainerOptions options{.max_epochs = 1, .val_every_n_steps = 100, .num_sanity_val_steps = steps};
  Trainer trainer(options, {recorder});
  trainer.fit(task, train, &val);
  SanityRun run{recorder->events, {}, trainer.callback_metrics(), task.validations};
  for (const auto& report : recorder->reports) run.losses.push_back(report.loss);
  EXPECT_TRUE(task.net->is_training());
  return run;
}

TEST(SanitySteps, LeaveNoTrace) {
  const auto without = run_with_sanity(0);
  for (const auto& [steps, batches] : {std::pair(2, 2), std::pair(-1, 5), std::pair(99, 5)}) {
    const auto with = run_with_sanity(steps);
    EXPECT_EQ(with.validations, without.validations + batches) << steps;
    EXPECT_EQ(with.events, without.events);
    EXPECT_EQ(with.losses, without.losses);
    EXPECT_EQ(with.metrics, without.metrics);
  }
  EXPECT_REFUSED(Trainer({.max_steps = 1, .num_sanity_val_steps = -2}), "num_sanity_val_steps: found -2");
}

TEST(SanitySteps, ABrokenValidationEndsBeforeTheFirstStep) {
  NoisyTask task;
  task.fails = true;
  ToyBatches train(6, 2), val(10, 2);
  TrainerOptions options{.max_epochs = 1, .num_sanity_val_steps = 1};
  EXPECT_REFUSED(Trainer(options).fit(task, train, &val), "validation is broken");
  EXPECT_TRUE(train.seen.empty());
  EXPECT_TRUE(task.net->is_training());
}

TEST(Deterministic, IsLibTorchsSwitchWhileALoopRuns) {
  struct Task : ToyTask {
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      on = at::globalContext().deterministicAlgorithms();
      warns = at::globalContext().deterministicAlgorithmsWarnOnly();
      if (fails) throw std::runtime_error("no step");
      return ToyTask::training_step(batch, index);
    }
    bool on = false, warns = false, fails = false;
  };
  ToyBatches data(2, 2);
  const auto during = [&](std::optional<Deterministic> mode, bool fails = false) {
    Task task;
    task.fails = fails;
    Trainer trainer({.max_steps = 1, .deterministic = mode});
    EXPECT_EQ(error_of([&] { trainer.fit(task, data); }).empty(), !fails);
    EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
    return std::pair(task.on, task.warns);
  };
  EXPECT_EQ(during({}), std::pair(false, false));
  EXPECT_EQ(during(Deterministic::yes), std::pair(true, false));
  EXPECT_EQ(during(Deterministic::warn), std::pair(true, true));
  EXPECT_EQ(during(Deterministic::yes, true), std::pair(true, false));
  at::globalContext().setDeterministicAlgorithms(true, true);
  Task task;
  Trainer trainer({.max_steps = 1, .deterministic = Deterministic::no});
  trainer.validate(task, data);
  EXPECT_FALSE(task.on);
  EXPECT_TRUE(at::globalContext().deterministicAlgorithmsWarnOnly());
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST(ProgressBar, Lines) {
  EXPECT_EQ(ProgressBar::line("fit", 12, 34, "loss 2"), "fit [########................]  35% 12/34, loss 2");
  EXPECT_EQ(ProgressBar::line("test", 8, 8), "test [########################] 100% 8/8");
  EXPECT_EQ(ProgressBar::line("fit", 7, -1, "loss 2"), "fit 7, loss 2");
}

TEST(ProgressBar, DrawsEveryLoopAndClears) {
  std::string text;
  ProgressBarOptions options{.seconds = 0, .write = [&](const std::string& more) { text += more; }};
  ToyTask task;
  ToyBatches train(4, 2), val(2, 2);
  Trainer trainer({.max_epochs = 1, .enable_progress_bar = true}, {std::make_shared<ProgressBar>(options)});
  trainer.fit(task, train, &val);
  const auto drawn = [&](const char* what) { EXPECT_THAT(text, HasSubstr(std::string("\r") + what)); };
  drawn("fit [........................]   0% 0/2");
  drawn("validate [########################] 100% 1/1");
  drawn("fit [########################] 100% 2/2, epoch 0, loss ");
  EXPECT_THAT(text, ::testing::EndsWith("\r\x1b[K"));
  text.clear();
  trainer.test(task, train);
  trainer.predict(task, train);
  drawn("test [############............]  50% 1/2");
  drawn("predict [########################] 100% 2/2");
  EXPECT_THAT(text, ::testing::EndsWith("\r\x1b[K"));
}

/// The numbers are Lightning's own: lightning_lengths.py counts them.
TEST(RunLength, IsLightnings) {
  const auto table =
      io::read_json(std::filesystem::path(FP8_SOURCE_DIR) / "tests/runtime/trainer/lightning_lengths.json");
  ASSERT_EQ(table.size(), 60u);
  for (const auto& row : table) {
    SCOPED_TRACE(row["options"].dump());
    TrainerOptions options;
    const auto limit = [](const io::Json& value) {
      return value.is_number_float() ? BatchLimit(value.get<double>()) : BatchLimit(value.get<std::int64_t>());
    };
    for (const auto& [key, value] : row["options"].items()) {
      if (key == "max_epochs") options.max_epochs = value;
      if (key == "max_steps") options.max_steps = value;
      if (key == "limit_train_batches") options.limit_train_batches = limit(value);
      if (key == "limit_val_batches") options.limit_val_batches = limit(value);
      if (key == "overfit_batches") options.overfit_batches = limit(value);
      if (key == "val_check_interval") options.val_check_interval = limit(value);
      if (key == "check_val_every_n_epoch")
        options.check_val_every_n_epoch = value.is_null() ? 0 : value.get<std::int64_t>();
      if (key == "accumulate_grad_batches" && value.is_number())
        options.accumulate_grad_batches = value.get<std::int64_t>();
      if (key == "accumulate_grad_batches" && value.is_object())
        options.accumulate_grad_batches = Schedule{{1, value["1"]}};
    }
    ToyTask task;
    ToyBatches train(15, 1), val(2, 1);
    const auto recorder = std::make_shared<Recorder>();
    const auto estimate = std::make_shared<Estimate>();
    const auto fit = [&] { Trainer(options, {recorder, estimate}).fit(task, train, &val); };
    if (row.value("refused", false) || row["within_a_step"] == true) {
      EXPECT_THAT(error_of(fit), HasSubstr(row["options"].contains("overfit_batches") ? "overfit_batches: found 0.4"
                                                                                      : "val_check_interval: found"));
      continue;
    }
    fit();
    std::vector<std::int64_t> steps, validations;
    for (const auto& r : recorder->reports) {
      steps.resize(static_cast<std::size_t>(r.epoch) + 1);
      ++steps.back();
      if (r.val_loss) validations.push_back(r.step);
    }
    EXPECT_EQ(io::Json(steps), row["steps"]);
    EXPECT_EQ(io::Json(validations), row["validations"]);
    if (!row["estimated"].is_null()) {
      EXPECT_EQ(estimate->steps, row["estimated"]);
    }
    EXPECT_EQ(estimate->steps, static_cast<std::int64_t>(recorder->reports.size()));
  }
}

}  // namespace
}  // namespace fp8::trainer
