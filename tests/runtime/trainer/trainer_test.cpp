// SPDX-License-Identifier: Apache-2.0
// The loop: counts, order of callbacks, learning rates, validation. Accumulated, averaged and clipped gradients:
// trainer_gradients_test. What is not finite, empty or refused: trainer_options_test. Checkpoints:
// trainer_resume_test.
#include "fp8/runtime/trainer/trainer.h"

#include "fp8/runtime/lazy/lazy_mode.h"
#include "fp8/runtime/trainer/trainer_run.h"
#include "runtime/trainer/toy_task.h"
#include "support/values.h"

namespace fp8::trainer {
namespace {

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

/// What it has, on hpu.
class OnHpu : public BatchSource {
 public:
  explicit OnHpu(ToyBatches inner) : inner_(std::move(inner)) {}
  std::int64_t batches() const override { return inner_.batches(); }
  void seek(std::int64_t epoch, std::int64_t batch) override { inner_.seek(epoch, batch); }
  std::optional<Batch> next() override {
    auto batch = inner_.next();
    for (at::Tensor& t : batch->tensors) t = t.to(test::kHpu);
    return batch;
  }

 private:
  ToyBatches inner_;
};

TEST(Trainer, GraphsChangeNoBit) {
  for (const auto optimizer : {ToyOptimizer::sgd, ToyOptimizer::fused, ToyOptimizer::muon}) {
    const auto run = [&](GraphUse graphs) {
      ToyTask task(1, test::kHpu, optimizer);
      OnHpu train(ToyBatches(7, 2)), val(ToyBatches(3, 2));
      Trainer trainer({.max_epochs = 3, .accumulate_grad_batches = 2, .hpu_graphs = graphs});
      const auto result = trainer.fit(task, train, &val);
      return std::tuple(result, torch::nn::utils::parameters_to_vector(task.net->parameters()).cpu(),
                        task.net->calls.item<int>(), random_state());
    };
    const auto [eager, values, calls, random] = run({});
    const auto [graphed, same_values, same_calls, same_random] = run({.training = true, .inference = true});
    EXPECT_TRUE(values.equal(same_values));
    EXPECT_EQ(calls, same_calls);  // a buffer that steps count in
    EXPECT_TRUE(random.equal(same_random));
    EXPECT_EQ(eager.last_loss, graphed.last_loss);
    EXPECT_EQ(eager.val_loss, graphed.val_loss);
    EXPECT_EQ(eager.graphs.captured + eager.graphs.replayed, 0);
    EXPECT_EQ(graphed.graphs.captured, 4);  // batches of two and of one, in training and in validation
    EXPECT_EQ(graphed.graphs.replayed, 3 * (4 + 2) - 4);
    EXPECT_THAT(graphed.graph_refusals, IsEmpty());
  }
}

TEST(Trainer, LazyModeChangesNoBit) {
  for (const auto optimizer : {ToyOptimizer::sgd, ToyOptimizer::fused, ToyOptimizer::muon}) {
    const auto run = [&](LazyUse lazy, GraphUse graphs) {
      ToyTask task(1, test::kHpu, optimizer);
      OnHpu train(ToyBatches(7, 2)), val(ToyBatches(3, 2));
      const auto recorder = std::make_shared<Recorder>();
      TrainerOptions options{.max_epochs = 3, .accumulate_grad_batches = 2, .hpu_graphs = graphs, .lazy = lazy};
      const auto queued = runtime::lazy_counts().queued;
      const auto result = Trainer(options, {recorder}).fit(task, train, &val);
      EXPECT_FALSE(runtime::is_lazy_mode());
      EXPECT_EQ(runtime::lazy_counts().queued > queued, lazy.on);
      std::vector<double> losses;
      for (const auto& report : recorder->reports) losses.insert(losses.end(), {report.loss, report.grad_norm});
      losses.push_back(*result.val_loss);
      return std::tuple(torch::nn::utils::parameters_to_vector(task.net->parameters()).cpu(), losses, recorder->events,
                        random_state());
    };
    const auto [values, losses, events, random] = run({}, {});
    for (const LazyUse lazy : {LazyUse{.on = true}, LazyUse{.on = true, .pipelining = true}})
      for (const bool graphs : {false, true}) {
        const auto [same_values, same_losses, same_events, same_random] =
            run(lazy, {.training = graphs, .inference = graphs});
        EXPECT_TRUE(values.equal(same_values));
        EXPECT_EQ(losses, same_losses);
        EXPECT_EQ(events, same_events);
        EXPECT_TRUE(random.equal(same_random));
      }
  }
  EXPECT_REFUSED(Trainer({.lazy = {.pipelining = true}}), "lazy.pipelining: found true", "with lazy.on");
}

TEST(Trainer, StepsThatLogAreNotReplayed) {
  struct Logs : ToyTask {
    using ToyTask::ToyTask;
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      log("constant", 1.0);
      return ToyTask::training_step(batch, index);
    }
  } task(1, test::kHpu);
  OnHpu train(ToyBatches(6, 2));
  const auto result = Trainer({.max_epochs = 2, .hpu_graphs = {.training = true}}).fit(task, train);
  EXPECT_EQ(result.graphs.replayed, 0);
  EXPECT_THAT(result.graph_refusals, ElementsAre(HasSubstr("logs a number")));
}

TEST(Trainer, StepLrPerEpochAndPerStep) {
  const auto rates = [](ScheduleInterval interval) {
    ToyTask task;
    task.step_lr = true;
    task.interval = interval;
    ToyBatches train(4, 2);
    auto recorder = std::make_shared<Recorder>();
    Trainer({.max_epochs = 2}, {recorder}).fit(task, train);
    return collected(recorder->reports, [](const auto& r) { return r.lr; });
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
  EXPECT_REFUSED(resolve_limit("limit_train_batches", 0.05, 10),
                 "limit_train_batches: found 0.05, which leaves none of 10 batches, allowed: 0, or 0.1 or more");
  EXPECT_REFUSED(resolve_limit("limit_train_batches", 1.5, 10), "limit_train_batches: found 1.5, allowed:");
  EXPECT_REFUSED(resolve_limit("limit_train_batches", std::int64_t{-1}, 10), "limit_train_batches: found -1, allowed:");
  EXPECT_REFUSED(resolve_limit("limit_train_batches", std::nan(""), 10), "allowed:");
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
  EXPECT_REFUSED(steps({.max_epochs = 1, .accumulate_grad_batches = 2, .val_check_interval = std::int64_t{3}}),
                 "val_check_interval: found 3 batches with accumulate_grad_batches 2, allowed: an interval that");
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
  EXPECT_EQ(trainer.fit(task, train, &val).steps, 3);
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
  EXPECT_REFUSED(trainer.validate(task, val), "no validation today");
  EXPECT_TRUE(task.net->is_training());
}

TEST(Trainer, BackwardRunsOnTheCallingThread) {
  struct Watch : ToyTask {
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
