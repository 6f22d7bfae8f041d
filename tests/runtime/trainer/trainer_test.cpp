// SPDX-License-Identifier: Apache-2.0
// The loop: counts, order of callbacks, learning rates, accumulation against one large batch. What is not finite, empty
// or refused: trainer_errors_test. Checkpoints: trainer_resume_test.
#include "fp8/runtime/trainer/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <numbers>
#include <thread>

#include "runtime/trainer/toy_task.h"
#include "support/hpu_test.h"

namespace fp8::trainer {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Recorder;
using testing::ToyBatches;
using testing::ToyOptimizer;
using testing::ToyTask;

TEST(Trainer, CallbacksInOrder) {
  ToyTask task;
  ToyBatches train(6, 2), val(2, 2);
  auto recorder = std::make_shared<Recorder>();
  Trainer trainer({.max_epochs = 1, .accumulate_grad_batches = 2}, {recorder});
  const auto result = trainer.fit(task, train, &val);
  EXPECT_THAT(recorder->events,
              ElementsAre("fit_start 0", "epoch_start 0", "batch_start 0", "batch_end 0", "batch_start 1",
                          "batch_end 1", "before_step", "after_step", "step_end 1", "batch_start 2", "batch_end 2",
                          "before_step", "after_step", "val_start", "val_batch_start 0", "val_batch_end 0", "val_end",
                          "step_end 2", "epoch_end 0", "fit_end"));
  EXPECT_EQ(result.steps, 2);
  EXPECT_EQ(result.epochs, 1);
  EXPECT_EQ(result.samples, 6);
  EXPECT_TRUE(result.val_loss.has_value());
  EXPECT_EQ(task.net->calls.item<int>(), 3);  // the validation ran in eval mode
  EXPECT_TRUE(task.net->is_training());
}

/// Stands for an average over ranks: it must see every rank's whole gradient, and what it gives must be what is judged,
/// clipped and applied.
TEST(Trainer, GradientsMeetBeforeTheyAreClippedAndJudged) {
  ToyTask task(1, at::kCPU, ToyOptimizer::sgd);
  class Halve : public TrainerCallback {
   public:
    explicit Halve(testing::ToyNet n) : net(std::move(n)) {}
    double norm() const {
      double sum = 0;
      for (const auto& p : net->parameters()) sum += p.grad().pow(2).sum().item<double>();
      return std::sqrt(sum);
    }
    void on_after_backward(Trainer&) override {
      before = norm();
      for (const auto& p : net->parameters())
        p.mutable_grad().mul_(steps == 1 ? std::numeric_limits<double>::quiet_NaN() : 0.5);
    }
    void on_before_optimizer_step(Trainer&) override { clipped = norm(); }
    void on_step_end(Trainer&, const StepReport& r) override {
      reports.push_back(r);
      ++steps;
    }
    testing::ToyNet net;
    double before = 0, clipped = 0;
    int steps = 0;
    std::vector<StepReport> reports;
  };
  const auto halve = std::make_shared<Halve>(task.net);
  ToyBatches train(4, 2);
  Trainer({.max_steps = 2, .accumulate_grad_batches = 1, .gradient_clip_val = 1e-3, .nonfinite = NonFinite::skip},
          {halve})
      .fit(task, train);
  ASSERT_EQ(halve->reports.size(), 2u);
  EXPECT_GT(halve->reports[0].grad_norm, 1e-3);
  EXPECT_NEAR(halve->clipped, 1e-3, 1e-6);
  EXPECT_FALSE(halve->reports[0].skipped);
  EXPECT_TRUE(halve->reports[1].skipped);
  // Half of what the backward passes gave, which a trainer without the callback reports.
  ToyTask alone(1, at::kCPU, ToyOptimizer::sgd);
  ToyBatches same(4, 2);
  const auto recorder = std::make_shared<Recorder>();
  Trainer({.max_steps = 1, .gradient_clip_val = 1e-3}, {recorder}).fit(alone, same);
  EXPECT_NEAR(halve->reports[0].grad_norm, recorder->reports[0].grad_norm / 2, 1e-6 * recorder->reports[0].grad_norm);
}

TEST(Trainer, RaggedBatchesAndSteps) {
  ToyTask task;
  ToyBatches train(7, 2);  // 2 2 2 1
  auto recorder = std::make_shared<Recorder>();
  Trainer trainer({.max_steps = 4, .accumulate_grad_batches = 3}, {recorder});
  const auto result = trainer.fit(task, train);
  std::vector<std::int64_t> batches, samples;
  for (const auto& r : recorder->reports) {
    batches.push_back(r.batches);
    samples.push_back(r.samples);
  }
  EXPECT_THAT(batches, ElementsAre(3, 1, 3, 1));
  EXPECT_THAT(samples, ElementsAre(6, 1, 6, 1));
  EXPECT_EQ(result.samples, 14);
  EXPECT_EQ(result.epochs, 2);
}

TEST(Trainer, BatchOfOneSample) {
  ToyTask task;
  ToyBatches train(1, 1);
  EXPECT_EQ(Trainer({.max_steps = 3}).fit(task, train).steps, 3);
}

/// Two batches of 2 accumulated are the mean over 4, so plain gradient descent moves to the same place.
TEST(Trainer, AccumulationIsTheMeanOfItsBatches) {
  const auto run = [](std::int64_t batch, std::int64_t accumulate) {
    ToyTask task(1, at::kCPU, ToyOptimizer::sgd);
    task.net->eval();
    ToyBatches train(8, batch);
    class Eval : public TrainerCallback {  // no dropout
      void on_train_batch_start(Trainer&, const Batch&, std::int64_t) override { net->eval(); }

     public:
      explicit Eval(testing::ToyNet n) : net(std::move(n)) {}
      testing::ToyNet net;
    };
    Trainer({.max_epochs = 1, .accumulate_grad_batches = accumulate}, {std::make_shared<Eval>(task.net)})
        .fit(task, train);
    return task.net->hidden->weight.detach().clone();
  };
  EXPECT_TRUE(torch::allclose(run(4, 1), run(2, 2), 1e-6, 1e-7));
  EXPECT_FALSE(torch::allclose(run(4, 1), run(2, 1), 1e-6, 1e-7));
}

/// 7 samples as 2 + 2 + 2 + 1 in one step are one batch of 7, not the mean of four means.
TEST(Trainer, AccumulationWeighsBatchesBySize) {
  const auto run = [](std::int64_t batch, std::int64_t accumulate) {
    ToyTask task(1, at::kCPU, ToyOptimizer::sgd);
    task.lr = 0.1;
    for (auto& p : task.net->parameters()) p.data().fill_(0.3);
    struct NoDropout : TrainerCallback {
      explicit NoDropout(testing::ToyNet n) : net(std::move(n)) {}
      void on_train_batch_start(Trainer&, const Batch&, std::int64_t) override { net->eval(); }
      testing::ToyNet net;
    };
    auto recorder = std::make_shared<Recorder>();
    ToyBatches train(7, batch);
    Trainer({.max_epochs = 1, .accumulate_grad_batches = accumulate}, {std::make_shared<NoDropout>(task.net), recorder})
        .fit(task, train);
    return std::pair(task.net->hidden->weight.detach().clone(), recorder->reports[0]);
  };
  const auto [whole, whole_report] = run(7, 1);
  const auto [parts, parts_report] = run(2, 4);
  EXPECT_TRUE(torch::allclose(whole, parts, 1e-6, 1e-7)) << whole - parts;
  EXPECT_NEAR(parts_report.loss, whole_report.loss, 1e-6 * whole_report.loss);
  EXPECT_NEAR(parts_report.grad_norm, whole_report.grad_norm, 1e-5 * whole_report.grad_norm);
  EXPECT_EQ(parts_report.batches, 4);
}

TEST(Trainer, StepLrPerEpochAndPerStep) {
  const auto rates = [](ScheduleInterval interval) {
    ToyTask task;
    task.step_lr = true;
    task.interval = interval;
    ToyBatches train(4, 2);
    auto recorder = std::make_shared<Recorder>();
    Trainer({.max_epochs = 2}, {recorder}).fit(task, train);
    std::vector<double> found;
    for (const auto& r : recorder->reports) found.push_back(r.lr);
    return found;
  };
  EXPECT_THAT(rates(ScheduleInterval::epoch), ElementsAre(0.01, 0.01, 0.005, 0.005));
  EXPECT_THAT(rates(ScheduleInterval::step), ElementsAre(0.01, 0.005, 0.0025, 0.00125));
}

/// From the first step on, each group from its own rate.
TEST(Trainer, LrFactorOfEveryGroupAndStep) {
  struct TwoGroups : ToyTask {
    Optimizers configure_optimizers() override {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(net->hidden->parameters(), std::make_unique<torch::optim::SGDOptions>(0.4));
      groups.emplace_back(net->out->parameters(), std::make_unique<torch::optim::SGDOptions>(0.1));
      optimizer = std::make_shared<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1));
      return {.optimizers = {optimizer}, .lr_factor = cosine_with_warmup(2, 5, 0.5)};
    }
    std::shared_ptr<torch::optim::Optimizer> optimizer;
  };
  TwoGroups task;
  struct Rates : TrainerCallback {
    explicit Rates(TwoGroups& t) : task(t) {}
    void on_before_optimizer_step(Trainer&) override {
      for (int g = 0; g < 2; ++g) found[g].push_back(task.optimizer->param_groups()[g].options().get_lr());
    }
    TwoGroups& task;
    std::vector<double> found[2];
  };
  auto rates = std::make_shared<Rates>(task);
  ToyBatches train(4, 2);
  Trainer({.max_steps = 5}, {rates}).fit(task, train);
  const double factors[] = {0.5, 1, 1, 0.5 + 0.25 * (1 + std::cos(std::numbers::pi / 3)),
                            0.5 + 0.25 * (1 + std::cos(2 * std::numbers::pi / 3))};
  for (int g = 0; g < 2; ++g)
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(rates->found[g].at(i), (g == 0 ? 0.4 : 0.1) * factors[i], 1e-15) << g << " " << i;
}

