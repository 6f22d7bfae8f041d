// SPDX-License-Identifier: Apache-2.0
// Which products of a converted weight run in fp8: einsum and addmm as linear does, those of modules that train; the
// others say that they stay in high precision.
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/TensorWrapper.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "fp8/transformer_engine/convert/convert_training.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/products/converted_weights.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;
using recipes::DelayedScaling;

/// Messages of TORCH_WARN while it lives.
struct Told final : c10::WarningHandler {
  std::vector<std::string> messages;
  c10::WarningHandler* previous = c10::WarningUtils::get_warning_handler();
  Told() { c10::WarningUtils::set_warning_handler(this); }
  ~Told() override { c10::WarningUtils::set_warning_handler(previous); }
  void process(const c10::Warning& w) override { messages.push_back(w.msg()); }
};

TrainingOptions current_scaling() {
  TrainingOptions options;
  options.recipe = recipes::CurrentScaling{};
  return options;
}

struct OneLinear {
  torch::nn::Linear module{torch::nn::LinearOptions(32, 48).bias(false)};
  explicit OneLinear(std::uint64_t seed = 3) {
    torch::manual_seed(seed);
    module->weight.data().normal_();
    module->to(kHpu);
    convert_for_training(*module, current_scaling());
  }
  at::Tensor run(const std::function<at::Tensor(const at::Tensor&)>& f) const {
    const fp8_autocast region(true, recipes::CurrentScaling{});
    return f(module->weight);
  }
};

TEST(ConvertTraining, EinsumRunsInFp8AsLinearDoes) {
  const OneLinear a, b;
  torch::manual_seed(1);
  const at::Tensor x = hpu(torch::randn({2, 5, 32})), high = at::linear(x, a.module->weight).detach();
  const at::Tensor by_linear = a.run([&](const at::Tensor& w) { return at::linear(x, w); });
  const at::Tensor by_einsum = b.run([&](const at::Tensor& w) { return at::einsum("bsd,fd->bsf", {x, w}); });
  EXPECT_TRUE(same_bits(by_einsum.detach(), by_linear.detach()));
  EXPECT_FALSE(same_bits(by_einsum.detach(), high));
  by_linear.square().sum().backward();
  by_einsum.square().sum().backward();
  EXPECT_TRUE(same_bits(b.module->weight.grad(), a.module->weight.grad()));
  EXPECT_EQ(training_handler(b.module->weight)->state()->values().step, 1);
  const at::Tensor left = b.run([&](const at::Tensor& w) { return at::einsum("fd,bsd->fbs", {w, x}); });
  EXPECT_TRUE(same_bits(left.detach().permute({1, 2, 0}).contiguous(), by_linear.detach()));
}

TEST(ConvertTraining, AddmmKeepsSelfAndFactors) {
  const OneLinear a;
  torch::manual_seed(1);
  const at::Tensor x = hpu(torch::randn({6, 32})), self = hpu(torch::randn({6, 48}));
  const at::Tensor y = a.run([&](const at::Tensor& w) { return at::linear(x, w); }).detach();
  const at::Tensor added = a.run([&](const at::Tensor& w) { return at::addmm(self, x, w.t(), 0.5, 2.0); }).detach();
  EXPECT_TRUE(at::allclose(added, 0.5 * self + 2.0 * y, 1e-6, 1e-5));
  const at::Tensor batch = a.run([&](const at::Tensor& w) {
                              return at::baddbmm(self.unsqueeze(0), x.unsqueeze(0), w.t().unsqueeze(0));
                            }).detach();
  EXPECT_TRUE(at::allclose(batch, (self + y).unsqueeze(0), 1e-6, 1e-5));
}

