// SPDX-License-Identifier: Apache-2.0
// Options by Lightning's names: schedules of accumulation, overfit_batches, sanity steps, deterministic, progress bars.
#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "runtime/trainer/toy_task.h"
#include "support/enum_names.h"

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
  Trainer({.max_epochs = epochs, .accumulate_grad_batches = accumulation}, {recorder, estimate}).fit(task, train);
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
  Trainer trainer({.max_epochs = 1, .val_every_n_steps = 100, .num_sanity_val_steps = steps}, {recorder});
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
  EXPECT_REFUSED(Trainer({.max_epochs = 1, .num_sanity_val_steps = 1}).fit(task, train, &val), "validation is broken");
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

// Losses and gradients that are not finite or zero, data that is none, options out of range.

TEST(TrainerErrors, ANanLossEndsItNamingTheStep) {
  ToyTask task;
  ToyBatches train(8, 2);
  train.poison = 3;
  const auto message = error_of([&] { Trainer({.max_epochs = 1}).fit(task, train); });
  EXPECT_THAT(message, AllOf(HasSubstr("step 3: the loss is nan"), HasSubstr("parameters are those of step 2")));
  for (const auto& p : task.net->parameters()) EXPECT_TRUE(p.isfinite().all().item<bool>());
}

TEST(TrainerErrors, ANanLossCanBeLeftOut) {
  ToyTask task;
  ToyBatches train(8, 2);
  train.poison = 3;
  auto recorder = std::make_shared<Recorder>();
  const auto result = Trainer({.max_epochs = 1, .accumulate_grad_batches = 2, .nonfinite = NonFinite::skip}, {recorder})
                          .fit(task, train);
  EXPECT_EQ(result.steps, 2);
  EXPECT_EQ(result.skipped_steps, 1);
  EXPECT_FALSE(recorder->reports[0].skipped);
  EXPECT_TRUE(recorder->reports[1].skipped);
  EXPECT_TRUE(std::isfinite(result.loss_last20));
  for (const auto& p : task.net->parameters()) {
    EXPECT_TRUE(p.isfinite().all().item<bool>());
    EXPECT_FALSE(p.grad().defined());
  }
}

TEST(TrainerErrors, ARunOfSkippedStepsHasNoLoss) {
  ToyTask task;
  ToyBatches train(2, 2);
  train.poison = 1;
  const auto result = Trainer({.max_steps = 3, .nonfinite = NonFinite::skip}).fit(task, train);
  EXPECT_EQ(result.skipped_steps, 3);
  EXPECT_TRUE(std::isnan(result.last_loss) && std::isnan(result.loss_last20));
}

TEST(TrainerErrors, InfiniteGradientsAreNoStep) {
  ToyTask task;
  task.loss_factor = 1e38;  // the loss is finite, squares of its gradients are not all
  task.net->out->bias.data().fill_(1.5);
  ToyBatches train(2, 2);
  const auto before = task.net->out->weight.detach().clone();
  const auto message = error_of([&] { Trainer({.max_steps = 1}).fit(task, train); });
  EXPECT_THAT(message, ::testing::AnyOf(HasSubstr("the norm of the gradients is inf"), HasSubstr("the loss is inf")));
  EXPECT_TRUE(torch::equal(before, task.net->out->weight));
}

TEST(TrainerErrors, AGroupAddedInTrainingKeepsItsOwnRateToMultiply) {
  struct Growing : ToyTask {
    Optimizers configure_optimizers() override {
      Optimizers result = ToyTask::configure_optimizers();
      optimizer = result.optimizers[0];
      return result;
    }
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      if (index == 1) optimizer->add_param_group(torch::optim::OptimizerParamGroup({at::zeros(2)}));
      return ToyTask::training_step(batch, index);
    }
    std::shared_ptr<torch::optim::Optimizer> optimizer;
  };
  Growing task;
  task.lr_factor = [](std::int64_t) { return 0.5; };
  ToyBatches train(8, 2);
  task.lr = 0.25;
  Trainer({.max_epochs = 1}).fit(task, train);
  for (const auto& group : task.optimizer->param_groups()) EXPECT_EQ(group.options().get_lr(), 0.125);
}