TEST(Trainer, OnAnyThread) {
  const auto run = [] {
    ToyTask task(1, at::kHPU);
    ToyBatches train(8, 2);
    Trainer({.max_steps = 5, .gradient_clip_val = 1}).fit(task, train);
    return task.net->hidden->weight.detach().cpu().clone();
  };
  const auto here = run();
  at::Tensor there;
  std::thread([&] { there = run(); }).join();
  EXPECT_TRUE(torch::equal(here, there));
}

TEST(Trainer, CosineWithWarmup) {
  const auto f = cosine_with_warmup(4, 12, 0.1);
  EXPECT_DOUBLE_EQ(f(0), 0.25);
  EXPECT_DOUBLE_EQ(f(3), 1.0);
  EXPECT_DOUBLE_EQ(f(4), 1.0);
  EXPECT_NEAR(f(8), 0.1 + 0.9 / 2, 1e-15);
  EXPECT_NEAR(f(11), 0.1 + 0.45 * (1 + std::cos(7 * std::numbers::pi / 8)), 1e-15);
  EXPECT_EQ(f(12), 0.1);
  EXPECT_EQ(f(1000), 0.1);
  EXPECT_EQ(cosine_with_warmup(0, 0, 0.5)(0), 0.5);
}

TEST(Trainer, LimitsAsCountAndFraction) {
  EXPECT_EQ(resolve_limit("l", std::int64_t{3}, 10), 3);
  EXPECT_EQ(resolve_limit("l", std::int64_t{30}, 10), 10);
  EXPECT_EQ(resolve_limit("l", 0.25, 10), 2);
  EXPECT_EQ(resolve_limit("l", 1.0, 10), 10);
  EXPECT_EQ(resolve_limit("l", 0.0, 10), 0);
  EXPECT_THAT(
      error_of([] { resolve_limit("limit_train_batches", 0.05, 10); }),
      HasSubstr("limit_train_batches: found 0.05, which leaves none of 10 batches, allowed: 0, or 0.1 or more"));
  EXPECT_THAT(error_of([] { resolve_limit("limit_train_batches", 1.5, 10); }),
              HasSubstr("limit_train_batches: found 1.5, allowed:"));
  EXPECT_THAT(error_of([] { resolve_limit("limit_train_batches", std::int64_t{-1}, 10); }),
              HasSubstr("limit_train_batches: found -1, allowed:"));
  EXPECT_THAT(error_of([] { resolve_limit("limit_train_batches", std::nan(""), 10); }), HasSubstr("allowed:"));
}

