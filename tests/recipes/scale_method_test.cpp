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

}  // namespace
}  // namespace fp8::recipes