TEST(TrainerErrors, AStepWithoutGradientsIsAStep) {
  ToyTask task(1, at::kCPU, ToyOptimizer::sgd);
  task.loss_factor = 0;
  ToyBatches train(2, 2);
  const auto before = task.net->out->weight.detach().clone();
  auto recorder = std::make_shared<Recorder>();
  Trainer({.max_steps = 2, .gradient_clip_val = 1}, {recorder}).fit(task, train);
  EXPECT_EQ(recorder->reports[1].grad_norm, 0);
  EXPECT_TRUE(torch::equal(before, task.net->out->weight));
}

TEST(TrainerErrors, DataThatIsNoneOrEndsEarly) {
  ToyTask task;
  ToyBatches none(0, 2), early(8, 2), empty(8, 2), fine(8, 2);
  early.end_early_at = 2;
  empty.empty_at = 2;
  EXPECT_REFUSED(Trainer({.max_steps = 1}).fit(task, none), "training data: found no batch");
  EXPECT_REFUSED(Trainer({.max_steps = 9}).fit(task, early), "training data: ended after 2 of 4 batches");
  EXPECT_REFUSED(Trainer({.max_steps = 9}).fit(task, empty), "batch 1 is empty");
  EXPECT_REFUSED(Trainer({.max_steps = 9, .limit_train_batches = 0.0}).fit(task, fine),
                 "limit_train_batches: found 0, allowed:");
  EXPECT_REFUSED(Trainer({.max_steps = 9}).validate(task, none), "validation data: found no batch");
  EXPECT_EQ(Trainer({.max_steps = 1, .val_every_n_steps = 1}).fit(task, fine, &none).val_loss, std::nullopt);
}

TEST(TrainerErrors, NonFiniteHasNames) { fp8::test::check_names<NonFinite>(); }

TEST(TrainerErrors, OptionsNameThemselves) {
  const auto message = [](TrainerOptions options) { return error_of([&] { Trainer trainer(options); }); };
  EXPECT_THAT(message({}), HasSubstr("max_steps, max_epochs and max_time: found none"));
  EXPECT_THAT(message({.max_steps = 0}), HasSubstr("max_steps: found 0, allowed: 1 or more, or -1"));
  EXPECT_THAT(message({.max_steps = 1, .accumulate_grad_batches = 0}),
              HasSubstr("accumulate_grad_batches: found 0, allowed: 1 or more"));
  EXPECT_THAT(message({.max_steps = 1, .gradient_clip_val = -1}), HasSubstr("gradient_clip_val"));
  EXPECT_THAT(message({.max_steps = 1, .throughput_warmup_steps = -1}),
              HasSubstr("throughput_warmup_steps: found -1, allowed: 0 or more"));
  EXPECT_THAT(message({.max_steps = 1, .limit_val_batches = 2.0}), HasSubstr("limit_val_batches"));
}

// Which operation a step's first NaN is laid to: made in forward, in backward only, come with the data, in skipped
// steps; and that masks of infinities are reported for no module, and watching changes no bit.

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Its loss is `wrong` of what the network says.
struct WrongTask : ToyTask {
  using Wrong = std::function<at::Tensor(const at::Tensor&)>;
  WrongTask(at::Device device, Wrong w) : ToyTask(1, device), wrong(std::move(w)) {}
  at::Tensor training_step(const Batch& batch, std::int64_t) override {
    return wrong(net->forward(batch.tensors[0].to(net->hidden->weight.device()))).mean();
  }
  Wrong wrong;
};

std::string error_with(at::Device device, WrongTask::Wrong wrong, bool detect = true) {
  WrongTask task(device, std::move(wrong));
  ToyBatches data(4, 2);
  return error_of([&] { Trainer({.max_steps = 1, .detect_anomaly = detect}).fit(task, data); });
}

TEST(DetectAnomaly, InForward) {
  for (const at::Device device : {at::Device(at::kCPU), test::kHpu}) {
    const auto message =
        error_with(device, [](const at::Tensor& y) { return torch::log(y * 0) - torch::log(y.detach() * 0); });
    EXPECT_THAT(message, AllOf(HasSubstr("step 1: the loss is nan"),
                               HasSubstr("detect_anomaly: aten::log made the first infinite value (forward, behind "
                                         "'out'); aten::sub made the first NaN (forward, behind 'out')")))
        << device;
  }
  const auto off = error_with(at::kCPU, [](const at::Tensor& y) { return torch::log(-y.abs()); }, false);
  EXPECT_THAT(off, AllOf(HasSubstr("the loss is nan"), Not(HasSubstr("detect_anomaly"))));
}

