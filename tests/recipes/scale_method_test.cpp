// SPDX-License-Identifier: Apache-2.0
// The 13 spellings, each with the product that Intel Neural Compressor's documentation gives it.
#include "fp8/recipes/scale_method.h"

#include <cctype>
#include <cmath>
#include <random>

#include "fp8/recipes/inc_scale.h"
#include "support/enum_names.h"
#include "support/golden.h"
#include "support/threads.h"
#include "support/throws_with.h"

namespace fp8::recipes {
namespace {

std::string product(const ScaleMethod& m) {
  return std::string(name_of(m.granularity, inc_granularities())) + " " + name_of(m.value) + " " + name_of(m.rounding) +
         " " + std::to_string(m.backoff).substr(0, 4);
}

/// Of the weights, of the activations.
std::string products(const std::string& spelling) {
  const NamedScaleMethod& method = scale_method_from_name(spelling);
  return product(method.weight) + " / " + product(method.activation) + (method.dynamic_only ? " (dynamic only)" : "");
}

TEST(ScaleMethod, EverySpellingIsItsProduct) { EXPECT_GOLDEN(products(text)); }

TEST(ScaleMethod, ProductsAreDifferent) {
  std::set<std::string> seen;
  for (const NamedScaleMethod& m : scale_methods()) seen.insert(product(m.weight) + "/" + product(m.activation));
  EXPECT_EQ(seen.size(), 13u);
  EXPECT_EQ(scale_methods().size(), 13u);
}

TEST(ScaleMethod, AnyCaseIsAccepted) {
  EXPECT_EQ(scale_method_from_name("MAXABS_HW").name, "MAXABS_HW");
  EXPECT_EQ(scale_method_from_name("MaxAbs_Hw").name, "MAXABS_HW");
  EXPECT_EQ(find_scale_method("maxabs"), nullptr);
  EXPECT_EQ(find_scale_method("maxabs_hw "), nullptr);
  EXPECT_EQ(find_scale_method(""), nullptr);
}

TEST(ScaleMethod, UnknownSpellingListsAllThirteen) {
  EXPECT_GOLDEN(test::error_of<std::invalid_argument>([&] { scale_method_from_name(text); }));
}

TEST(ScaleMethod, KindsOfWeightAndActivationNameTheRow) {
  for (const NamedScaleMethod& row : scale_methods()) {
    NamedScaleMethod other = row;
    other.weight.backoff = 0.125f;
    other.activation.candidates = {2.0f};
    EXPECT_EQ(find_scale_method(other.weight, other.activation), &row) << row.name;
  }
  const ScaleMethod pow2{Granularity::tensor, ScaleValue::MAXABS, Rounding::POW2};
  EXPECT_EQ(find_scale_method(pow2, {Granularity::tensor, ScaleValue::FIXED_VALUE, Rounding::SCALE_UNIT}), nullptr);
}

TEST(ScaleMethodRegistration, IsKnownByNameWhileItLives) {
  {
    const ScaleMethodPair methods{
        .weight = custom_scale([](float amax, const IncTarget&) { return amax / 100.0f; }),
        .activation = custom_scale([](float amax, const IncTarget&) { return amax / 50.0f; })};
    const ScaleMethodRegistration mine("My_Method", methods);
    const NamedScaleMethod& found = scale_method_from_name("MY_method");
    EXPECT_EQ(found.name, "MY_METHOD");
    EXPECT_EQ(inc_scale_inv(400.0f, found.weight, {}, "w"), 4.0f);
    EXPECT_EQ(inc_scale_inv(400.0f, found.activation, {}, "x"), 8.0f);
    EXPECT_THAT(list_of_scale_methods(), HasSubstr(", my_method"));
    EXPECT_EQ(find_scale_method(found.weight, found.activation), &found);
    EXPECT_ERROR(std::invalid_argument, ScaleMethodRegistration again("MY_METHOD", methods), "exists already");
  }
  EXPECT_EQ(find_scale_method("my_method"), nullptr);
  EXPECT_THAT(list_of_scale_methods(), Not(HasSubstr("my_method")));
}

TEST(ScaleMethodRegistration, WhatWasTakenOutlivesIt) {
  NamedScaleMethod kept;
  {
    const ScaleMethod one = custom_scale([](float, const IncTarget&) { return 0.5f; });
    const ScaleMethodRegistration mine("HALF", {.weight = one, .activation = one});
    kept = scale_method_from_name("half");
  }
  EXPECT_EQ(inc_scale_inv(3.0f, kept.weight, {}, "w"), 0.5f);
}

TEST(ScaleMethodRegistration, BadNamesAndBadResultsAreErrors) {
  for (const char* name : {"", "a b", "a.b", "MAXABS_HW"})
    EXPECT_ERROR(std::invalid_argument, ScaleMethodRegistration bad(name, {}), "scale method") << name;
  EXPECT_ERROR(std::invalid_argument, custom_scale(nullptr), "found no function");
  EXPECT_ERROR(std::invalid_argument,
               ScaleMethodRegistration bad("X", {.weight = {Granularity::tensor, ScaleValue::CUSTOM}}),
               "CUSTOM and a function go together");
  for (const float wrong : {0.0f, -1.0f, INFINITY, std::nanf(""), 0x1p-130f}) {
    const ScaleMethod method = custom_scale([wrong](float, const IncTarget&) { return wrong; });
    EXPECT_ERROR(std::invalid_argument, inc_scale_inv(1.0f, method, {}, "fc"), "fc: the scale method of your own");
  }
}

TEST(ScaleMethodRegistration, ManyThreadsAtOnce) {
  fp8::test::on_threads(8, [](int t) {
    const std::string name = "THREAD_" + std::to_string(t);
    for (int i = 0; i < 200; ++i) {
      const ScaleMethodRegistration mine(name, {});
      EXPECT_EQ(scale_method_from_name(name).name, name);
    }
    EXPECT_EQ(find_scale_method(name), nullptr);
  });
}

TEST(ScaleMethod, OnlyTheFixedOnesNeedNoMeasurements) {
  for (const NamedScaleMethod& m : scale_methods())
    EXPECT_EQ(m.needs_measurements(), m.name != "UNIT_SCALE" && m.name != "HW_ALIGNED_SINGLE_SCALE") << m.name;
}

TEST(ScaleMethod, NamesOfItsParts) {
  fp8::test::check_names<Granularity>();
  fp8::test::check_names<ScaleValue>();
  fp8::test::check_names<Rounding>();
  EXPECT_STREQ(name_of(ScaleValue::DUMMY_SCALES), "DUMMY_SCALES");
}

// Our own convention against the same formula in f64 rounded once per step, and its edges.

constexpr float kMaxima[] = {448.0f, 240.0f, 57344.0f};

// Division of two f32 in f64 rounded to f32 is the correctly rounded f32 quotient (53 >= 2 * 24 + 2 bits).
float quotient(float a, float b) { return static_cast<float>(static_cast<double>(a) / static_cast<double>(b)); }

/// The two multipliers of one tensor.
struct Scale {
  float scale, scale_inv;
};

Scale scale_of(float amax, float max) {
  const float scale_inv = scale_inv_from_amax(amax, max, "w");
  return {scale_from_scale_inv(scale_inv, "w"), scale_inv};
}

TEST(Scale, IsTheRoundedQuotientAndItsRoundedReciprocal) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-60.0f, 60.0f);
  for (float max : kMaxima)
    for (int i = 0; i < 2000; ++i) {
      const float amax = std::exp2(exponent(random));
      const Scale result = scale_of(amax, max);
      EXPECT_EQ(result.scale_inv, quotient(amax, max)) << amax;
      EXPECT_EQ(result.scale, quotient(1.0f, quotient(amax, max))) << amax;
    }
}

