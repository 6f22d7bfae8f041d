// SPDX-License-Identifier: Apache-2.0
// The gradients of a step: averaged before they are judged and clipped, accumulated as one large batch has them,
// clipped to their common norm, and gone after it.
#include "runtime/trainer/toy_task.h"
#include "support/values.h"

namespace fp8::trainer {
namespace {

/// Stands for an average over ranks: it must see every rank's whole gradient, and what it gives must be what is judged,
/// clipped and applied.
TEST(Trainer, GradientsMeetBeforeTheyAreClippedAndJudged) {
  ToyTask task(1, at::kCPU, ToyOptimizer::sgd);
  struct Halve : TrainerCallback {
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

struct NoDropout : TrainerCallback {
  explicit NoDropout(testing::ToyNet n) : net(std::move(n)) {}
  void on_train_batch_start(Trainer&, const Batch&, std::int64_t) override { net->eval(); }
  testing::ToyNet net;
};

/// Two batches of 2 accumulated are the mean over 4, so plain gradient descent moves to the same place.
TEST(Trainer, AccumulationIsTheMeanOfItsBatches) {
  const auto run = [](std::int64_t batch, std::int64_t accumulate) {
    ToyTask task(1, at::kCPU, ToyOptimizer::sgd);
    task.net->eval();
    ToyBatches train(8, batch);
    Trainer({.max_epochs = 1, .accumulate_grad_batches = accumulate}, {std::make_shared<NoDropout>(task.net)})
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

// Loss scaling: the rule of torch's GradScaler as a table, and that a step with it is the step without it unless its
// gradients overflow. Its place in checkpoints: trainer_resume_test.

/// torch.amp.GradScaler(init_scale=8, growth_interval=2) given found_inf of 0 0 0 1 0 0 1 1 has these scales after
/// each.
TEST(GradScaler, GrowsAndBacksOff) {
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  std::vector<double> scales;
  for (const bool finite : {true, true, true, false, true, true, false, false}) {
    EXPECT_TRUE(scaler.update(finite));
    scales.push_back(scaler.scale());
  }
  EXPECT_THAT(scales, ElementsAre(8, 16, 16, 8, 8, 16, 8, 4));
}

TEST(GradScaler, EndsAtOne) {
  GradScaler scaler({.init_scale = 3});
  EXPECT_TRUE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 1.5);
  EXPECT_TRUE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_FALSE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_TRUE(scaler.update(true));
}

TEST(GradScaler, StateComesBack) {
  GradScaler a({.init_scale = 8, .growth_interval = 3}), b({.init_scale = 2, .growth_interval = 3});
  a.update(true);
  a.update(true);
  b.load(a.state());
  EXPECT_EQ(b.scale(), 8);
  b.update(true);
  EXPECT_EQ(b.scale(), 16);
  for (const io::Json& bad : {io::Json(), io::Json(3), io::Json{{"scale", 0.5}, {"growth_tracker", 0}},
                              io::Json{{"scale", "2"}, {"growth_tracker", 0}}})
    EXPECT_REFUSED(b.load(bad), "key 'grad_scaler.scale': found") << bad;
  EXPECT_REFUSED(b.load({{"scale", 2}, {"growth_tracker", -1}}),
                 "key 'grad_scaler.growth_tracker': found -1, allowed: 0 or more");
  EXPECT_EQ(b.scale(), 16);
}

TEST(GradScaler, OptionsNameThemselves) {
  const auto message = [](GradScalerOptions options) {
    return error_of([&] { Trainer trainer({.max_steps = 1, .grad_scaler = options}); });
  };
  EXPECT_EQ(message({}), "");
  EXPECT_THAT(message({.init_scale = 0.5}), HasSubstr("grad_scaler.init_scale: found 0.5, allowed: 1 to 2^60"));
  EXPECT_THAT(message({.init_scale = std::nan("")}), HasSubstr("grad_scaler.init_scale: found"));
  EXPECT_THAT(message({.growth_factor = 1}), HasSubstr("grad_scaler.growth_factor: found 1.0, allowed: above 1"));
  EXPECT_THAT(message({.backoff_factor = 1}), HasSubstr("grad_scaler.backoff_factor: found 1.0, allowed: above 0"));
  EXPECT_THAT(message({.growth_interval = 0}), HasSubstr("grad_scaler.growth_interval: found 0, allowed: 1 or more"));
}

TEST(GradScaler, ChangesNoGradient) {
  const auto run = [](std::optional<GradScalerOptions> scaler) {
    ToyTask task;
    auto recorder = std::make_shared<Recorder>();
    ToyBatches train(9, 2);
    Trainer({.max_steps = 6, .accumulate_grad_batches = 2, .gradient_clip_val = 0.5, .grad_scaler = scaler}, {recorder})
        .fit(task, train);
    for (const auto& r : recorder->reports) {
      EXPECT_EQ(r.loss_scale.has_value(), scaler.has_value());
      EXPECT_FALSE(r.skipped);
    }
    return task.net->hidden->weight.detach().clone();
  };
  EXPECT_TRUE(torch::equal(run(std::nullopt), run(GradScalerOptions{})));  // a power of two is exact
}

/// torch's schedules follow the optimizer's steps; Lightning's move on with those that are left out, too.
TEST(GradScaler, AStepThatIsLeftOutMovesNoSchedule) {
  for (const bool factor : {false, true}) {
    ToyTask task;
    task.overflow_above = 300;  // as below: steps 1, 2 and 6
    task.lr = 0.1;
    task.interval = ScheduleInterval::step;
    task.step_lr = !factor;
    if (factor) task.lr_factor = [](std::int64_t step) { return std::pow(0.5, step); };
    auto recorder = std::make_shared<Recorder>();
    ToyBatches train(16, 2);
    Trainer({.max_steps = 7, .grad_scaler = GradScalerOptions{.init_scale = 1024, .growth_interval = 3}}, {recorder})
        .fit(task, train);
    auto rates = collected(recorder->reports, [](const auto& r) { return r.lr; });
    EXPECT_THAT(rates, ElementsAre(0.1, 0.1, 0.1, 0.05, 0.025, 0.0125, 0.0125));
  }
}

TEST(GradScaler, AnOverflowIsLeftOut) {
  ToyTask task;
  task.overflow_above = 300;
  auto recorder = std::make_shared<Recorder>();
  ToyBatches train(16, 2);
  TrainerOptions options{.max_steps = 6, .grad_scaler = GradScalerOptions{.init_scale = 1024, .growth_interval = 3}};
  const auto result = Trainer(options, {recorder}).fit(task, train);
  std::vector<double> scales;
  std::vector<bool> skipped;
  for (const auto& r : recorder->reports) {
    scales.push_back(r.loss_scale.value());
    skipped.push_back(r.skipped);
  }
  EXPECT_THAT(scales, ElementsAre(1024, 512, 256, 256, 256, 512));
  EXPECT_THAT(skipped, ElementsAre(true, true, false, false, false, true));
  EXPECT_EQ(result.skipped_steps, 3);
  for (const auto& p : task.net->parameters()) EXPECT_TRUE(p.isfinite().all().item<bool>());
  task.overflow_above = 0.5;  // no scale helps
  options.grad_scaler->init_scale = 2;
  EXPECT_REFUSED(Trainer(options).fit(task, train), "step 2: the norm of the gradients is");
}

}  // namespace
}  // namespace fp8::trainer