/// sqrt(0) is 0, its gradient infinite; times 0 that is NaN.
TEST(DetectAnomaly, InBackwardOnly) {
  for (const at::Device device : {at::Device(at::kCPU), test::kHpu}) {
    const auto message = error_with(device, [](const at::Tensor& y) { return torch::sqrt((y * 0).abs()) * 0 + y; });
    EXPECT_THAT(message, AllOf(HasSubstr("the norm of the gradients is nan"),
                               HasSubstr("made the first NaN (backward, "), HasSubstr("SqrtBackward0, behind 'out')")))
        << device;
  }
}

TEST(DetectAnomaly, OfAModuleItself) {
  WrongTask task(at::kCPU, [](const at::Tensor& y) { return y; });
  test::within(at::NoGradGuard(), [&] { task.net->hidden->weight.fill_(3e38); });
  ToyBatches data(4, 2);
  TrainerOptions options{.max_steps = 1, .detect_anomaly = true};
  task.wrong = [&](const at::Tensor& y) { return task.net->hidden(torch::full({1, 4}, 1e3)).sum() * 0 + y; };
  EXPECT_REFUSED(Trainer(options).fit(task, data),
                 "aten::addmm made the first infinite value (forward, in 'hidden'); ");
  const std::string path = "model.layers.0";
  EXPECT_THAT(error_with(at::kCPU,
                         [&](const at::Tensor& y) {
                           const runtime::ModuleScope module(path);
                           return torch::log(-y.abs());
                         }),
              HasSubstr("aten::log made the first NaN (forward, in 'model.layers.0')"));
}

TEST(DetectAnomaly, WhatCameWithTheDataWasMet) {
  ToyTask task;
  ToyBatches data(4, 2);
  data.poison = 2;
  TrainerOptions options{.max_steps = 2, .detect_anomaly = true};
  EXPECT_REFUSED(Trainer(options).fit(task, data), "step 2: the loss is nan", "met the first NaN (forward");
}

/// Infinities that were asked for are not what a NaN is laid to.
TEST(DetectAnomaly, MasksAreNobodys) {
  const auto message = error_with(at::kCPU, [](const at::Tensor& y) {
    const auto mask = torch::full({2, 2}, -kInfinity).triu(1);
    const auto scores = torch::matmul(y, y.t()) + mask;
    const auto filled = torch::matmul(y, y.t()).masked_fill(torch::eye(2).to(at::kBool), -kInfinity);
    return torch::softmax(scores, -1).sum() + torch::softmax(filled, -1).sum() + torch::log(-y.abs()).sum();
  });
  EXPECT_THAT(message, HasSubstr("detect_anomaly: aten::log made the first NaN"));
  EXPECT_THAT(message, Not(HasSubstr("infinite value")));
}

TEST(DetectAnomaly, ASkippedStepSaysIt) {
  ToyTask task;
  ToyBatches data(8, 2);
  data.poison = 2;
  const auto recorder = std::make_shared<Recorder>();
  Trainer({.max_steps = 3, .nonfinite = NonFinite::skip, .detect_anomaly = true}, {recorder}).fit(task, data);
  EXPECT_EQ(recorder->reports[0].anomaly, "");
  EXPECT_THAT(recorder->reports[1].anomaly, HasSubstr("met the first NaN"));
  EXPECT_EQ(recorder->reports[2].anomaly, "");
}

TEST(DetectAnomaly, ChangesNoBit) {
  const auto weights = [](bool detect) {
    ToyTask task(1, test::kHpu);
    ToyBatches data(12, 2);
    Trainer({.max_steps = 6, .detect_anomaly = detect}).fit(task, data);
    EXPECT_FALSE(runtime::leaves_heard());
    EXPECT_FALSE(at::hasThreadLocalCallbacks());
    return task.net->hidden->weight.detach().cpu().clone();
  };
  EXPECT_TRUE(torch::equal(weights(false), weights(true)));
}

}  // namespace
}  // namespace fp8::trainer
