// SPDX-License-Identifier: Apache-2.0
// Linears of one input, converted: together they give the bits that each gives alone (linear_handler_test.cpp compares
// those with f64), and they go together exactly where all of them are quantized alike.
#include "fp8/runtime/modules/linear_together.h"

#include <ATen/autocast_mode.h>

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/leaf/leaf.h"
#include "support/hpu_test.h"

namespace fp8::quant {
namespace {

constexpr std::int64_t kColumns = 96;
constexpr std::int64_t kRows[] = {32, 16, 20};  // the last can't lie packed
const std::vector<std::vector<std::int64_t>> kSizes = {
    {kColumns}, {5, kColumns}, {2, 3, kColumns}, {1, 1, kColumns}, {0, kColumns}};  // of x

/// The options of one kind of quantization, with measurements of "0", "1" and "2".
PlanOptions options_of(ActivationScaling activations, Granularity weights, recipes::Dialect dialect,
                       std::array<float, 3> amax = {2.5f, 2.5f, 2.5f}) {
  PlanOptions o{.activations = activations, .weights = weights, .dialect = dialect};
  if (activations != ActivationScaling::static_tensor) return o;
  o.measurements = measure::MeasurementFile{};
  for (std::size_t i = 0; i < amax.size(); ++i)
    o.measurements->modules.push_back({std::to_string(i), {{amax[i]}}, std::nullopt, std::nullopt});
  return o;
}

struct Siblings {
  torch::nn::Sequential model;
  std::vector<torch::nn::Linear> linears;

  explicit Siblings(const PlanOptions& options, bool bias = false, at::ScalarType dtype = at::kBFloat16) {
    torch::manual_seed(3);
    for (const std::int64_t rows : kRows) {
      linears.emplace_back(torch::nn::LinearOptions(kColumns, rows).bias(bias));
      model->push_back(linears.back());
    }
    model->to(dtype);
    model->to(test::kHpu);
    convert(*model, options.config.has_value() ? with_measured_weights(options) : options);
  }

  /// INC's rules take a weight's scale from its measured amax.
  PlanOptions with_measured_weights(PlanOptions options) const {
    for (std::size_t i = 0; options.measurements.has_value() && i < linears.size(); ++i)
      options.measurements->modules[i].weight = measure::Amax{linears[i]->weight.abs().max().item<float>()};
    return options;
  }

