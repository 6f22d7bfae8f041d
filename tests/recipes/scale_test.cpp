// SPDX-License-Identifier: Apache-2.0
// Our own convention against the same formula in f64 rounded once per step, and its edges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>

#include "fp8/recipes/scaling.h"
#include "support/throws_with.h"

namespace fp8::recipes {
namespace {

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
  for (float max : kMaxima) {
    for (int i = 0; i < 2000; ++i) {
      const float amax = std::exp2(exponent(random));
      const Scale result = scale_of(amax, max);
      EXPECT_EQ(result.scale_inv, quotient(amax, max)) << amax;
      EXPECT_EQ(result.scale, quotient(1.0f, quotient(amax, max))) << amax;
    }
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
  for (float max : kMaxima) {
    for (float amax : {std::numeric_limits<float>::denorm_min(), 1e-44f, 1e-40f, std::numeric_limits<float>::min()}) {
      const Scale result = scale_of(amax, max);
      EXPECT_EQ(result.scale_inv, kMinScaleInv);
      EXPECT_EQ(result.scale, 0x1p126f);
      EXPECT_LE(amax * result.scale, max);
    }
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
  using testing::AllOf, testing::HasSubstr;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  EXPECT_THAT(test::error_of<std::invalid_argument>([&] { scale_inv_from_amax(nan, 448.0f, "layers.3.weight"); }),
              AllOf(HasSubstr("layers.3.weight: amax is nan"), HasSubstr("allowed: a finite value >= 0")));
  EXPECT_THAT(test::error_of<std::invalid_argument>([&] { scale_inv_from_amax(inf, 448.0f, "x"); }),
              HasSubstr("x: amax is inf"));
  EXPECT_THAT(test::error_of<std::invalid_argument>([&] { scale_inv_from_amax(-1.0f, 448.0f, "x"); }),
              HasSubstr("x: amax is -1"));
  EXPECT_THAT(test::error_of<std::invalid_argument>([&] { scale_inv_from_amax(1.0f, 0.0f, "x"); }),
              HasSubstr("x: the format's maximum is 0"));
  EXPECT_THAT(test::error_of<std::invalid_argument>([&] { scale_inv_from_amax(1.0f, nan, "x"); }),
              HasSubstr("maximum is nan"));
}

TEST(Scale, BadScaleInvIsAnErrorByName) {
  using testing::HasSubstr;
  for (float bad : {0.0f, -1.0f, 0x1p-140f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    EXPECT_THAT(test::error_of<std::invalid_argument>([&] { scale_from_scale_inv(bad, "w"); }),
                HasSubstr("w: scale_inv is "))
        << bad;
  }
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
  using testing::HasSubstr;
  Eigen::ArrayXf amax(3);
  amax << 1.0f, 2.0f, std::nanf("");
  EXPECT_THAT(test::error_of<std::invalid_argument>([&] { scale_inv_from_amax(amax, 448.0f, "w"); }),
              HasSubstr("w[2]: amax is nan"));
  Eigen::ArrayXf scale_inv(2);
  scale_inv << 1.0f, 0.0f;
  EXPECT_THAT(test::error_of<std::invalid_argument>([&] { scale_from_scale_inv(scale_inv, "w"); }),
              HasSubstr("w[1]: scale_inv is 0"));
}

}  // namespace
}  // namespace fp8::recipes
