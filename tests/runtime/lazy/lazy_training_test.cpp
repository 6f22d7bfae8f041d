// SPDX-License-Identifier: Apache-2.0
// Training in lazy mode gives the bits of eager mode: losses, parameters, gradients, buffers, the next random numbers.
#include <ATen/autocast_mode.h>

#include "fp8/runtime/optim/optimizers.h"
#include "lazy_test.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using test::In;
using test::Mode;
using test::Task;

constexpr int kSteps = 20;

enum class Precision { f32, autocast, fp8 };

struct Case {
  const char* name;
  std::function<Task()> task;
  Precision precision = Precision::f32;
  bool fused = false;   // the optimizer
  bool threads = true;  // backward on a thread of autograd's
};

std::vector<at::Tensor> train(const Case& how, Mode mode) {
  const auto task = how.task();
  const recipes::Recipe recipe = recipes::DelayedScaling::nvidia();
  if (how.precision == Precision::fp8) {
    TrainingOptions options;
    options.recipe = recipe;
    convert_for_training(*task.model, options);
  }
  const In in(mode);
  auto& autograd = c10::AutogradState::get_tls_state();
  const bool before = autograd.get_multithreading_enabled();
  autograd.set_multithreading_enabled(how.threads);
  const auto parameters = task.model->parameters();
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (how.fused)
    optimizer = std::make_unique<runtime::optim::FusedAdamW>(parameters);
  else
    optimizer = std::make_unique<torch::optim::AdamW>(parameters);
  torch::manual_seed(9);
  std::vector<at::Tensor> values;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    at::Tensor logits;
    {
      std::optional<fp8_autocast> region;
      if (how.precision == Precision::fp8) region.emplace(true, recipe);
      at::autocast::set_autocast_enabled(at::kHPU, how.precision == Precision::autocast);
      logits = at::dropout(task.forward(task.x), 0.1, true);
      at::autocast::set_autocast_enabled(at::kHPU, false);
    }
    const auto loss = torch::cross_entropy_loss(logits.flatten(0, -2).to(at::kFloat), task.labels.flatten());
    loss.backward();
    optimizer->step();
    if (step % 5 == 0) runtime::submit_work();
    values.push_back(loss.detach());
  }
  for (const auto& p : parameters) {
    values.push_back(p.detach());
    if (p.grad().defined()) values.push_back(p.grad());
  }
  for (const auto& b : task.model->buffers()) values.push_back(b);
  runtime::finish_work();
  for (auto& t : values) t = t.cpu();
  values.push_back(torch::rand(3));
  autograd.set_multithreading_enabled(before);
  return values;
}

const Case kCases[] = {
    {"MLP", [] { return test::mlp_task(); }},
    {"MLP on one thread, fused optimizer", [] { return test::mlp_task(); }, Precision::f32, true, false},
    {"MLP in autocast", [] { return test::mlp_task(); }, Precision::autocast},
    {"MLP in fp8", [] { return test::mlp_task(); }, Precision::fp8, true},
    {"convolutions and batch norms", [] { return test::resnet_task(); }},
    {"convolutions in autocast", [] { return test::resnet_task(); }, Precision::autocast, true},
    {"encoder", [] { return test::bert_task(); }, Precision::f32, true},
    {"encoder in autocast", [] { return test::bert_task(); }, Precision::autocast},
    {"decoder", [] { return test::lm_task(); }},
    {"decoder in fp8", [] { return test::lm_task(); }, Precision::fp8}};

TEST(LazyTraining, GivesTheBitsOfEager) {
  for (const Case& how : kCases) {
    SCOPED_TRACE(how.name);
    const auto eager = train(how, Mode::eager);
    for (const Mode mode : {Mode::lazy, Mode::worker}) {
      const auto lazy = train(how, mode);
      ASSERT_EQ(lazy.size(), eager.size());
      for (std::size_t i = 0; i < eager.size(); ++i) ASSERT_TRUE(test::same_bits(lazy[i], eager[i])) << "value " << i;
    }
  }
}

TEST(LazyTraining, QueuesItsCalls) {
  const auto before = runtime::lazy_counts();
  (void)train(kCases[0], Mode::lazy);
  const auto counts = runtime::lazy_counts();
  EXPECT_GT(counts.queued - before.queued, (kSteps - 2) * 30);
  EXPECT_LT(counts.waits - before.waits, 120);  // mostly for the first step's calls
}

}  // namespace
}  // namespace fp8::te
