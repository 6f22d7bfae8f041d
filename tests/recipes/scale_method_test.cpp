// SPDX-License-Identifier: Apache-2.0
// The 13 spellings, each with the product that Intel Neural Compressor's documentation gives it.
#include "fp8/recipes/scale_method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <stdexcept>
#include <thread>

#include "fp8/recipes/inc_scale.h"
#include "support/enum_names.h"
#include "support/throws_with.h"

namespace fp8::recipes {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string product(const ScaleMethod& m) {
  return std::string(name_of(m.granularity)) + " " + name_of(m.value) + " " + name_of(m.rounding) + " " +
         std::to_string(m.backoff).substr(0, 4);
}

struct Row {
  const char *spelling, *weight, *activation;
  bool dynamic_only = false;
};

constexpr Row kRows[] = {
    {"unit_scale", "PTS FIXED_VALUE SCALE_UNIT 1.00", "PTS FIXED_VALUE SCALE_UNIT 1.00"},
    {"hw_aligned_single_scale", "PTS FIXED_VALUE HW_ALIGNED_FIXED 1.00", "PTS FIXED_VALUE HW_ALIGNED_FIXED 1.00"},
    {"maxabs_hw", "PTS MAXABS HW_ALIGNED 0.50", "PTS MAXABS HW_ALIGNED 0.25"},
    {"maxabs_pow2", "PTS MAXABS POW2 0.50", "PTS MAXABS POW2 0.25"},
    {"maxabs_arbitrary", "PTS MAXABS IDENTITY 0.50", "PTS MAXABS IDENTITY 0.25"},
    {"maxabs_hw_opt_weight", "PTS OPT HW_ALIGNED 0.50", "PTS MAXABS HW_ALIGNED 0.25"},
    {"maxabs_pow2_opt_weight", "PTS OPT POW2 0.50", "PTS MAXABS POW2 0.25"},
    {"act_maxabs_hw_weights_pcs_maxabs_pow2", "PCS MAXABS POW2 0.50", "PTS MAXABS HW_ALIGNED 0.25"},
    {"act_maxabs_pow2_weights_pcs_maxabs_pow2", "PCS MAXABS POW2 0.50", "PTS MAXABS POW2 0.25"},
    {"act_maxabs_hw_weights_pcs_opt_pow2", "PCS OPT POW2 0.50", "PTS MAXABS HW_ALIGNED 0.25"},
    {"act_maxabs_pow2_weights_pcs_opt_pow2", "PCS OPT POW2 0.50", "PTS MAXABS POW2 0.25"},
    {"act_maxabs_pcs_pow2_weight_maxabs_pts_pow2_hw", "PTS MAXABS HW_ALIGNED 0.50", "PCS MAXABS POW2 1.00", true},
    {"maxabs_pcs_pow2", "PCS MAXABS POW2 0.50", "PCS MAXABS POW2 1.00", true},
};

TEST(ScaleMethod, EverySpellingIsItsProduct) {
  EXPECT_EQ(scale_methods().size(), std::size(kRows));
  for (const Row& row : kRows) {
    const NamedScaleMethod& method = scale_method_from_name(row.spelling);
    EXPECT_EQ(product(method.weight), row.weight) << row.spelling;
    EXPECT_EQ(product(method.activation), row.activation) << row.spelling;
    EXPECT_EQ(method.dynamic_only, row.dynamic_only) << row.spelling;
  }
}

TEST(ScaleMethod, ProductsAreDifferent) {
  std::set<std::string> seen;
  for (const NamedScaleMethod& m : scale_methods()) seen.insert(product(m.weight) + "/" + product(m.activation));
  EXPECT_EQ(seen.size(), 13u);
}

TEST(ScaleMethod, AnyCaseIsAccepted) {
  EXPECT_EQ(scale_method_from_name("MAXABS_HW").name, "MAXABS_HW");
  EXPECT_EQ(scale_method_from_name("MaxAbs_Hw").name, "MAXABS_HW");
  EXPECT_EQ(find_scale_method("maxabs"), nullptr);
  EXPECT_EQ(find_scale_method("maxabs_hw "), nullptr);
  EXPECT_EQ(find_scale_method(""), nullptr);
}

TEST(ScaleMethod, UnknownSpellingListsAllThirteen) {
  const std::string message = test::error_of<std::invalid_argument>([] { scale_method_from_name("maxabs_hist"); });
  EXPECT_THAT(message, HasSubstr("scale method 'maxabs_hist' is unknown, allowed: unit_scale, "));
  for (const Row& row : kRows) EXPECT_THAT(message, HasSubstr(row.spelling));
}

TEST(ScaleMethod, KindsOfWeightAndActivationNameTheRow) {
  for (const NamedScaleMethod& row : scale_methods()) {
    NamedScaleMethod other = row;
    other.weight.backoff = 0.125f;
    other.activation.candidates = {2.0f};
    EXPECT_EQ(find_scale_method(other.weight, other.activation), &row) << row.name;
  }
  const ScaleMethod pow2{Granularity::PTS, ScaleValue::MAXABS, Rounding::POW2};
  EXPECT_EQ(find_scale_method(pow2, {Granularity::PTS, ScaleValue::FIXED_VALUE, Rounding::SCALE_UNIT}), nullptr);
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
    EXPECT_THAT(test::error_of<std::invalid_argument>([&] { ScaleMethodRegistration again("MY_METHOD", methods); }),
                HasSubstr("exists already"));
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
  for (const char* name : {"", "a b", "a.b", "MAXABS_HW"}) {
    EXPECT_THAT(test::error_of<std::invalid_argument>([&] { ScaleMethodRegistration bad(name, {}); }),
                HasSubstr("scale method"))
        << name;
  }
  EXPECT_THAT(test::error_of<std::invalid_argument>([] { custom_scale(nullptr); }), HasSubstr("found no function"));
  EXPECT_THAT(test::error_of<std::invalid_argument>(
                  [] { ScaleMethodRegistration bad("X", {.weight = {Granularity::PTS, ScaleValue::CUSTOM}}); }),
              HasSubstr("CUSTOM and a function go together"));
  for (const float wrong : {0.0f, -1.0f, INFINITY, std::nanf(""), 0x1p-130f}) {
    const ScaleMethod method = custom_scale([wrong](float, const IncTarget&) { return wrong; });
    EXPECT_THAT(test::error_of<std::invalid_argument>([&] { inc_scale_inv(1.0f, method, {}, "fc"); }),
                HasSubstr("fc: the scale method of your own"));
  }
}

TEST(ScaleMethodRegistration, ManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t] {
      const std::string name = "THREAD_" + std::to_string(t);
      for (int i = 0; i < 200; ++i) {
        const ScaleMethodRegistration mine(name, {});
        EXPECT_EQ(scale_method_from_name(name).name, name);
      }
      EXPECT_EQ(find_scale_method(name), nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ScaleMethod, OnlyTheFixedOnesNeedNoMeasurements) {
  for (const NamedScaleMethod& m : scale_methods()) {
    EXPECT_EQ(m.needs_measurements(), m.name != "UNIT_SCALE" && m.name != "HW_ALIGNED_SINGLE_SCALE") << m.name;
  }
}

TEST(ScaleMethod, NamesOfItsParts) {
  fp8::test::check_names<Granularity>();
  fp8::test::check_names<ScaleValue>();
  fp8::test::check_names<Rounding>();
  EXPECT_STREQ(name_of(ScaleValue::DUMMY_SCALES), "DUMMY_SCALES");
}

}  // namespace
}  // namespace fp8::recipes