TEST(Trainer, LimitsAreKept) {
  ToyTask task;
  ToyBatches train(20, 2), val(20, 2);
  Trainer({.max_epochs = 2, .limit_train_batches = 0.31, .limit_val_batches = std::int64_t{4}}).fit(task, train, &val);
  EXPECT_EQ(train.seen.size(), 6u);
  EXPECT_EQ(val.seen.size(), 8u);
}

TEST(Trainer, ValidationIntervals) {
  const auto steps = [](TrainerOptions options) {
    ToyTask task;
    ToyBatches train(16, 2), val(2, 2);  // 8 batches
    auto recorder = std::make_shared<Recorder>();
    Trainer(options, {recorder}).fit(task, train, &val);
    std::vector<std::int64_t> found;
    for (const auto& r : recorder->reports)
      if (r.val_loss) found.push_back(r.step);
    return found;
  };
  EXPECT_THAT(steps({.max_epochs = 1}), ElementsAre(8));
  EXPECT_THAT(steps({.max_epochs = 1, .val_check_interval = 0.5}), ElementsAre(4, 8));
  EXPECT_THAT(steps({.max_epochs = 1, .val_check_interval = std::int64_t{3}}), ElementsAre(3, 6));
  EXPECT_THAT(steps({.max_epochs = 1, .accumulate_grad_batches = 2, .val_check_interval = std::int64_t{3}}),
              ElementsAre(2, 3));
  EXPECT_THAT(steps({.max_epochs = 1, .val_check_interval = 0.0}), ElementsAre());
  EXPECT_THAT(steps({.max_steps = 7, .val_every_n_steps = 3}), ElementsAre(3, 6, 7));
  EXPECT_THAT(steps({.max_epochs = 1, .val_every_n_steps = 3}), ElementsAre(3, 6, 8));
  EXPECT_THAT(steps({.max_epochs = 2, .val_every_n_steps = 5}), ElementsAre(5, 10, 15, 16));
}

