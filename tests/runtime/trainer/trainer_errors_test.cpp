// SPDX-License-Identifier: Apache-2.0
// Losses and gradients that are not finite or zero, data that is none, options out of range.
#include "runtime/trainer/toy_task.h"
#include "support/enum_names.h"
#include "support/hpu_test.h"

namespace fp8::trainer {
namespace {

TEST(TrainerErrors, ANanLossEndsItNamingTheStep) {
  ToyTask task;
  ToyBatches train(8, 2);
  train.poison = 3;
  const auto message = error_of([&] { Trainer({.max_epochs = 1}).fit(task, train); });
  EXPECT_THAT(message, HasSubstr("step 3: the loss is nan"));
  EXPECT_THAT(message, HasSubstr("parameters are those of step 2"));
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
  TrainerOptions options{.max_steps = 1, .detect_anomaly = detect};
  return error_of([&] { Trainer(options).fit(task, data); });
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
  {
    const at::NoGradGuard no_grad;
    task.net->hidden->weight.fill_(3e38);
  }
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
  TrainerOptions options{.max_steps = 3, .nonfinite = NonFinite::skip, .detect_anomaly = true};
  Trainer(options, {recorder}).fit(task, data);
  EXPECT_EQ(recorder->reports[0].anomaly, "");
  EXPECT_THAT(recorder->reports[1].anomaly, HasSubstr("met the first NaN"));
  EXPECT_EQ(recorder->reports[2].anomaly, "");
}

TEST(DetectAnomaly, ChangesNoBit) {
  const auto weights = [](bool detect) {
    ToyTask task(1, test::kHpu);
    ToyBatches data(12, 2);
    TrainerOptions options{.max_steps = 6, .detect_anomaly = detect};
    Trainer(options).fit(task, data);
    EXPECT_FALSE(runtime::leaves_heard());
    EXPECT_FALSE(at::hasThreadLocalCallbacks());
    return task.net->hidden->weight.detach().cpu().clone();
  };
  EXPECT_TRUE(torch::equal(weights(false), weights(true)));
}

}  // namespace
}  // namespace fp8::trainer
