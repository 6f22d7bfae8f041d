// SPDX-License-Identifier: Apache-2.0
// Parameters held in fp8: what modules compute with them, how they learn, and how they are stored.
#include "fp8/transformer_engine/products/fp8_weight.h"

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/intercept/tag_operators.h"
#include "fp8/runtime/optim/optimizers.h"
#include "fp8/transformer_engine/modules/linear.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::te {
namespace {

Linear held_in_fp8(QuantizedInitOptions options = {}) {
  torch::manual_seed(5);
  const quantized_model_init init(std::move(options));
  return Linear(LinearOptions{.in_features = 32, .out_features = 48});
}

QuantizedInitOptions options(bool master, bool initial) {
  QuantizedInitOptions o{.recipe = recipes::Recipe(recipes::DelayedScaling::nvidia()),
                         .preserve_high_precision_init_val = initial,
                         .keep_master = master};
  return o;
}

TEST(Fp8Weight, OneByteAnElementAndTheValuesItDecodesTo) {
  Linear layer = held_in_fp8(options(false, true));
  EXPECT_EQ(layer->weight.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_TRUE(layer->weight.requires_grad());
  Fp8Weight* weight = fp8_weight(layer->weight);
  ASSERT_NE(weight, nullptr);
  const at::Tensor initial = weight->high_precision_init_val();
  // One scale: amax is at the format's end, every value within half a step of a 4-bit significand.
  EXPECT_NEAR(weight->scale_inv(), initial.abs().max().item<float>() / 448.0f, 1e-6f);
  EXPECT_TRUE(
      (weight->values() - initial).abs().le(initial.abs() / 16 + weight->scale_inv() * 0x1p-10).all().item<bool>());
  weight->clear_high_precision_init_val();
  EXPECT_FALSE(weight->high_precision_init_val().defined());
  // With fp8 off: the product of the decoded values.
  const at::Tensor x = torch::randn({4, 32}, on_hpu());
  EXPECT_TRUE(same_bits(layer(x), torch::nn::functional::linear(x, weight->values(), layer->bias)));
}

// Two modules of one name whose weights take the same step from different values: noise that were the same would add
// up.
TEST(Fp8Weight, WeightsDrawNumbersOfTheirOwnWhenTheyAreRounded) {
  const auto ups = [](float first) {  // which of equal values between two codes are rounded up
    Linear layer = held_in_fp8(options(false, false));
    at::Tensor values = torch::full({48, 32}, 1.0f + 1.0f / 32, on_hpu());
    values[0][0] = first;
    values[0][1] = 448.0f;  // the scale is 1
    fp8_weight(layer->weight)->assign(values);
    return fp8_weight(layer->weight)->values().gt(1.0f + 1.0f / 32).to(at::kFloat).flatten().slice(0, 2).cpu();
  };
  const at::Tensor a = ups(3.0f), b = ups(5.0f), again = ups(3.0f);
  EXPECT_TRUE(same_bits(a, again));
  EXPECT_NEAR(a.mean().item<float>(), 0.25f, 0.05f);
  EXPECT_LT(((a - a.mean()) * (b - b.mean())).mean().item<float>(), 0.02f);  // 0.19 where both draw the same numbers
}

TEST(Fp8Weight, WithoutARecipeIsE4M3) {
  Linear layer = held_in_fp8();
  EXPECT_EQ(layer->weight.scalar_type(), at::kFloat8_e4m3fn);
  const float scale_inv = fp8_weight(layer->weight)->scale_inv();
  EXPECT_EQ(std::exp2(std::round(std::log2(scale_inv))), scale_inv);  // a power of two
  const at::Tensor x = torch::randn({4, 32}, on_hpu());
  const fp8_autocast region(true, recipes::DelayedScaling::habana());  // the default of regions: E5M2 for the rest
  const at::Tensor y = layer(x);
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(y, torch::nn::functional::linear(x, fp8_weight(layer->weight)->values(), layer->bias),
                              0.2, 0.02));
}

TEST(Fp8Weight, LearnsWithOurOptimizersAndNotWithOthers) {
  for (const bool fp8_on : {false, true})
    for (const bool master : {false, true}) {
      Linear layer = held_in_fp8(options(master, false));
      const at::Tensor x = torch::randn({64, 32}, on_hpu()), target = torch::randn({64, 48}, on_hpu()) * 0.1;
      runtime::optim::FusedAdamW optimizer(layer->parameters(), runtime::optim::FusedAdamWOptions(3e-3));
      double first = 0, last = 0;
      for (int i = 0; i < 60; ++i) {
        const at::Tensor loss = test::within(fp8_autocast(fp8_on, recipes::CurrentScaling{}),
                                             [&] { return torch::mse_loss(layer(x), target); });
        optimizer.zero_grad();
        loss.backward();
        EXPECT_EQ(layer->weight.grad().scalar_type(), at::kFloat);
        optimizer.step();
        (i == 0 ? first : last) = loss.item<double>();
      }
      EXPECT_EQ(layer->weight.scalar_type(), at::kFloat8_e4m3fn);
      EXPECT_LT(last, 0.9 * first) << fp8_on << master;
    }
}

TEST(Fp8Weight, UpstreamsOptimizersThrow) {
  using namespace torch::optim;  // NOLINT
  using Parameters = std::vector<at::Tensor>;
  using Made = std::shared_ptr<Optimizer>;
  const std::pair<const char*, std::function<Made(const Parameters&)>> optimizers[] = {
      {"SGD", [](const Parameters& p) { return std::make_shared<SGD>(p, SGDOptions(0.1)); }},
      {"SGD with momentum",
       [](const Parameters& p) { return std::make_shared<SGD>(p, SGDOptions(0.1).momentum(0.9).weight_decay(0.1)); }},
      {"Adam", [](const Parameters& p) { return std::make_shared<Adam>(p); }},
      {"AdamW", [](const Parameters& p) { return std::make_shared<AdamW>(p); }},
      {"Adagrad", [](const Parameters& p) { return std::make_shared<Adagrad>(p); }},
      {"RMSprop", [](const Parameters& p) { return std::make_shared<RMSprop>(p); }},
      {"LBFGS", [](const Parameters& p) { return std::make_shared<LBFGS>(p); }}};
  for (const auto& [name, make] : optimizers) {
    Linear layer = held_in_fp8(options(false, false));
    const at::Tensor before = fp8_weight(layer->weight)->values().clone(), x = torch::randn({4, 32}, on_hpu());
    const auto optimizer = make(layer->parameters());
    const auto loss = [&] {
      optimizer->zero_grad();
      const at::Tensor l = layer(x).square().sum();
      l.backward();
      return l;
    };
    loss();
    EXPECT_REFUSED(optimizer->step(loss), "loat8") << name;
    EXPECT_TRUE(same_bits(fp8_weight(layer->weight)->values(), before)) << name;
  }
}

TEST(Fp8Weight, AClonesValuesAreItsOwn) {
  for (const bool master : {false, true}) {
    Linear layer = held_in_fp8(options(master, true));
    const at::Tensor x = torch::randn({4, 32}, on_hpu());
    const auto step = [&](Linear& l) {
      const fp8_autocast region(true, recipes::DelayedScaling::nvidia());
      return l(x);
    };
    step(layer).sum().backward();
    Linear clone(std::dynamic_pointer_cast<LinearImpl>(layer->clone()));
    ASSERT_NE(fp8_weight(clone->weight), nullptr);
    EXPECT_NE(fp8_weight(clone->weight), fp8_weight(layer->weight));
    EXPECT_FALSE(clone->weight.grad().defined());
    EXPECT_EQ(clone->fp8_states()[0]->values().step, 1);
    const at::Tensor y = step(layer), z = step(clone);
    EXPECT_TRUE(same_bits(y, z));
    runtime::optim::FusedAdamW optimizer(clone->parameters(), runtime::optim::FusedAdamWOptions(0.1));
    z.sum().backward();
    EXPECT_EQ(clone->weight.grad().scalar_type(), at::kFloat);
    optimizer.step();
    const at::Tensor off = layer(x);
    EXPECT_FALSE(same_bits(clone(x), off));
    EXPECT_TRUE(same_bits(off, torch::nn::functional::linear(x, fp8_weight(layer->weight)->values(), layer->bias)));
    layer = nullptr;
    EXPECT_TRUE(
        same_bits(clone(x), torch::nn::functional::linear(x, fp8_weight(clone->weight)->values(), clone->bias)));
    EXPECT_REFUSED(clone->clone(at::Device(at::kCPU)), "[clone] parameter 'weight'", "found cpu", "allowed: hpu");
  }
}

TEST(Fp8Weight, ACopyTakesTheScaleAlong) {
  for (const bool master : {false, true}) {
    Linear from = held_in_fp8(options(master, false)), to = held_in_fp8(options(master, false));
    fp8_weight(from->weight)->assign(fp8_weight(from->weight)->values() * 37.0f);
    const at::Tensor expected = fp8_weight(from->weight)->values().clone();
    ASSERT_NE(fp8_weight(from->weight)->scale_inv(), fp8_weight(to->weight)->scale_inv());
    const torch::NoGradGuard no_grad;
    to->weight.copy_(from->weight);
    EXPECT_TRUE(same_bits(fp8_weight(to->weight)->values(), expected));
    const at::Tensor x = torch::randn({4, 32}, on_hpu());
    EXPECT_TRUE(same_bits(to(x), torch::nn::functional::linear(x, expected, to->bias)));
    fp8_weight(from->weight)->assign(expected * 3.0f);  // each has its own
    EXPECT_TRUE(same_bits(fp8_weight(to->weight)->values(), expected));
    EXPECT_REFUSED(to->weight.slice(0, 0, 8).copy_(from->weight.slice(0, 8, 16)), "[copy] the weight of module",
                   "expected a copy of the whole weight");
  }
}

TEST(Fp8Weight, ACopyIsAsItWasWhenItWasMade) {
  for (const bool master : {false, true}) {
    Linear layer = held_in_fp8(options(master, false));
    const at::Tensor before = fp8_weight(layer->weight)->values().clone();
    const at::Tensor copy = layer->weight.detach().clone(), host = layer->weight.detach().cpu(),
                     rows = layer->weight.detach().narrow(0, 8, 4).clone();
    const at::Tensor decoded = runtime::dequantize(layer->weight);
    fp8_weight(layer->weight)->assign(before * 37.0f);
    ASSERT_NE(fp8_weight(layer->weight)->scale_inv(), fp8_weight(copy)->scale_inv());
    EXPECT_TRUE(same_bits(fp8_weight(copy)->values(), before));
    EXPECT_TRUE(same_bits(runtime::dequantize(rows), decoded.narrow(0, 8, 4)));
    EXPECT_TRUE(same_bits(runtime::dequantize(host), decoded.cpu()));
    layer->weight.detach().copy_(host);  // back to where it was
    EXPECT_TRUE(same_bits(fp8_weight(layer->weight)->values(), before));
  }
}

TEST(Fp8Weight, NothingOutlivesTheParameter) {
  const std::int64_t before = runtime::memory_stats().InUse;
  std::shared_ptr<runtime::OpHandler> handler;
  for (const bool master : {false, true}) {
    Linear layer = held_in_fp8(options(master, true));
    layer(torch::randn({4, 32}, on_hpu())).sum().backward();
    handler = runtime::find_tag(layer->weight)->handler;
    EXPECT_GT(runtime::memory_stats().InUse, before);
    EXPECT_TRUE(same_bits(fp8_weight(layer->weight)->codes(), layer->weight.detach()));
  }
  auto* weight = dynamic_cast<Fp8Weight*>(handler.get());
  ASSERT_NE(weight, nullptr);
  EXPECT_REFUSED(weight->assign(torch::zeros({48, 32}, on_hpu())), "[Fp8Weight] the parameter is gone");
  weight = nullptr;
  handler = nullptr;
  EXPECT_EQ(runtime::memory_stats().InUse, before);
}

// Codes are no values: a product must not take them for some. On the host they keep their scale, and come back with it.
TEST(Fp8Weight, ComputesWhereItWasMade) {
  Linear layer = held_in_fp8(options(false, false));
  for (const auto dtype : {at::kFloat, at::kBFloat16}) EXPECT_REFUSED(layer->to(dtype), "'linear'", "Float8_e4m3fn");
  const at::Tensor x = torch::randn({4, 32}, on_hpu()), y = layer(x).detach();
  EXPECT_TRUE(same_bits(layer(x), y));  // as it was
  layer->to(at::kCPU);
  EXPECT_REFUSED(layer(x.cpu()), "without their scale", "hpu");
  EXPECT_REFUSED(layer->to(at::kFloat), "'linear'");
  layer->to(test::kHpu);
  EXPECT_TRUE(same_bits(layer(x), y));
  test::within(fp8_autocast(true, recipes::CurrentScaling{}), [&] { layer(x).sum().backward(); });
  runtime::optim::FusedAdamW optimizer(layer->parameters(), runtime::optim::FusedAdamWOptions(0.1));
  optimizer.step();
  EXPECT_FALSE(same_bits(layer(x), y));
  at::Tensor bare = layer->weight.detach().view(at::kByte).clone().view(at::kFloat8_e4m3fn);
  EXPECT_REFUSED(layer->weight.detach().copy_(bare), "[copy]", "'linear'", "without a mark");
  bare.requires_grad_(true);
  layer->weight = bare;
  EXPECT_REFUSED(layer(x), "without their scale", "hpu");
  const fp8_autocast region(true, recipes::CurrentScaling{});
  EXPECT_REFUSED(layer(x), "'linear'", "quantized_model_init", "Float8_e4m3fn");
  const quantized_model_init init;
  EXPECT_REFUSED(Linear l(LinearOptions{.in_features = 16, .out_features = 16, .device = at::kCPU}),
                 "[quantized_model_init] 'linear'", "device: found cpu", "allowed: hpu");
}

TEST(Fp8Weight, ArchivesHoldTheScale) {
  const test::TempDir dir;
  const std::string file = (dir / "layer.pt").string();
  Linear layer = held_in_fp8(options(false, false)), other = held_in_fp8(options(false, false));
  fp8_weight(layer->weight)->assign(torch::randn({48, 32}, on_hpu()) * 7);
  torch::save(layer, file);
  torch::load(other, file);
  EXPECT_EQ(fp8_weight(other->weight)->state(), fp8_weight(layer->weight)->state());
  EXPECT_TRUE(same_bits(fp8_weight(other->weight)->values(), fp8_weight(layer->weight)->values()));
  const at::Tensor x = torch::randn({4, 32}, on_hpu());
  const fp8_autocast region(true, recipes::CurrentScaling{});
  EXPECT_TRUE(same_bits(other(x), layer(x)));
  Linear plain(32, 48);
  torch::save(plain, file);
  EXPECT_NE(test::error_of([&] { torch::load(other, file); }), "");  // values must not be taken for codes
}

TEST(Fp8Weight, RefusesRecipesWithBlockScales) {
  QuantizedInitOptions o{.recipe = recipes::Recipe(recipes::MXFP8{})};
  EXPECT_REFUSED(quantized_model_init init(o), "quantized_model_init", "mxfp8", "delayed, current");
}

}  // namespace
}  // namespace fp8::te