TEST(Trainer, FastDevRun) {
  struct Logger : Recorder {
    bool is_logger() const override { return true; }
  };
  ToyTask task;
  ToyBatches train(20, 2), val(20, 2);
  auto logger = std::make_shared<Logger>();
  Trainer trainer({.max_epochs = 5,
                   .fast_dev_run = 3,
                   .val_every_n_steps = 100,
                   .checkpoint_root = "/nonexistent/never/made",
                   .save_every_n_steps = 1},
                  {logger});
  const auto result = trainer.fit(task, train, &val);
  EXPECT_EQ(result.steps, 3);
  EXPECT_EQ(val.seen.size(), 3u);
  EXPECT_TRUE(logger->events.empty());
}

/// A part that is frozen in eval mode stays so, and an error in the middle leaves no network in eval mode.
TEST(Trainer, ValidationGivesEveryModuleItsModeBack) {
  ToyTask task;
  ToyBatches val(4, 2);
  task.net->train();
  task.net->out->eval();
  Trainer trainer({.max_steps = 1});
  trainer.validate(task, val);
  EXPECT_TRUE(task.net->is_training());
  EXPECT_TRUE(task.net->hidden->is_training());
  EXPECT_FALSE(task.net->out->is_training());
  task.poison_validation = true;
  EXPECT_THAT(error_of([&] { trainer.validate(task, val); }), HasSubstr("no validation today"));
  EXPECT_TRUE(task.net->is_training());
}

TEST(Trainer, BackwardRunsOnTheCallingThread) {
  class Watch : public ToyTask {
   public:
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      auto loss = ToyTask::training_step(batch, index);
      loss.register_hook([this](const at::Tensor&) { thread = std::this_thread::get_id(); });
      return loss;
    }
    std::thread::id thread;
    explicit Watch(at::Device device) : ToyTask(1, device) {}
  };
  Watch task(at::kHPU);
  ToyBatches train(2, 2);
  Trainer({.max_steps = 1}).fit(task, train);
  EXPECT_EQ(task.thread, std::this_thread::get_id());
}