TEST(ConvertTraining, ProductsThatStayInHighPrecisionAreTold) {
  const OneLinear a;
  const at::Tensor x = hpu(torch::randn({6, 32}));
  Told told;
  const at::Tensor rows = a.run([&](const at::Tensor& w) { return at::linear(x, w.slice(0, 0, 16)); });
  ASSERT_EQ(told.messages.size(), 1u);
  EXPECT_THAT(told.messages[0],
              ::testing::AllOf(::testing::HasSubstr("rows 0 to 16"), ::testing::HasSubstr("high precision")));
  EXPECT_TRUE(same_bits(rows.detach(), at::linear(x, a.module->weight.slice(0, 0, 16)).detach()));
  a.run([&](const at::Tensor& w) { return at::linear(x, w.slice(0, 0, 16)); });
  EXPECT_EQ(told.messages.size(), 1u);  // once
  const OneLinear b;
  b.run([&](const at::Tensor& w) { return at::matmul(hpu(torch::randn({6, 48})), w); });
  ASSERT_EQ(told.messages.size(), 2u);
  EXPECT_THAT(told.messages[1], ::testing::HasSubstr("not x . w^T"));
  at::linear(x, a.module->weight.slice(0, 0, 16));  // outside of regions nothing is promised
  EXPECT_EQ(told.messages.size(), 2u);
}

TEST(ConvertTraining, CrossAttentionIsSaidInTheReportAndAtFirstUse) {
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(32, 2));
  attention->to(kHpu);
  const auto report = convert_for_training(*attention, current_scaling());
  ASSERT_EQ(report.converted.size(), 2u);
  const auto packed = std::find_if(report.converted.begin(), report.converted.end(),
                                   [](const auto& m) { return m.name == "in_proj_weight"; });
  ASSERT_NE(packed, report.converted.end());
  EXPECT_THAT(packed->scheme, ::testing::HasSubstr("else in high precision"));
  const at::Tensor q = hpu(torch::randn({3, 2, 32})), kv = hpu(torch::randn({5, 2, 32}));
  Told told;
  const fp8_autocast region(true, recipes::CurrentScaling{});
  attention->forward(q, q, q);
  EXPECT_TRUE(told.messages.empty());
  attention->forward(q, kv, kv);
  ASSERT_EQ(told.messages.size(), 1u);
  EXPECT_THAT(told.messages[0], ::testing::HasSubstr("in_proj_weight"));
}

TEST(ConvertTraining, ProductsFollowIsTrainingOfTheirModules) {
  const Task task = mlp_task();
  const HPUPrecisionPlugin plugin = converted(task, DelayedScaling::habana());
  const auto steps = [&] {
    std::vector<std::int64_t> all;
    for (const auto& [name, state] : fp8_states(*task.model)) all.push_back(state->values().step);
    return all;
  };
  backward_step(task, plugin);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 1, 1}));
  task.model->eval();
  backward_step(task, plugin);  // gradients are on: it is the module that evaluates
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 1, 1}));
  std::dynamic_pointer_cast<MnistNetImpl>(task.model)->fc2->train();
  backward_step(task, plugin);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2, 1}));
}

/// A level of derivatives, as torch.func's grad makes one, and what it holds.
struct Transformed {
  Transformed()
      : level(at::functorch::initAndPushDynamicLayer(at::functorch::TransformType::Grad, {}, {}, true, true)) {}
  ~Transformed() { at::functorch::popDynamicLayerAndDeleteMetadata(); }
  at::Tensor hold(const at::Tensor& t) const { return at::functorch::makeTensorWrapper(t, level); }
  std::int64_t level;
};

TEST(ConvertTraining, TransformsThatDifferentiateAreRefused) {
  const OneLinear a;
  const at::Tensor x = hpu(torch::randn({2, 32})), w = a.module->weight;
  const Transformed grad;
  const at::Tensor held = grad.hold(x).requires_grad_(true), weight = grad.hold(w).requires_grad_(true);
  const std::function<void()> products[] = {[&] { at::linear(held, w); }, [&] { at::linear(grad.hold(x), weight); },
                                            [&] { at::matmul(held.unsqueeze(0), w.t()); }};
  for (const auto& product : products) {
    EXPECT_NO_THROW(product()) << "outside of fp8";
    const fp8_autocast region(true, recipes::CurrentScaling{});
    EXPECT_TRUE(throws_with({"module '", "torch.func"}, product));
    EXPECT_NO_THROW(at::linear(grad.hold(x), w)) << "nothing is differentiated";
  }
}

}  // namespace
}  // namespace fp8::te
