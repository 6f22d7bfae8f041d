// SPDX-License-Identifier: Apache-2.0
// What quantized linears say that they cast an input to is the cast that their products take, and nobody says anything
// where there's no such one.
#include <ATen/autocast_mode.h>

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert.h"
#include "fp8/runtime/fp8_tensor/cast_once.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/modules/linear_together.h"
#include "support/hpu_test.h"

namespace fp8::quant {
namespace {

using test::hpu;
using test::same_bits;

constexpr std::int64_t kIn = 48;

/// Two linears of one input, of activations with amax 2.5 (the second one's: `other`).
struct Pair {
  torch::nn::Sequential model;
  std::vector<torch::nn::Linear> linears;

  explicit Pair(PlanOptions options, float other = 2.5f, at::ScalarType dtype = at::kBFloat16) {
    torch::manual_seed(5);
    options.measurements = measure::MeasurementFile{};
    for (const float amax : {2.5f, other}) {
      options.measurements->modules.push_back({std::to_string(linears.size()), {{amax}}, std::nullopt, std::nullopt});
      linears.emplace_back(torch::nn::LinearOptions(kIn, 32));
      model->push_back(linears.back());
    }
    model->to(dtype);
    model->to(test::kHpu);
    convert(*model, options);
  }
  runtime::NextCast of(const at::Tensor& x) const { return runtime::input_cast(x, linears); }
};

PlanOptions options_of(ActivationScaling activations, recipes::Dialect dialect = recipes::Dialect::ocp) {
  PlanOptions options;
  options.activations = activations;
  options.dialect = dialect;
  return options;
}

TEST(InputCast, IsTheOneThatProductsTake) {
  const torch::NoGradGuard no_grad;
  for (const auto activations : {ActivationScaling::static_tensor, ActivationScaling::dynamic_token})
    for (const auto dialect : {recipes::Dialect::ocp, recipes::Dialect::gaudi2})
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        Pair pair(options_of(activations, dialect), 2.5f, dtype);
        const at::Tensor x = hpu(torch::randn({2, 3, kIn}).to(dtype)), same = x.clone();
        const auto cast = pair.of(x);
        ASSERT_TRUE(cast.has_value());
        const auto expected = pair.linears[1]->forward(x);
        runtime::keep_cast(same, *cast, runtime::quantize(same, *cast));
        same.data().zero_();  // unseen by what is kept
        EXPECT_TRUE(same_bits(pair.linears[1]->forward(same), expected)) << name_of(activations);
        EXPECT_TRUE(same_bits(runtime::linear_together(same, pair.linears)[1], expected)) << name_of(activations);
      }
}

TEST(InputCast, NoneWhereTheyDifferOrTakeXAsItIs) {
  const torch::NoGradGuard no_grad;
  const at::Tensor x = hpu(torch::randn({2, kIn}).to(at::kBFloat16));
  EXPECT_FALSE(Pair(options_of(ActivationScaling::static_tensor), 3.0f).of(x).has_value());
  EXPECT_FALSE(Pair(options_of(ActivationScaling::none)).of(x).has_value());
  auto mixed = options_of(ActivationScaling::dynamic_token);
  mixed.exclude = {"^1$"};
  EXPECT_FALSE(Pair(mixed).of(x).has_value());
  const Pair pair(options_of(ActivationScaling::dynamic_token));
  EXPECT_TRUE(pair.of(x).has_value());
  EXPECT_FALSE(pair.of(x.cpu()).has_value());
  EXPECT_FALSE(pair.of(x.narrow(0, 0, 1)).has_value()) << "one row: a cast of its own is as fast";
  EXPECT_FALSE(pair.of(hpu(torch::ones({2, kIn}, at::kInt))).has_value());
  EXPECT_FALSE(runtime::input_cast(x, {}).has_value());
  runtime::tag_weight(pair.linears[1]->weight, "1", std::make_shared<test::RecordingHandler>());
  EXPECT_FALSE(pair.of(x).has_value()) << "a watcher takes x as it is";
}

TEST(InputCast, NoneWhereSomebodyLooks) {
  const Pair pair(options_of(ActivationScaling::dynamic_token));
  const at::Tensor x = hpu(torch::randn({2, kIn}).to(at::kBFloat16));
  EXPECT_TRUE(pair.of(x).has_value());
  {
    runtime::LeafListener listener;
    const runtime::Listening listening(listener);
    EXPECT_FALSE(pair.of(x).has_value());
  }
  at::autocast::set_autocast_enabled(at::kHPU, true);
  EXPECT_FALSE(pair.of(x).has_value());
  at::autocast::set_autocast_enabled(at::kHPU, false);
  EXPECT_TRUE(pair.of(x).has_value());
}

// INC's casts go through hp_dtype: an x of another dtype is cast from a tensor that isn't x.
TEST(InputCast, OfIncsConventionIsThatOfItsDtype) {
  Numbers numbers;
  numbers.convention = Convention::inc;
  numbers.hp = recipes::FloatType::BF16;
  const Quantizer given(numbers, 0.5f);
  EXPECT_TRUE(given.cast_of(at::kBFloat16).has_value());
  EXPECT_FALSE(given.cast_of(at::kFloat).has_value());
  EXPECT_FALSE(Quantizer(numbers, runtime::ScaleLayout::per_row()).cast_of(at::kBFloat16).has_value());
  const at::Tensor x = hpu((torch::randn({3, kIn}) * 100).to(at::kBFloat16));
  EXPECT_TRUE(same_bits(given.cast(x).codes, runtime::quantize(x, *given.cast_of(at::kBFloat16)).codes));
  EXPECT_FALSE(Quantizer(Numbers{}, runtime::ScaleLayout::per_column()).cast_of(at::kBFloat16).has_value());
}

}  // namespace
}  // namespace fp8::quant
