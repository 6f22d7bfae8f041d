// SPDX-License-Identifier: Apache-2.0
// What one does with a converted model goes on working: another dtype or device, converting again, save, load, clone,
// clipping, hooks.
#include <cmath>
#include <sstream>

#include "fp8/transformer_engine/convert/convert_training.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/products/converted_weights.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;
using recipes::DelayedScaling;

int handlers(const torch::nn::Module& model) {
  int n = 0;
  for (const auto& p : model.parameters()) n += training_handler(p) != nullptr;
  return n;
}

TEST(ConvertModels, AnotherDtypeOrDeviceKeepsHandlersAndState) {
  const Task task = mlp_task();
  HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  backward_step(task, plugin);
  const auto scale = [&] { return fp8_states(*task.model).at(0).state->values().forward.scale[1]; };
  const float before = scale();
  EXPECT_NE(before, 1.0f);
  std::int64_t steps = 1;
  const auto goes_on = [&](const char* what) {
    const auto loss = backward_step(task, plugin);
    EXPECT_TRUE(std::isfinite(loss)) << what;
    ASSERT_EQ(handlers(*task.model), 3) << what;
    EXPECT_EQ(fp8_states(*task.model).at(0).state->values().step, ++steps) << what;
    EXPECT_EQ(scale(), before) << what;  // the weights have not changed
  };
  task.model->to(at::kCPU);
  EXPECT_EQ(handlers(*task.model), 0);
  task.model->to(kHpu);
  goes_on("cpu and back");
  for (auto& p : task.model->parameters()) p.set_data(p.detach().clone());
  goes_on("set_data");
  task.model->zero_grad(/*set_to_none=*/true);
  task.model->to(at::kBFloat16);
  const auto loss = backward_step(task, plugin);
  EXPECT_TRUE(std::isfinite(loss));
  EXPECT_EQ(handlers(*task.model), 3);
  EXPECT_EQ(fp8_states(*task.model).at(0).state->values().step, ++steps);
  EXPECT_EQ(task.model->parameters()[0].grad().scalar_type(), at::kBFloat16);
  // On purpose is on purpose: nothing comes back.
  task.model->to(at::kFloat);
  { const auto region = plugin.forward_context(); }
  EXPECT_EQ(handlers(*task.model), 3);
  EXPECT_EQ(restore(*task.model), 3);
  { const auto region = plugin.forward_context(); }
  EXPECT_EQ(handlers(*task.model), 0);
}

TEST(ConvertModels, ConvertingAgainAfterAMoveKeepsTheState) {
  const Task task = mlp_task();
  HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  backward_step(task, plugin);
  task.model->to(at::kCPU);
  task.model->to(kHpu);
  plugin.convert_modules(*task.model, {.replace_layers = true, .recipe = DelayedScaling::nvidia()});
  EXPECT_EQ(fp8_states(*task.model).at(0).state->values().step, 1);
}

TEST(ConvertModels, ArchivesRoundTrip) {
  const Task task = mlp_task(), other = mlp_task(/*seed=*/9);
  HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  torch::optim::AdamW optimizer(task.model->parameters(), torch::optim::AdamWOptions(1e-3));
  train(task, plugin, optimizer, 3);
  std::stringstream model, state;
  torch::save(std::static_pointer_cast<MnistNetImpl>(task.model), model);
  torch::save(optimizer, state);
  const HPUPrecisionPlugin second = converted(other, DelayedScaling::nvidia());
  auto loaded = std::static_pointer_cast<MnistNetImpl>(other.model);
  torch::load(loaded, model);
  EXPECT_EQ(handlers(*other.model), 3);
  EXPECT_TRUE(all_same(values_of(*task.model), values_of(*other.model)));
  torch::optim::AdamW again(other.model->parameters(), torch::optim::AdamWOptions(1e-3));
  torch::load(again, state);
  EXPECT_TRUE(set_extra_state(*other.model, get_extra_state(*task.model)).missing.empty());
  const Task resumed{other.model, other.forward, task.x, task.labels};
  EXPECT_EQ(train(task, plugin, optimizer, 3), train(resumed, second, again, 3));
  EXPECT_TRUE(all_same(values_of(*task.model), values_of(*other.model)));
}