TEST(Scale, KnownValues) {
  EXPECT_EQ(scale_inv_from_amax(448.0f, 448.0f, "w"), 1.0f);
  EXPECT_EQ(scale_inv_from_amax(3.5f, 448.0f, "w"), 0.0078125f);  // 3.5 / 448 = 2^-7
  EXPECT_EQ(scale_of(3.5f, 448.0f).scale, 128.0f);
  EXPECT_EQ(scale_inv_from_amax(480.0f, 240.0f, "w"), 2.0f);
}

TEST(Scale, ZeroGivesOne) {
  EXPECT_EQ(scale_inv_from_amax(0.0f, 448.0f, "w"), 1.0f);
  EXPECT_EQ(scale_inv_from_amax(-0.0f, 448.0f, "w"), 1.0f);
  EXPECT_EQ(scale_of(0.0f, 448.0f).scale, 1.0f);
}

TEST(Scale, TinyAmaxMeetsTheFloorAndStaysFinite) {
  for (float max : kMaxima)
    for (float amax : {std::numeric_limits<float>::denorm_min(), 1e-44f, 1e-40f, std::numeric_limits<float>::min()}) {
      const Scale result = scale_of(amax, max);
      EXPECT_EQ(result.scale_inv, kMinScaleInv);
      EXPECT_EQ(result.scale, 0x1p126f);
      EXPECT_LE(amax * result.scale, max);
    }
  EXPECT_EQ(scale_inv_from_amax(448.0f * 0x1p-126f, 448.0f, "w"), 0x1p-126f);  // exactly at the floor
  EXPECT_EQ(scale_inv_from_amax(448.0f * 0x1p-125f, 448.0f, "w"), 0x1p-125f);
}

