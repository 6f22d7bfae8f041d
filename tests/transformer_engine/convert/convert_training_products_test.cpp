// SPDX-License-Identifier: Apache-2.0
// Which products of a converted weight run in fp8: einsum and addmm as linear does, those of modules that train; the
// others say that they stay in high precision.
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/TensorWrapper.h>

#include "fp8/measure/calibration/session.h"
#include "fp8/runtime/intercept/tag_operators.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;
using recipes::DelayedScaling;

TrainingOptions current_scaling() { return {.recipe = recipes::CurrentScaling{}}; }

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
  Warnings warnings;
  const at::Tensor rows = a.run([&](const at::Tensor& w) { return at::linear(x, w.slice(0, 0, 16)); });
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_THAT(warnings.texts[0], ::testing::AllOf(HasSubstr("rows 0 to 16"), HasSubstr("high precision")));
  EXPECT_TRUE(same_bits(rows.detach(), at::linear(x, a.module->weight.slice(0, 0, 16)).detach()));
  a.run([&](const at::Tensor& w) { return at::linear(x, w.slice(0, 0, 16)); });
  EXPECT_EQ(warnings.texts.size(), 1u);  // once
  const OneLinear b;
  b.run([&](const at::Tensor& w) { return at::matmul(hpu(torch::randn({6, 48})), w); });
  ASSERT_EQ(warnings.texts.size(), 2u);
  EXPECT_THAT(warnings.texts[1], HasSubstr("not x . w^T"));
  at::linear(x, a.module->weight.slice(0, 0, 16));  // outside of regions nothing is promised
  EXPECT_EQ(warnings.texts.size(), 2u);
}

TEST(ConvertTraining, CrossAttentionIsSaidInTheReportAndAtFirstUse) {
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(32, 2));
  attention->to(kHpu);
  const auto report = convert_for_training(*attention, current_scaling());
  ASSERT_EQ(report.converted.size(), 2u);
  const auto packed = std::find_if(report.converted.begin(), report.converted.end(),
                                   [](const auto& m) { return m.name == "in_proj_weight"; });
  ASSERT_NE(packed, report.converted.end());
  EXPECT_THAT(packed->scheme, HasSubstr("else in high precision"));
  const at::Tensor q = hpu(torch::randn({3, 2, 32})), kv = hpu(torch::randn({5, 2, 32}));
  Warnings warnings;
  const fp8_autocast region(true, recipes::CurrentScaling{});
  attention->forward(q, q, q);
  EXPECT_TRUE(warnings.texts.empty());
  attention->forward(q, kv, kv);
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("in_proj_weight")));
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

// Engines that shard or flatten parameters put many weights into one storage, before or after the conversion: each of
// them is measured, quantized and trained in fp8, or the region ends with the names of those that were not.

/// What sharding engines do: all parameters become views of one buffer.
void flatten(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  std::int64_t total = 3;
  for (const auto& p : model.parameters()) total += p.numel();
  const at::Tensor flat = torch::zeros({total}, on_hpu());
  std::int64_t at = 3;
  for (auto& p : model.parameters()) {
    at::Tensor slice = flat.narrow(0, at, p.numel()).view(p.sizes());
    slice.copy_(p);
    at += p.numel();
    p.set_data(slice);
  }
}

at::Tensor train_once(TinyLm& model, HPUPrecisionPlugin& plugin, const std::function<void()>& between) {
  model->train();
  plugin.convert_modules(*model, {.replace_layers = true, .recipe = recipes::DelayedScaling::nvidia()});
  between();
  at::Tensor y;
  for (int i = 0; i < 2; ++i) {
    const auto region = plugin.forward_context();
    y = model(token_ids());
  }
  y.to(at::kFloat).square().sum().backward();
  for (const auto& [name, state] : fp8_states(*model)) EXPECT_GT(state->values().step, 0) << name;
  return y.detach();
}

TEST(SharedStorage, EveryWeightTrainsInFp8) {
  auto plain = tiny_lm(), before = tiny_lm(), after = tiny_lm();
  flatten(*before);
  HPUPrecisionPlugin a("fp8"), b("fp8"), c("fp8");
  const at::Tensor expected = train_once(plain, a, [] {});
  EXPECT_TRUE(same_bits(train_once(before, b, [] {}), expected));
  EXPECT_TRUE(same_bits(train_once(after, c, [&] { flatten(*after); }), expected));
  const auto gradients = plain->named_parameters(), of_before = before->named_parameters(),
             of_after = after->named_parameters();
  for (const auto& p : gradients) {
    EXPECT_TRUE(same_bits(of_before[p.key()].grad(), p.value().grad())) << p.key();
    EXPECT_TRUE(same_bits(of_after[p.key()].grad(), p.value().grad())) << p.key();
  }
}

