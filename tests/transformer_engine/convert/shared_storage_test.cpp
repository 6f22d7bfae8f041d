// SPDX-License-Identifier: Apache-2.0
// Engines that shard or flatten parameters put many weights into one storage, before or after the conversion: each of
// them is measured, quantized and trained in fp8, or the region ends with the names of those that were not.
#include "fp8/measure/calibration/session.h"
#include "fp8/measure/model/module_tree.h"
#include "fp8/quant/model/convert.h"
#include "fp8/runtime/intercept/tag_operators.h"
#include "fp8/transformer_engine/convert/convert_training.h"
#include "fp8/transformer_engine/convert/precision_plugin.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/products/converted_weights.h"
#include "support/models_for_tests.h"

namespace fp8::te {
namespace {

using namespace test;

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
    quant::PlanOptions o;
    o.activations = quant::ActivationScaling::static_tensor;
    o.measurements = session->result();
    const auto report = quant::convert(*model, o);
    EXPECT_EQ(report.converted.size(), 14u) << when;
    for (const auto& m : measure::weight_modules(*model)) {
      EXPECT_EQ(c10::isFloat8Type(m.weight.scalar_type()), m.name.rfind("layer_", 0) == 0) << m.name;
    }
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
  EXPECT_TRUE(throws_with({"'layer_1.q_proj', 'layer_1.o_proj'", "no product ran in fp8", "convert_modules()"},
                          [&] { run(false); }));
  EXPECT_TRUE(throws_with({"the user's own"}, [&] { run(true); }));
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
  EXPECT_TRUE(throws_with({"[fp8_autocast]", "'layer_1.q_proj'", "no product ran in fp8"}, [&] { run(model); }));
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
  {
    const fp8_autocast region;
    model(token_ids());
  }
  ASSERT_NE(training_handler(*weight), nullptr);
  EXPECT_EQ(training_handler(*weight)->products(), 1);
  runtime::untag(*weight);  // on purpose
  {
    const fp8_autocast region;
    model(token_ids());
  }
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