TEST(Trainer, ForwardContextEndsBeforeBackward) {
  ToyTask task;
  ToyBatches train(4, 2);
  std::vector<std::string> events;
  struct Scope {
    explicit Scope(std::vector<std::string>& e) : events(e) { events.push_back("in"); }
    ~Scope() { events.push_back("out"); }
    std::vector<std::string>& events;
  };
  struct Log : TrainerCallback {
    explicit Log(std::vector<std::string>& e) : events(e) {}
    void on_before_optimizer_step(Trainer&) override { events.push_back("step"); }
    std::vector<std::string>& events;
  };
  TrainerOptions options{.max_steps = 1, .accumulate_grad_batches = 2};
  options.forward_context = [&](const ForwardInfo& info) {
    EXPECT_TRUE(info.training);
    EXPECT_EQ(info.step, 1);
    EXPECT_EQ(info.microbatches, 2);
    EXPECT_EQ(info.microbatch, static_cast<std::int64_t>(events.size() / 2));
    return std::make_shared<Scope>(events);
  };
  Trainer(options, {std::make_shared<Log>(events)}).fit(task, train);
  EXPECT_THAT(events, ElementsAre("in", "out", "in", "out", "step"));
}

// The optimizer has one layer; the other's gradients must not add up in the norm, nor stay after a step that failed.
TEST(Trainer, NoGradientOutlivesItsStep) {
  struct OneLayer : ToyTask {
    Optimizers configure_optimizers() override {
      return {{std::make_shared<torch::optim::SGD>(net->out->parameters(), torch::optim::SGDOptions(0.0))}};
    }
  };
  struct Gradients : TrainerCallback {
    explicit Gradients(testing::ToyNet n) : net(std::move(n)) {}
    void on_step_end(Trainer&, const StepReport&) override {
      for (const auto& p : net->parameters()) EXPECT_FALSE(p.grad().defined());
    }
    testing::ToyNet net;
  };
  OneLayer task;
  ToyBatches train(8, 2);
  Trainer({.max_steps = 2}, {std::make_shared<Gradients>(task.net)}).fit(task, train);
  const auto first_norm = [&] {
    auto recorder = std::make_shared<Recorder>();
    torch::manual_seed(3);
    Trainer({.max_steps = 1}, {recorder}).fit(task, train);
    return recorder->reports[0].grad_norm;
  };
  const double clean = first_norm();
  train.poison = 2;
  EXPECT_ANY_THROW(Trainer({.max_steps = 1, .accumulate_grad_batches = 2}).fit(task, train));
  train.poison = -1;
  EXPECT_EQ(first_norm(), clean);
}

TEST(Trainer, GradientsAreClippedToTheirCommonNorm) {
  struct Norms : TrainerCallback {
    explicit Norms(testing::ToyNet n) : net(std::move(n)) {}
    void on_before_optimizer_step(Trainer&) override {
      double squares = 0;
      for (const auto& p : net->parameters()) squares += p.grad().square().sum().item<double>();
      found.push_back(std::sqrt(squares));
    }
    testing::ToyNet net;
    std::vector<double> found;
  };
  const auto norms = [](double limit) {
    ToyTask task;
    ToyBatches train(2, 2);
    auto watch = std::make_shared<Norms>(task.net);
    auto recorder = std::make_shared<Recorder>();
    Trainer({.max_steps = 1, .gradient_clip_val = limit}, {watch, recorder}).fit(task, train);
    return std::pair(recorder->reports[0].grad_norm, watch->found[0]);
  };
  const auto [reported, free] = norms(0);
  EXPECT_NEAR(reported, free, 1e-6 * free);
  const auto [before, clipped] = norms(free / 2);
  EXPECT_EQ(before, reported);
  EXPECT_NEAR(clipped, free / 2, 1e-5 * free);
  EXPECT_NEAR(norms(free * 2).second, free, 1e-6 * free);
}

TEST(Trainer, WarmupStepsDoNotCount) {
  ToyTask task;
  ToyBatches train(20, 2);
  struct SlowStart : TrainerCallback {
    void on_train_batch_start(Trainer&, const Batch&, std::int64_t index) override {
      if (index < 2) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    }
  };
  const auto result =
      Trainer({.max_epochs = 1, .throughput_warmup_steps = 2}, {std::make_shared<SlowStart>()}).fit(task, train);
  EXPECT_GT(result.speed["train_runtime"].get<double>(), 0.3);
  EXPECT_GT(result.speed["train_steps_per_second"].get<double>(), 10 / 0.3);
}

}  // namespace
}  // namespace fp8::trainer