TEST(Scale, LargestAmaxHasAUsableScale) {
  const float amax = std::numeric_limits<float>::max();
  const Scale result = scale_of(amax, 240.0f);
  EXPECT_TRUE(std::isfinite(result.scale_inv));
  EXPECT_GT(result.scale, 0.0f);
}

TEST(Scale, BadAmaxIsAnErrorByName) {
  using testing::AllOf;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  EXPECT_ERROR(std::invalid_argument, scale_inv_from_amax(nan, 448.0f, "layers.3.weight"),
               "layers.3.weight: amax is nan", "allowed: a finite value >= 0");
  EXPECT_ERROR(std::invalid_argument, scale_inv_from_amax(inf, 448.0f, "x"), "x: amax is inf");
  EXPECT_ERROR(std::invalid_argument, scale_inv_from_amax(-1.0f, 448.0f, "x"), "x: amax is -1");
  EXPECT_ERROR(std::invalid_argument, scale_inv_from_amax(1.0f, 0.0f, "x"), "x: the format's maximum is 0");
  EXPECT_ERROR(std::invalid_argument, scale_inv_from_amax(1.0f, nan, "x"), "maximum is nan");
}

TEST(Scale, BadScaleInvIsAnErrorByName) {
  for (float bad : {0.0f, -1.0f, 0x1p-140f, std::numeric_limits<float>::infinity(), std::nanf("")})
    EXPECT_ERROR(std::invalid_argument, scale_from_scale_inv(bad, "w"), "w: scale_inv is ") << bad;
}

TEST(ScaleArray, EqualsTheScalarFormElementwise) {
  Eigen::ArrayXf amax(5);
  amax << 0.0f, 1.0f, 448.0f, 1e-44f, 3.3e38f;
  const Eigen::ArrayXf scale_inv = scale_inv_from_amax(amax, 448.0f, "w");
  const Eigen::ArrayXf scale = scale_from_scale_inv(scale_inv, "w");
  ASSERT_EQ(scale_inv.size(), 5);
  ASSERT_EQ(scale.size(), 5);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(scale_inv[i], scale_of(amax[i], 448.0f).scale_inv) << i;
    EXPECT_EQ(scale[i], scale_of(amax[i], 448.0f).scale) << i;
  }
  EXPECT_EQ(scale_inv_from_amax(Eigen::ArrayXf(0), 448.0f, "w").size(), 0);
}

TEST(ScaleArray, ErrorNamesTheElement) {
  Eigen::ArrayXf amax(3);
  amax << 1.0f, 2.0f, std::nanf("");
  EXPECT_ERROR(std::invalid_argument, scale_inv_from_amax(amax, 448.0f, "w"), "w[2]: amax is nan");
  Eigen::ArrayXf scale_inv(2);
  scale_inv << 1.0f, 0.0f;
  EXPECT_ERROR(std::invalid_argument, scale_from_scale_inv(scale_inv, "w"), "w[1]: scale_inv is 0");
}

// Formats by direction, and each dialect's largest value against the bits of the format.

// (1 + mantissa / 2^bits) * 2^(exponent field - bias)
float value(int exponent_field, int bias, int mantissa, int mantissa_bits) {
  return std::ldexp(1.0f + std::ldexp(static_cast<float>(mantissa), -mantissa_bits), exponent_field - bias);
}

