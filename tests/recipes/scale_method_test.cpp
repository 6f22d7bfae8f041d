// SPDX-License-Identifier: Apache-2.0
// The 13 spellings, each with the product that Intel Neural Compressor's documentation gives it.
#include "fp8/recipes/scale_method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <stdexcept>

namespace fp8::recipes {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string message_of(auto&& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no exception";
}

std::string product(const ScaleMethod& m) {
  return std::string(name_of(m.granularity)) + " " + name_of(m.value) + " " + name_of(m.rounding) + " " +
         std::to_string(m.backoff).substr(0, 4);
}

struct Row {
  const char *spelling, *weight, *activation;
  bool built;
};

constexpr Row kRows[] = {
    {"unit_scale", "PTS FIXED_VALUE SCALE_UNIT 1.00", "PTS FIXED_VALUE SCALE_UNIT 1.00", true},
    {"hw_aligned_single_scale", "PTS FIXED_VALUE HW_ALIGNED_FIXED 1.00", "PTS FIXED_VALUE HW_ALIGNED_FIXED 1.00", true},
    {"maxabs_hw", "PTS MAXABS HW_ALIGNED 0.50", "PTS MAXABS HW_ALIGNED 0.25", true},
    {"maxabs_pow2", "PTS MAXABS POW2 0.50", "PTS MAXABS POW2 0.25", true},
    {"maxabs_arbitrary", "PTS MAXABS IDENTITY 0.50", "PTS MAXABS IDENTITY 0.25", true},
    {"maxabs_hw_opt_weight", "PTS OPT HW_ALIGNED 0.50", "PTS MAXABS HW_ALIGNED 0.25", false},
    {"maxabs_pow2_opt_weight", "PTS OPT POW2 0.50", "PTS MAXABS POW2 0.25", false},
    {"act_maxabs_hw_weights_pcs_maxabs_pow2", "PCS MAXABS POW2 0.50", "PTS MAXABS HW_ALIGNED 0.25", true},
    {"act_maxabs_pow2_weights_pcs_maxabs_pow2", "PCS MAXABS POW2 0.50", "PTS MAXABS POW2 0.25", true},
    {"act_maxabs_hw_weights_pcs_opt_pow2", "PCS OPT POW2 0.50", "PTS MAXABS HW_ALIGNED 0.25", false},
    {"act_maxabs_pow2_weights_pcs_opt_pow2", "PCS OPT POW2 0.50", "PTS MAXABS POW2 0.25", false},
    {"act_maxabs_pcs_pow2_weight_maxabs_pts_pow2_hw", "PTS MAXABS HW_ALIGNED 0.50", "PCS MAXABS POW2 1.00", false},
    {"maxabs_pcs_pow2", "PCS MAXABS POW2 0.50", "PCS MAXABS POW2 1.00", false},
};

TEST(ScaleMethod, EverySpellingIsItsProduct) {
  EXPECT_EQ(scale_methods().size(), std::size(kRows));
  for (const Row& row : kRows) {
    const NamedScaleMethod& method = scale_method_from_name(row.spelling);
    EXPECT_EQ(product(method.weight), row.weight) << row.spelling;
    EXPECT_EQ(product(method.activation), row.activation) << row.spelling;
    EXPECT_EQ(method.built, row.built) << row.spelling;
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
  const std::string message = message_of([] { scale_method_from_name("maxabs_hist"); });
  EXPECT_THAT(message, HasSubstr("scale method 'maxabs_hist' is unknown, allowed: unit_scale, "));
  for (const Row& row : kRows) EXPECT_THAT(message, HasSubstr(row.spelling));
}

TEST(ScaleMethod, UnbuiltOnesSaySoAndListTheBuilt) {
  for (const Row& row : kRows) {
    const std::string message = message_of([&] { require_built(scale_method_from_name(row.spelling)); });
    if (row.built) {
      EXPECT_EQ(message, "no exception") << row.spelling;
    } else {
      EXPECT_THAT(message, AllOf(HasSubstr(std::string(row.spelling) + "' is not built yet"),
                                 HasSubstr("maxabs_pow2, maxabs_arbitrary"), Not(HasSubstr("opt_pow2, ")),
                                 Not(HasSubstr(", maxabs_pcs_pow2"))));
    }
  }
}

TEST(ScaleMethod, OnlyTheFixedOnesNeedNoMeasurements) {
  for (const NamedScaleMethod& m : scale_methods()) {
    EXPECT_EQ(m.needs_measurements(), m.name != "UNIT_SCALE" && m.name != "HW_ALIGNED_SINGLE_SCALE") << m.name;
  }
}

TEST(ScaleMethod, NamesOfDummyScales) {
  EXPECT_EQ(std::string(name_of(ScaleValue::DUMMY_SCALES)), "DUMMY_SCALES");
}

}  // namespace
}  // namespace fp8::recipes
