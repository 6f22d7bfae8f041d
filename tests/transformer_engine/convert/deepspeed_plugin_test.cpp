// SPDX-License-Identifier: Apache-2.0
// The plugin for ZeRO engines with an engine that notes what it is told: deferred conversion, who runs backward and
// step, and what is refused.
#include "fp8/transformer_engine/convert/deepspeed_plugin.h"

#include "fp8/transformer_engine/products/converted_weights.h"
#include "support/models_for_tests.h"

namespace fp8::te {
namespace {

using test::same_bits;
using test::throws_with;

/// Keeps the model's parameters f32 and steps with plain SGD, as an engine without ZeRO would.
class NotingEngine final : public ZeroEngine {
 public:
  explicit NotingEngine(test::TinyLm model) : model_(std::move(model)) {}
  torch::nn::Module& module() override { return *model_; }
  void backward(const at::Tensor& loss) override {
    calls += "backward ";
    loss.backward();
  }
  void step() override {
    calls += "step ";
    const torch::NoGradGuard no_grad;
    for (auto& p : model_->parameters()) {
      if (p.grad().defined()) p.sub_(p.grad(), 0.1);
    }
    model_->zero_grad();
  }
  std::string calls;

 private:
  test::TinyLm model_;
};

bool converted(const test::TinyLm& model) { return training_handler(model->lm_head->weight) != nullptr; }

TEST(DeepSpeedPlugin, ConvertsWhenTheEngineIsAttached) {
  auto model = test::tiny_lm();
  model->train();
  HPUDeepSpeedPrecisionPlugin plugin("fp8");
  const auto early =
      plugin.convert_modules(*model, {.replace_layers = true, .recipe = recipes::DelayedScaling::nvidia()});
  EXPECT_TRUE(early.converted.empty());
  ASSERT_EQ(early.warnings.size(), 1u);
  EXPECT_NE(early.warnings[0].find("deferred"), std::string::npos);
  EXPECT_FALSE(converted(model));
  EXPECT_EQ(recipes::describe(plugin.recipe()), recipes::describe(recipes::DelayedScaling::nvidia()));
  EXPECT_EQ(plugin.convert_modules(*model, {.replace_layers = true, .plan_only = true}).converted.size(), 15u);
  EXPECT_FALSE(converted(model));

  NotingEngine engine(model);
  const auto report = plugin.attach(engine);
  EXPECT_EQ(report.converted.size(), 15u);
  EXPECT_TRUE(converted(model));
  EXPECT_TRUE(throws_with({"attached already", "detach"}, [&] { plugin.attach(engine); }));
  plugin.detach();
  EXPECT_FALSE(plugin.attached());
}

TEST(DeepSpeedPlugin, DefersInferenceToo) {
  auto model = test::tiny_lm();
  HPUDeepSpeedPrecisionPlugin plugin("fp8");
  EXPECT_TRUE(plugin.convert_modules(*model, {.inference = true, .quant = "/no/such/config.json"}).converted.empty());
  NotingEngine engine(model);
  EXPECT_TRUE(throws_with({"/no/such/config.json"}, [&] { plugin.attach(engine); }));
  EXPECT_FALSE(plugin.attached());
}

TEST(DeepSpeedPlugin, RefusesABadRecipeAtOnce) {
  auto model = test::tiny_lm();
  HPUDeepSpeedPrecisionPlugin plugin("fp8");
  recipes::DelayedScaling wrong;
  wrong.interval = 0;
  EXPECT_TRUE(throws_with({"interval", "0"},
                          [&] { plugin.convert_modules(*model, {.replace_layers = true, .recipe = wrong}); }));
}

// The parent insists on precision fp8; this one takes any, as the vendor's does.
TEST(DeepSpeedPlugin, TakesAnyPrecision) {
  auto model = test::tiny_lm();
  HPUDeepSpeedPrecisionPlugin plugin("bf16-mixed");
  NotingEngine engine(model);
  plugin.convert_modules(*model, {.replace_layers = true});
  EXPECT_EQ(plugin.attach(engine).converted.size(), 15u);
  EXPECT_TRUE(throws_with({"precision=`fp8`"},
                          [&] { HPUPrecisionPlugin("bf16-mixed").convert_modules(*model, {.replace_layers = true}); }));
}

TEST(DeepSpeedPlugin, TheEngineRunsBackwardAndStep) {
  auto model = test::tiny_lm();
  model->train();
  HPUDeepSpeedPrecisionPlugin plugin("fp8");
  plugin.convert_modules(*model, {.replace_layers = true, .recipe = recipes::DelayedScaling::nvidia()});
  NotingEngine engine(model);
  plugin.attach(engine);
  torch::optim::SGD optimizer(model->parameters(), 1e9);  // only looked at
  const at::Tensor ids = test::token_ids(4, 9);
  std::vector<float> losses;
  for (int step = 0; step < 30; ++step) {
    plugin.optimizer_step(optimizer, [&] {
      at::Tensor loss;
      {
        const auto region = plugin.forward_context();
        const at::Tensor logits = model(ids.narrow(1, 0, 8));
        EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
        loss = torch::nn::functional::cross_entropy(logits.view({-1, 48}).to(at::kFloat),
                                                    ids.narrow(1, 1, 8).reshape({-1}));
      }
      plugin.backward(loss);
      losses.push_back(loss.item<float>());
      return loss;
    });
    if (step == 0) {
      EXPECT_EQ(engine.calls, "backward step ");
    }
  }
  EXPECT_LT(losses.back(), losses.front() - 0.5f);
  const at::Tensor before = model->lm_head->weight.detach().clone();
  model->lm_head->weight.mutable_grad() = torch::full_like(before, 1e6);
  plugin.clip_gradients(optimizer, 1.0);
  EXPECT_EQ(model->lm_head->weight.grad().abs().max().item<float>(), 1e6f);
}

TEST(DeepSpeedPlugin, RefusesWhatEnginesCannot) {
  auto model = test::tiny_lm();
  HPUDeepSpeedPrecisionPlugin plugin("fp8");
  torch::optim::SGD sgd(model->parameters(), 0.1);
  torch::optim::LBFGS lbfgs(model->parameters());
  bool ran = false;
  const auto closure = [&] {
    ran = true;
    return at::Tensor();
  };
  EXPECT_TRUE(throws_with({"optimizer_step", "no engine"}, [&] { plugin.optimizer_step(sgd, closure); }));
  EXPECT_TRUE(throws_with({"backward", "no engine"}, [&] { plugin.backward(torch::ones({})); }));
  NotingEngine engine(model);
  plugin.attach(engine);
  EXPECT_TRUE(throws_with({"DeepSpeed and the LBFGS optimizer are not compatible."},
                          [&] { plugin.optimizer_step(lbfgs, closure); }));
  EXPECT_FALSE(ran);
  EXPECT_TRUE(
      throws_with({"undefined loss",
                   "Skipping backward by returning `None` from your `training_step` is not supported by `DeepSpeed`"},
                  [&] { plugin.optimizer_step(sgd, closure); }));
  EXPECT_TRUE(throws_with({"undefined loss"}, [&] { plugin.backward(at::Tensor()); }));
  EXPECT_EQ(engine.calls, "");
  plugin.optimizer_step(sgd, closure, /*manual_optimization=*/true);
  EXPECT_EQ(engine.calls, "step ");
}

TEST(DeepSpeedPlugin, WarnsOnceOfABackwardThatIsNotCalled) {
  struct Own {
    bool called = false;
    void backward(const at::Tensor&) { called = true; }
  } own;
  struct Plain {
  } plain;
  struct Counter final : c10::WarningHandler {
    int texts = 0;
    void process(const c10::Warning& w) override {
      texts += w.msg().find("You have overridden the `backward` hook") != std::string::npos;
    }
  } counter;
  auto* before = c10::WarningUtils::get_warning_handler();
  c10::WarningUtils::set_warning_handler(&counter);
  auto model = test::tiny_lm();
  HPUDeepSpeedPrecisionPlugin plugin("fp8");
  NotingEngine engine(model);
  plugin.attach(engine);
  const at::Tensor loss = torch::ones({}, test::on_hpu()).requires_grad_();
  plugin.backward(loss, plain);
  EXPECT_EQ(counter.texts, 0);
  plugin.backward(loss, own);
  plugin.backward(loss, own);
  c10::WarningUtils::set_warning_handler(before);
  EXPECT_EQ(counter.texts, 1);
  EXPECT_FALSE(own.called);
  EXPECT_EQ(engine.calls, "backward backward backward ");
}

}  // namespace
}  // namespace fp8::te