  std::vector<at::Tensor> one_by_one(const at::Tensor& x) const {
    std::vector<at::Tensor> results;
    for (torch::nn::Linear linear : linears) results.push_back(linear->forward(x));
    return results;
  }
  /// What the first one's handler says; empty: not together.
  std::vector<at::Tensor> by_handler(const at::Tensor& x) const {
    std::vector<runtime::WholeWeight> weights;
    for (const auto& linear : linears) weights.push_back({*runtime::find_tag(linear->weight), linear->weight});
    return dynamic_cast<Fp8Handler&>(*weights.front().tag.handler).linear_together(x, weights);
  }
};

::testing::AssertionResult all_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " results";
  for (std::size_t i = 0; i < a.size(); ++i)
    if (const auto same = same_bits(a[i], b[i]); !same)
      return ::testing::AssertionFailure() << "result " << i << ": " << same.message();
  return ::testing::AssertionSuccess();
}

/// Of x in every size; by_handler: whether the first one's handler answers for all (nothing: it is not asked).
void expect_bits_of_each(const Siblings& s, at::ScalarType dtype, std::optional<bool> by_handler,
                         bool in_inference = false) {
  serve(*s.model);
  for (const auto& sizes : kSizes) {
    SCOPED_TRACE(c10::str("x ", at::IntArrayRef(sizes)));
    const at::Tensor x = hpu(torch::randn(sizes).to(dtype));
    const auto expected = s.one_by_one(x);
    ASSERT_TRUE(all_same(runtime::linear_together(x, s.linears), expected));
    if (by_handler.has_value()) {
      ASSERT_TRUE(all_same(s.by_handler(x), *by_handler ? expected : std::vector<at::Tensor>()));
    }
    if (!in_inference) continue;
    const c10::InferenceMode inference;
    ASSERT_TRUE(all_same(runtime::linear_together(x, s.linears), expected));
  }
}

TEST(LinearTogether, GivesTheBitsOfEachOfEveryScheme) {
  using enum ActivationScaling;
  const torch::NoGradGuard no_grad;
  for (auto activations : {none, static_tensor, dynamic_token})
    for (auto weights : {Granularity::tensor, Granularity::channel})
      for (auto dialect : {recipes::Dialect::ocp, recipes::Dialect::gaudi2})
        for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
          for (const bool bias : {false, true}) {
            SCOPED_TRACE(std::string(name_of(activations)) + ", " + name_of(weights));
            expect_bits_of_each(Siblings(options_of(activations, weights, dialect), bias, dtype), dtype,
                                bias ? std::nullopt : std::optional(true), /*in_inference=*/true);
          }
}

/// Blocks of 20 x 12: neither divides the rows; of 128 x 128: one of all; of 6 columns: no groups that a kernel takes.
TEST(LinearTogether, GivesTheBitsOfEachWithBlockScales) {
  using enum ActivationScaling;
  const torch::NoGradGuard no_grad;
  for (const Block block : {Block{16, 16}, Block{20, 12}, Block{128, 128}, Block{16, 6}})
    for (auto activations : {none, dynamic_token})
      for (auto dialect : {recipes::Dialect::ocp, recipes::Dialect::gaudi2})
        for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
          for (const bool bias : {false, true}) {
            SCOPED_TRACE(std::to_string(block.rows) + "x" + std::to_string(block.cols) + " " + name_of(activations));
            auto options = options_of(activations, Granularity::block, dialect);
            options.block = block;
            options.power_of_two = bias;
            expect_bits_of_each(Siblings(options, bias, dtype), dtype,
                                bias ? std::nullopt : std::optional(block.cols % 4 == 0));
          }
}

/// The input's exponents are read once for all of them.
TEST(LinearTogether, GivesTheBitsOfEachInMx) {
  const torch::NoGradGuard no_grad;
  for (auto activations : {ActivationScaling::none, ActivationScaling::dynamic_token})
    for (auto dtype : {at::kFloat, at::kBFloat16}) {
      auto options = options_of(activations, Granularity::block, recipes::Dialect::ocp);
      set_weights(options, WeightWord::mx);
      expect_bits_of_each(Siblings(options, /*bias=*/false, dtype), dtype, true);
    }
}

/// Of the emulated device, whose scales are those of QUANT_CONFIGs: one per tensor or per channel, of the hardware's
/// set or any, and computed at each call. Where the input's scales are alike the handler answers for all.
TEST(LinearTogether, GivesTheBitsOfEachOfIncsMethods) {
  const torch::NoGradGuard no_grad;
  const std::string dynamic = R"("act_maxabs_pcs_pow2_weight_maxabs_pts_pow2_hw", "dynamic_quantization": true)";
  for (const std::string& method :
       {std::string(R"("maxabs_hw")"), std::string(R"("maxabs_pow2")"), std::string(R"("maxabs_arbitrary")"),
        std::string(R"("maxabs_hw_opt_weight")"), std::string(R"("act_maxabs_hw_weights_pcs_maxabs_pow2")"),
        std::string(R"("unit_scale")"), dynamic})
    for (const auto& [dtype, name] : {std::pair{at::kFloat, "fp32"}, {at::kBFloat16, "bf16"}, {at::kHalf, "fp16"}}) {
      SCOPED_TRACE(method + " " + name);
      auto options = options_of(ActivationScaling::static_tensor, Granularity::tensor, recipes::Dialect::gaudi2);
      options.weights.reset();
      const std::string json = R"({"scale_method": )" + method + R"(, "hp_dtype": ")" + name + "\"}";
      options.config = configs::parse_quant_config(io::parse_json(json, "q.json"), "q.json");
      const Siblings s(options, /*bias=*/false, dtype);
      ASSERT_EQ(s.linears[0]->weight.scalar_type(), at::kFloat8_e4m3fn);
      serve(*s.model);
      for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{1, 1, kColumns}, {2, 3, kColumns}}) {
        const at::Tensor x = hpu((torch::randn(sizes) * 2).to(dtype));
        const auto expected = s.one_by_one(x);
        EXPECT_TRUE(all_same(runtime::linear_together(x, s.linears), expected));
        EXPECT_TRUE(all_same(s.by_handler(x), expected));
      }
    }
}

TEST(LinearTogether, RowsThatLieApartAndOtherFormsGoOneByOne) {
  const torch::NoGradGuard no_grad;
  const Siblings s(options_of(ActivationScaling::dynamic_token, Granularity::channel, recipes::Dialect::ocp));
  const at::Tensor x = hpu(torch::randn({kColumns, 3}).to(at::kBFloat16)).t();
  EXPECT_TRUE(all_same(runtime::linear_together(x, s.linears), s.one_by_one(x)));
  EXPECT_REFUSED(runtime::linear_together(hpu(torch::randn({2, kColumns - 1})), s.linears), std::to_string(kColumns));
}