TEST(Format, LargestValuesFollowFromTheBits) {
  EXPECT_EQ(fp8_max(Format::E4M3, Dialect::ocp), value(15, 7, 6, 3));  // S.1111.110, below NaN
  EXPECT_EQ(fp8_max(Format::E4M3, Dialect::gaudi3), value(15, 7, 6, 3));
  EXPECT_EQ(fp8_max(Format::E4M3, Dialect::gaudi2), value(14, 7, 7, 3));  // exponent 1111 is infinity and NaN
  EXPECT_EQ(fp8_max(Format::E5M2, Dialect::gaudi2), value(30, 15, 3, 2));
  EXPECT_EQ(fp8_max(Format::E5M2, Dialect::ocp), value(30, 15, 3, 2));
}

TEST(RecipeFormat, HybridIsE4M3ForwardAndE5M2Backward) {
  EXPECT_EQ(forward_format(RecipeFormat::HYBRID), Format::E4M3);
  EXPECT_EQ(backward_format(RecipeFormat::HYBRID), Format::E5M2);
}

TEST(RecipeFormat, PureFormatsAreTheSameBothWays) {
  EXPECT_EQ(forward_format(RecipeFormat::E4M3), Format::E4M3);
  EXPECT_EQ(backward_format(RecipeFormat::E4M3), Format::E4M3);
  EXPECT_EQ(forward_format(RecipeFormat::E5M2), Format::E5M2);
  EXPECT_EQ(backward_format(RecipeFormat::E5M2), Format::E5M2);
}

TEST(RecipeFormat, Names) {
  fp8::test::check_names<RecipeFormat>();
  EXPECT_EQ(std::string(name_of(RecipeFormat::E4M3)), "E4M3");
  EXPECT_EQ(std::string(name_of(RecipeFormat::E5M2)), "E5M2");
  EXPECT_EQ(std::string(name_of(RecipeFormat::HYBRID)), "HYBRID");
}

// The search for the least error, against the definition written a second time: every candidate, fp8 values from the
// format's definition, nearest by distance, sums in f64.

// All magnitudes of a format in order of their codes: subnormals, then 2^e * (1 + m / M).
std::vector<double> magnitudes(Format format, double max) {
  const int mantissas = format == Format::E4M3 ? 8 : 4, smallest = format == Format::E4M3 ? -6 : -14;
  std::vector<double> values;
  for (int m = 0; m < mantissas; ++m) values.push_back(std::ldexp(m, smallest) / mantissas);
  for (int e = smallest; values.back() < max; ++e)
    for (int m = 0; m < mantissas && values.back() < max; ++m)
      values.push_back(std::ldexp(1.0 + static_cast<double>(m) / mantissas, e));
  return values;
}

// The nearest of them, ties to the even code; beyond the largest: the largest.
double to_fp8(double y, const std::vector<double>& values) {
  const double x = std::abs(y);
  if (x >= values.back()) return std::copysign(values.back(), y);
  const auto above = static_cast<std::size_t>(std::upper_bound(values.begin(), values.end(), x) - values.begin());
  const double low = x - values[above - 1], high = values[above] - x;
  const bool up = high < low || (high == low && above % 2 == 0);
  return std::copysign(values[up ? above : above - 1], y);
}

struct Definition {
  IncTarget target;
  std::vector<double> values = magnitudes(target.format, fp8_max(target.format, target.dialect));
  float hp(double x) const { return round_to(static_cast<float>(x), target.hp); }

  float residual(float w, float s) const {
    return hp(static_cast<double>(w) - hp(to_fp8(hp(static_cast<double>(w) / s), values) * s));
  }
  float of_tensor(const std::vector<float>& w, const std::vector<float>& candidates) const {
    float best = -1.0f, least = INFINITY;
    for (const float s : candidates) {
      double sum = 0.0;
      for (const float x : w) sum += std::pow(static_cast<double>(residual(hp(x), s)), 2);
      if (hp(std::sqrt(sum)) <= least) least = hp(std::sqrt(sum)), best = s;
    }
    return best;
  }
  float of_channel(const float* w, std::int64_t n, float reference, const std::vector<float>& multipliers) const {
    float best = -1.0f, least = INFINITY;
    for (const float m : multipliers) {
      double sum = 0.0;
      for (std::int64_t i = 0; i < n; ++i)
        sum += hp(std::pow(static_cast<double>(residual(hp(w[i]), reference * m)), 2));
      if (hp(sum) < least) least = hp(sum), best = m;
    }
    return best * reference;
  }
};

