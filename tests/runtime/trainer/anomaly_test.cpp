// SPDX-License-Identifier: Apache-2.0
// Which operation a step's first NaN is laid to: made in forward, in backward only, come with the data, in skipped
// steps; and that masks of infinities are reported for no module, and watching changes no bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/trainer/trainer_run.h"
#include "runtime/trainer/toy_task.h"
#include "support/hpu_test.h"

namespace fp8::trainer {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Recorder;
using testing::ToyBatches;
using testing::ToyTask;

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
