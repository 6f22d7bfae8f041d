// SPDX-License-Identifier: Apache-2.0
// Loss scaling: the rule of torch's GradScaler as a table, and that a step with it is the step without it unless its
// gradients overflow. Its place in checkpoints: trainer_resume_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fp8/runtime/trainer/trainer.h"
#include "runtime/trainer/toy_task.h"
#include "support/hpu_test.h"

namespace fp8::trainer {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Recorder;
using testing::ToyBatches;
using testing::ToyTask;

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
    std::vector<double> rates;
    for (const auto& r : recorder->reports) rates.push_back(r.lr);
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