std::vector<float> weights(std::int64_t n, float size, unsigned seed) {
  std::mt19937 random(seed);
  std::student_t_distribution<float> heavy(3.0f);
  std::vector<float> w(static_cast<std::size_t>(n));
  for (float& x : w) x = size * heavy(random);
  return w;
}

std::vector<float> powers(int low, int high) {
  std::vector<float> result;
  for (int e = low; e <= high; ++e) result.push_back(std::ldexp(1.0f, e));
  return result;
}

const Dialect kDialects[] = {Dialect::gaudi2, Dialect::gaudi3};
const FloatType kTypes[] = {FloatType::BF16, FloatType::F16, FloatType::F32};

TEST(OptScale, PerTensorIsTheCandidateOfLeastErrorTheLastOfEquals) {
  for (const float size : {0.003f, 0.02f, 1.0f, 40.0f}) {
    const auto w = weights(3 * 1500, size, 3);
    for (const Dialect dialect : kDialects)
      for (const FloatType hp : kTypes) {
        const Definition definition{{dialect, Format::E4M3, hp}};
        const auto hw = opt_scale_inv(w.data(), 3, 1500, scale_method_from_name("maxabs_hw_opt_weight").weight,
                                      definition.target, "w");
        const auto pow2 = opt_scale_inv(w.data(), 3, 1500, scale_method_from_name("maxabs_pow2_opt_weight").weight,
                                        definition.target, "w");
        ASSERT_EQ(hw.size(), 1);
        const std::vector<float> set =
            dialect == Dialect::gaudi2 ? std::vector<float>{16, 1, 1.0f / 16, 1.0f / 256} : [] {
              auto all = powers(-55, 7);
              std::reverse(all.begin(), all.end());
              return all;
            }();
        EXPECT_EQ(hw[0], definition.of_tensor(w, set)) << size << name_of(dialect) << name_of(hp);
        EXPECT_EQ(pow2[0], definition.of_tensor(w, powers(-10, 9))) << size << name_of(dialect) << name_of(hp);
      }
  }
}

TEST(OptScale, PerChannelIsTheMultipleOfTheReferenceTheFirstOfEquals) {
  constexpr std::int64_t kRows = 6, kCols = 5000;
  std::vector<float> w;
  for (int r = 0; r < kRows; ++r) {
    const auto row = weights(kCols, std::pow(10.0f, static_cast<float>(r - 3)), 11 + static_cast<unsigned>(r));
    w.insert(w.end(), row.begin(), row.end());
  }
  const ScaleMethod method = scale_method_from_name("act_maxabs_hw_weights_pcs_opt_pow2").weight;
  for (const Format format : {Format::E4M3, Format::E5M2})
    for (const Dialect dialect : kDialects)
      for (const FloatType hp : {FloatType::BF16, FloatType::F32}) {
        const Definition definition{{dialect, format, hp}};
        const auto found = opt_scale_inv(w.data(), kRows, kCols, method, definition.target, "w");
        ASSERT_EQ(found.size(), kRows);
        for (std::int64_t r = 0; r < kRows; ++r) {
          const float* row = w.data() + r * kCols;
          float amax = 0.0f;
          for (std::int64_t i = 0; i < kCols; ++i) amax = std::max(amax, std::abs(row[i]));
          const ScaleMethod maxabs{Granularity::channel, ScaleValue::MAXABS, Rounding::POW2, 0.5f};
          const float reference = inc_scale_inv(amax, maxabs, definition.target, "w");
          EXPECT_EQ(found[r], definition.of_channel(row, kCols, reference, powers(-3, 4)))
              << name_of(dialect) << name_of(hp) << r;
        }
      }
}