TEST(SharedStorage, EveryWeightIsMeasuredAndQuantized) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> results;
  for (const char* when : {"never", "before", "while measuring"}) {
    auto model = tiny_lm();
    if (when == std::string("before")) flatten(*model);
    const auto session = measure::CalibrationSession::attach(*model, {});
    if (when == std::string("while measuring")) flatten(*model);
    model(token_ids());
    session->finalize();
    quant::PlanOptions o{.activations = quant::ActivationScaling::static_tensor, .measurements = session->result()};
    EXPECT_EQ(quant::convert(*model, o).converted.size(), 14u) << when;
    for (const auto& m : measure::weight_modules(*model))
      EXPECT_EQ(c10::isFloat8Type(m.weight.scalar_type()), m.name.rfind("layer_", 0) == 0) << m.name;
    results.push_back(model(token_ids()));
    EXPECT_TRUE(same_bits(results.back(), results.front())) << when;
  }
}

TEST(SharedStorage, ReplacedWeightsEndTheRegionWithTheirNames) {
  auto model = tiny_lm();
  model->train();
  HPUPrecisionPlugin plugin("fp8");
  plugin.convert_modules(*model, {.replace_layers = true});
  auto& layer = *model->layers[1];
  const auto run = [&](bool throws) {
    const auto region = plugin.forward_context();
    model(token_ids());
    TORCH_CHECK(!throws, "the user's own");
  };
  run(false);
  const at::Tensor others = torch::randn({2, 32, 32}, on_hpu());
  const at::Tensor was = layer.q_proj->weight;
  layer.q_proj->weight = others[0];
  layer.o_proj->weight = others[1];
  EXPECT_REFUSED(run(false), "'layer_1.q_proj', 'layer_1.o_proj'", "no product ran in fp8", "convert_modules()");
  EXPECT_REFUSED(run(true), "the user's own");
  plugin.convert_modules(*model, {.replace_layers = true});
  EXPECT_EQ(error_of([&] { run(false); }), "");
  plugin.restore(*model);
  EXPECT_EQ(error_of([&] { run(false); }), "");
}

/// Without the plugin: a region knows no model, the books of converted weights do.
TEST(SharedStorage, ReplacedWeightsEndABareRegionToo) {
  auto model = tiny_lm(), other = tiny_lm();
  model->train();
  convert_for_training(*model);
  convert_for_training(*other);
  const auto run = [](TinyLm& m) {
    const fp8_autocast region;
    m(token_ids());
  };
  const auto run_by_operators = [&] {
    const auto region = enter_autocast("", true, false, std::nullopt, 0);
    model(token_ids());
    exit_autocast(region, false);
  };
  EXPECT_EQ(error_of([&] { run(model); }), "");
  model->layers[1]->q_proj->weight = torch::randn({32, 32}, on_hpu());
  EXPECT_EQ(error_of([&] { run(other); }), "");  // another model's region says nothing of it
  EXPECT_REFUSED(run(model), "[fp8_autocast]", "'layer_1.q_proj'", "no product ran in fp8");
  EXPECT_TRUE(throws_with({"[fp8_autocast]", "'layer_1.q_proj'"}, run_by_operators));
  EXPECT_EQ(error_of([&] {
              const fp8_autocast off(false);
              model(token_ids());
            }),
            "");
  convert_for_training(*model);
  EXPECT_EQ(error_of([&] { run(model); }), "");
}

TEST(SharedStorage, AWeightThatMovedIsInFp8InABareRegion) {
  auto model = tiny_lm();
  model->train();
  convert_for_training(*model);
  model->to(at::kBFloat16);
  const auto* weight = &model->layers[0]->q_proj->weight;
  EXPECT_EQ(training_handler(*weight), nullptr);
  test::within(fp8_autocast(), [&] { model(token_ids()); });
  ASSERT_NE(training_handler(*weight), nullptr);
  EXPECT_EQ(training_handler(*weight)->products(), 1);
  runtime::untag(*weight);  // on purpose
  test::within(fp8_autocast(), [&] { model(token_ids()); });
  EXPECT_EQ(training_handler(*weight), nullptr);
}

TEST(SharedStorage, ModulesThatDoNotRunAreNoError) {
  auto model = tiny_lm();
  model->train();
  HPUPrecisionPlugin plugin("fp8");
  plugin.convert_modules(*model, {.replace_layers = true});
  EXPECT_EQ(error_of([&] {
              const auto region = plugin.forward_context();
              model->layers[0](torch::randn({4, 32}, on_hpu()));
            }),
            "");
}

}  // namespace
}  // namespace fp8::te
