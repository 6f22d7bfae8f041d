// SPDX-License-Identifier: Apache-2.0
// Formats by direction, and each dialect's largest value against the bits of the format.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "fp8/recipes/scaling.h"
#include "support/enum_names.h"

namespace fp8::recipes {
namespace {

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