TEST(OptScale, TiesGoToTheLastPerTensorAndToTheFirstPerChannel) {
  const std::vector<float> w{1.0f, -0.5f, 0.25f, 0.0f};  // exact under every power of two near 1
  ScaleMethod method = scale_method_from_name("maxabs_pow2_opt_weight").weight;
  method.candidates = {0.5f, 1.0f, 2.0f};
  EXPECT_EQ(opt_scale_inv(w.data(), 1, 4, method, {}, "w")[0], 2.0f);
  method.candidates = {2.0f, 1.0f, 0.5f};
  EXPECT_EQ(opt_scale_inv(w.data(), 1, 4, method, {}, "w")[0], 0.5f);
  method = scale_method_from_name("act_maxabs_pow2_weights_pcs_opt_pow2").weight;
  const float reference = 0x1p-7f;                                              // 1 / 224, up to a power of two
  EXPECT_EQ(opt_scale_inv(w.data(), 1, 4, method, {}, "w")[0], reference / 2);  // the multiples 1/8, 1/4 saturate 1.0
  method.candidates = {4.0f, 2.0f, 1.0f};
  EXPECT_EQ(opt_scale_inv(w.data(), 1, 4, method, {}, "w")[0], 4 * reference);
}

TEST(OptScale, ScalesOfZerosAreUsable) {
  const std::vector<float> w(64, 0.0f);
  for (const auto& method : scale_methods()) {
    if (method.weight.value != ScaleValue::OPT) continue;
    for (const FloatType hp : kTypes) {
      const IncTarget target{Dialect::gaudi3, Format::E4M3, hp};
      const auto found = opt_scale_inv(w.data(), 4, 16, method.weight, target, "w");
      EXPECT_EQ(found.size(), method.weight.granularity == Granularity::channel ? 4 : 1);
      for (const float s : found)
        EXPECT_TRUE(s > 0.0f && std::isfinite(inc_scale(s, hp)) && inc_scale(s, hp) > 0.0f) << method.name << s;
    }
  }
  EXPECT_EQ(opt_scale_inv(nullptr, 0, 16, scale_method_from_name("act_maxabs_hw_weights_pcs_opt_pow2").weight, {}, "w")
                .size(),
            0);
}

TEST(OptScale, ErrorIsNotLargerThanThatOfMaxabs) {
  const auto w = weights(4096, 0.02f, 5);
  const IncTarget target{Dialect::gaudi2, Format::E4M3, FloatType::BF16};
  const Definition definition{target};
  const auto error = [&](float s) {
    double sum = 0.0;
    for (const float x : w) sum += std::pow(static_cast<double>(definition.residual(definition.hp(x), s)), 2);
    return sum;
  };
  float amax = 0.0f;
  for (const float x : w) amax = std::max(amax, std::abs(x));
  const float maxabs = inc_scale_inv(amax, scale_method_from_name("maxabs_pow2").weight, target, "w");
  const float best =
      opt_scale_inv(w.data(), 1, 4096, scale_method_from_name("maxabs_pow2_opt_weight").weight, target, "w")[0];
  EXPECT_LE(error(best), error(maxabs) * 1.01);  // within the rounding of errors to bf16
}

TEST(OptScale, ErrorsNameTheWeight) {
  const auto message = [](const std::vector<float>& w, const ScaleMethod& method, FloatType hp = FloatType::BF16) {
    const IncTarget target{Dialect::gaudi3, Format::E4M3, hp};
    return test::error_of<std::invalid_argument>(
        [&] { opt_scale_inv(w.data(), 1, static_cast<std::int64_t>(w.size()), method, target, "fc1.weight"); });
  };
  ScaleMethod method = scale_method_from_name("maxabs_pow2_opt_weight").weight;
  EXPECT_THAT(message({1.0f, std::nanf("")}, method), HasSubstr("fc1.weight: the weight has NaN or infinite values"));
  EXPECT_THAT(message({INFINITY}, method), HasSubstr("fc1.weight: the weight has NaN or infinite values"));
  EXPECT_THAT(message({70000.0f}, method, FloatType::F16),
              HasSubstr("fc1.weight: the weight has values beyond what f16"));
  EXPECT_THAT(message({1.0f}, scale_method_from_name("maxabs_pow2").weight),
              HasSubstr("scale value is MAXABS, allowed: OPT"));
  for (const float bad : {0.0f, -1.0f, INFINITY, std::nanf("")}) {
    method.candidates = {1.0f, bad};
    EXPECT_THAT(message({1.0f}, method), HasSubstr("allowed: finite values > 0"));
  }
}

}  // namespace
}  // namespace fp8::recipes