/// A model that can clone().
struct CloneableNetImpl : torch::nn::Cloneable<CloneableNetImpl> {
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
  CloneableNetImpl() { reset(); }
  void reset() override {
    fc1 = register_module("fc1", torch::nn::Linear(16, 32));
    fc2 = register_module("fc2", torch::nn::Linear(32, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return fc2(torch::relu(fc1(x))); }
};
TORCH_MODULE(CloneableNet);

TEST(ConvertModels, AClonesFp8IsItsOwn) {
  CloneableNet net;
  net->to(kHpu);
  HPUPrecisionPlugin plugin("fp8");
  plugin.convert_modules(*net, {.replace_layers = true, .recipe = DelayedScaling::nvidia()});
  const auto copy = std::static_pointer_cast<CloneableNetImpl>(net->clone());
  const at::Tensor x = hpu(torch::randn({4, 16}));
  const auto steps = [](auto& model) { return training_handler(model->fc1->weight)->state()->step(); };
  EXPECT_EQ(handlers(*net), 2);
  EXPECT_EQ(handlers(*copy), 2);
  const auto run = [&](bool trains) {
    const at::AutoGradMode mode(trains);
    const auto region = plugin.forward_context();
    const at::Tensor a = net(x), b = copy->forward(x);
    return same_bits(a.detach(), b.detach());
  };
  const at::Tensor high = net(x).detach();
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(run(false)) << "its scales follow while it does not train itself";
    const auto region = plugin.forward_context();
    EXPECT_FALSE(same_bits(net(x).detach(), high));
  }
  EXPECT_EQ(steps(net), 3);
  EXPECT_EQ(steps(copy), 0);
  EXPECT_TRUE(run(true));
  EXPECT_EQ(steps(copy), 5) << "now they are its own";
  EXPECT_EQ(steps(net), 4);
  {
    const auto region = plugin.forward_context();
    copy->forward(x);
  }
  EXPECT_EQ(steps(copy), 6);
  EXPECT_EQ(steps(net), 4);
  // A copy of a weight that is made for a gradient is none of the weight's.
  EXPECT_EQ(training_handler(net->fc1->weight.clone()), nullptr);
  // A conversion of its own begins anew.
  const auto other = std::static_pointer_cast<CloneableNetImpl>(net->clone());
  EXPECT_EQ(
      plugin.convert_modules(*other, {.replace_layers = true, .recipe = DelayedScaling::nvidia()}).converted.size(),
      2u);
  EXPECT_EQ(fp8_states(*other).at(0).state->values().step, 0);
}

// LibTorch's own kernel fills masked places of f32 and f64 alone: the page of limits says what to give instead.
TEST(ConvertModels, PaddingOfTorchsAttentionGoesAsAnAddedMask) {
  torch::manual_seed(2);
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(32, 4));
  attention->to(kHpu);
  const at::Tensor x = hpu(torch::randn({6, 2, 32}));
  at::Tensor padding = torch::zeros({6}, at::kBool);
  padding[4] = padding[5] = true;
  const at::Tensor of_keys = hpu(padding.expand({2, 6}).contiguous());
  const at::Tensor expected = std::get<0>(attention->forward(x, x, x, of_keys, /*need_weights=*/false));
  const at::Tensor added =
      torch::zeros({6, 6}).masked_fill(padding.view({1, 6}), -std::numeric_limits<float>::infinity());
  for (const char* precision : {"bf16-mixed", "16-mixed", "fp8"}) {
    HPUPrecisionPlugin plugin(precision);
    if (precision == std::string("fp8")) plugin.convert_modules(*attention, {.replace_layers = true});
    const auto region = plugin.forward_context();
    EXPECT_TRUE(throws_with({"masked_fill"}, [&] { attention->forward(x, x, x, of_keys, false); })) << precision;
    const at::Tensor y = std::get<0>(attention->forward(x, x, x, {}, /*need_weights=*/false, hpu(added)));
    const double error = ((y.to(at::kFloat) - expected).norm() / expected.norm()).item<double>();
    EXPECT_LT(error, precision == std::string("fp8") ? 0.2 : 0.02) << precision;
  }
}

TEST(ConvertModels, ClippingHooksAndFlagsStay) {
  const Task task = mlp_task();
  int calls = 0;
  auto first = task.model->named_parameters()["fc1.weight"], frozen = task.model->named_parameters()["fc2.weight"];
  first.register_hook([&](const at::Tensor& g) {
    ++calls;
    return g * 2;
  });
  frozen.set_requires_grad(false);
  task.model->eval();
  const HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  EXPECT_FALSE(task.model->is_training());
  EXPECT_FALSE(frozen.requires_grad());
  backward_step(task, plugin);
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(frozen.grad().defined());
  double squares = 0;
  for (const auto& p : task.model->parameters()) {
    if (p.grad().defined()) squares += std::pow(p.grad().norm().item<double>(), 2);
  }
  const double norm = torch::nn::utils::clip_grad_norm_(task.model->parameters(), 1e-3);
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-4 * norm);
  EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(task.model->parameters(), 1e9), 1e-3, 1e-5);
  task.model->zero_grad();
  EXPECT_FALSE(first.grad().defined());
}

}  // namespace
}  // namespace fp8::te