TEST(LinearTogether, OtherScalesOfTheInputGoOneByOne) {
  const torch::NoGradGuard no_grad;
  const at::Tensor x = hpu(torch::randn({1, 2, kColumns}).to(at::kBFloat16));
  const Siblings other(
      options_of(ActivationScaling::static_tensor, Granularity::tensor, recipes::Dialect::ocp, {2.5f, 2.5f, 3.0f}));
  EXPECT_TRUE(other.by_handler(x).empty());
  EXPECT_TRUE(all_same(runtime::linear_together(x, other.linears), other.one_by_one(x)));
}

TEST(LinearTogether, OneOfAnotherKindGoesAlone) {
  const torch::NoGradGuard no_grad;
  const at::Tensor x = hpu(torch::randn({1, 2, kColumns}).to(at::kBFloat16));
  auto options = options_of(ActivationScaling::dynamic_token, Granularity::channel, recipes::Dialect::ocp);
  options.exclude = {"^1$"};
  const Siblings mixed(options);
  ASSERT_EQ(mixed.linears[1]->weight.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(all_same(runtime::linear_together(x, mixed.linears), mixed.one_by_one(x)));
  const auto watcher = std::make_shared<test::RecordingHandler>();
  runtime::tag_weight(mixed.linears[1]->weight, "1", watcher);
  runtime::linear_together(x, mixed.linears);
  ASSERT_EQ(watcher->calls.size(), 1u);
  EXPECT_TRUE(same_bits(watcher->calls[0].x, x));
  const Siblings s(options_of(ActivationScaling::none, Granularity::tensor, recipes::Dialect::ocp));
  const std::vector<torch::nn::Linear> tied = {s.linears[0], s.linears[1], s.linears[0]};
  const auto y = runtime::linear_together(x, tied);
  EXPECT_TRUE(same_bits(y[0], y[2]));
  EXPECT_TRUE(same_bits(y[1], s.one_by_one(x)[1]));
}

TEST(LinearTogether, GradientsAndAutocastAreThoseOfEach) {
  const Siblings s(options_of(ActivationScaling::dynamic_token, Granularity::channel, recipes::Dialect::ocp),
                   /*bias=*/true, at::kFloat);
  const auto gradient = [&](bool together) {
    const at::Tensor x = hpu(torch::linspace(-1, 1, 2 * kColumns).view({1, 2, kColumns})).requires_grad_();
    at::Tensor sum;
    for (const auto& y : together ? runtime::linear_together(x, s.linears) : s.one_by_one(x))
      sum = sum.defined() ? sum + y.pow(2).sum() : y.pow(2).sum();
    sum.backward();
    return x.grad();
  };
  EXPECT_TRUE(same_bits(gradient(true), gradient(false)));
  const torch::NoGradGuard no_grad;
  const at::Tensor x = hpu(torch::randn({1, 2, kColumns}));
  at::autocast::set_autocast_enabled(at::kHPU, true);
  const auto together = runtime::linear_together(x, s.linears), alone = s.one_by_one(x);
  at::autocast::set_autocast_enabled(at::kHPU, false);
  EXPECT_TRUE(all_same(together, alone));
}

// Weights are locked while they are read: whoever takes several of them, in whatever order, must not wait for another
// who does, nor for those who put their codes into rows.
TEST(LinearTogether, ThreadsOfAnyOrderDoNotWaitForEachOther) {
  const Siblings s(options_of(ActivationScaling::dynamic_token, Granularity::channel, recipes::Dialect::ocp));
  serve(*s.model);
  const at::Tensor x = hpu(torch::randn({1, 1, kColumns}).to(at::kBFloat16));
  const torch::NoGradGuard no_grad;
  const auto expected = s.one_by_one(x);
  std::atomic<int> wrong = 0;
  const auto products = [&](std::vector<std::size_t> order) {
    const torch::NoGradGuard none;
    std::vector<torch::nn::Linear> linears;
    for (const std::size_t i : order) linears.push_back(s.linears[i]);
    for (int turn = 0; turn < 300; ++turn) {
      const auto y = runtime::linear_together(x, linears);
      for (std::size_t i = 0; i < order.size(); ++i) wrong += same_bits(y[i], expected[order[i]]) ? 0 : 1;
    }
  };
  std::thread one(products, std::vector<std::size_t>{0, 1}), other(products, std::vector<std::size_t>{1, 0});
  for (int turn = 0; turn < 300; ++turn) runtime::cpu_alias(s.linears[turn % 2]->weight);
  one.join();
  other.join();
  EXPECT_EQ(wrong, 0);
}

// What quantized linears say that they cast an input to is the cast that their products take, and nobody says anything
// where there's no such one.

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
  return {.activations = activations, .dialect = dialect};
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
  Numbers numbers{.convention = Convention::inc, .hp = recipes::FloatType::BF16};
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
