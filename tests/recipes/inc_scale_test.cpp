// SPDX-License-Identifier: Apache-2.0
// INC's scales against torch's own arithmetic (inc_scale_table.inc, written by make_scale_table.py), against values
// that INC's authors noted from real devices, and at the edges where we differ from INC on purpose.
#include "fp8/recipes/inc_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>

#include "support/throws_with.h"

namespace fp8::recipes {
namespace {

using testing::HasSubstr;

struct LargestRaw {
  FloatType hp;
  float raw;
  int exponent;
};

struct Golden {
  ScaleMethod method;
  IncTarget target;
  float scale_inv[10], scale[10];
};

#include "inc_scale_table.inc"

const ScaleMethod kPow2{Granularity::PTS, ScaleValue::MAXABS, Rounding::POW2, 0.25f};
const ScaleMethod kHw{Granularity::PTS, ScaleValue::MAXABS, Rounding::HW_ALIGNED, 0.25f};
const ScaleMethod kArbitrary{Granularity::PTS, ScaleValue::MAXABS, Rounding::IDENTITY, 0.25f};
const ScaleMethod kPerChannel{Granularity::PCS, ScaleValue::MAXABS, Rounding::POW2, 0.5f};

TEST(RoundTo, Bf16KeepsTheUpperSixteenBitsRoundedToEven) {
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random()) & 0xFF7FFFFFu;  // never infinite or NaN
    float x;
    std::memcpy(&x, &bits, sizeof x);
    const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u;
    float expected;
    std::memcpy(&expected, &rounded, sizeof expected);
    ASSERT_EQ(round_to(x, FloatType::BF16), expected) << std::hexfloat << x;
  }
}

TEST(RoundTo, F16NeighboursAndTies) {
  EXPECT_EQ(round_to(1.0f + 0x1p-11f, FloatType::F16), 1.0f);  // tie to even
  EXPECT_EQ(round_to(1.0f + 3 * 0x1p-11f, FloatType::F16), 1.0f + 0x1p-9f);
  EXPECT_EQ(round_to(0x1p-25f, FloatType::F16), 0.0f);  // half of the smallest subnormal
  EXPECT_EQ(round_to(0x1.8p-25f, FloatType::F16), 0x1p-24f);
  EXPECT_EQ(round_to(65519.0f, FloatType::F16), 65504.0f);
  EXPECT_EQ(round_to(65520.0f, FloatType::F16), std::numeric_limits<float>::infinity());
  EXPECT_EQ(round_to(-65520.0f, FloatType::F16), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(round_to(0.1f, FloatType::F32), 0.1f);
  EXPECT_TRUE(std::isnan(round_to(std::nanf(""), FloatType::F16)));
}

// The next larger value of `hp`, x > 0: one unit of its last place up.
float next_in(float x, FloatType hp) {
  if (hp == FloatType::F32) return std::nextafter(x, INFINITY);
  const int mantissa_bits = hp == FloatType::BF16 ? 7 : 10, min_exponent = hp == FloatType::BF16 ? -126 : -14;
  return x + std::ldexp(1.0f, std::max(std::ilogb(x), min_exponent) - mantissa_bits);
}

TEST(RoundScale, Pow2TurnsOverWhereTorchDoes) {
  int checked = 0;
  for (const LargestRaw& row : kLargestRaw) {
    const IncTarget target{Dialect::gaudi3, Format::E4M3, row.hp};
    const float next = next_in(row.raw, row.hp);
    EXPECT_EQ(round_scale(row.raw, Rounding::POW2, target), std::ldexp(1.0f, row.exponent)) << name_of(row.hp);
    const float after = round_scale(next, Rounding::POW2, target);
    EXPECT_EQ(after, round_to(std::ldexp(1.0f, row.exponent + 1), row.hp))
        << name_of(row.hp) << " " << std::hexfloat << next;
    ++checked;
  }
  EXPECT_GT(checked, 500);
}

TEST(RoundScale, Pow2OfThePublishedExample) {
  // log2 1032 = 10.011, which bf16 holds as 10: the result is below the input.
  EXPECT_EQ(round_scale(1032.0f, Rounding::POW2, {Dialect::gaudi3, Format::E4M3, FloatType::BF16}), 1024.0f);
  EXPECT_EQ(round_scale(1032.0f, Rounding::POW2, {Dialect::gaudi3, Format::E4M3, FloatType::F32}), 2048.0f);
}

TEST(IncScale, EqualsTorchForEveryMethodDialectFormatAndType) {
  int infinite = 0;
  for (const Golden& row : kGolden) {
    for (std::size_t i = 0; i < std::size(kAmax); ++i) {
      const float scale_inv = inc_scale_inv(kAmax[i], row.method, row.target, "w");
      const std::string where = std::string(name_of(row.target.dialect)) + " " + name_of(row.target.format) + " " +
                                name_of(row.target.hp) + " " + name_of(row.method.rounding) + " amax " +
                                std::to_string(kAmax[i]);
      if (std::isinf(row.scale[i])) {  // INC's multiplier overflows f16: the documented floor
        EXPECT_EQ(row.target.hp, FloatType::F16) << where;
        EXPECT_LE(row.scale_inv[i], 0x1p-16f) << where;
        const float floor = row.method.rounding == Rounding::IDENTITY ? 0x1p-16f + 0x1p-24f : 0x1p-15f;
        EXPECT_EQ(scale_inv, row.scale_inv[i] == 0.0f ? 1.0f : floor) << where;
        ++infinite;
        continue;
      }
      EXPECT_EQ(scale_inv, row.scale_inv[i]) << where;
      EXPECT_EQ(inc_scale(scale_inv, row.target.hp), row.scale[i]) << where;
    }
  }
  EXPECT_GT(infinite, 0);
}

TEST(IncScale, HardwareSets) {
  EXPECT_THAT(hw_scale_set(Dialect::gaudi2), testing::ElementsAre(16.0f, 1.0f, 0.0625f, 0.00390625f));
  const std::vector<float> gaudi3 = hw_scale_set(Dialect::gaudi3);
  ASSERT_EQ(gaudi3.size(), 63u);
  for (int i = 0; i < 63; ++i) EXPECT_EQ(gaudi3[i], std::ldexp(1.0f, 7 - i));
  EXPECT_EQ(hw_scale_set(Dialect::ocp), gaudi3);
}

TEST(IncScale, HardwareAlignedIsAlwaysAMemberOfTheSet) {
  for (Dialect dialect : {Dialect::gaudi2, Dialect::gaudi3, Dialect::ocp}) {
    const std::vector<float> set = hw_scale_set(dialect);
    for (FloatType hp : {FloatType::BF16, FloatType::F32}) {
      for (int e = -100; e <= 100; ++e) {
        const float scale_inv = inc_scale_inv(std::ldexp(1.37f, e), kHw, {dialect, Format::E4M3, hp}, "x");
        EXPECT_NE(std::find(set.begin(), set.end(), scale_inv), set.end()) << scale_inv;
      }
    }
  }
}

TEST(IncScale, FixedMethodsIgnoreAmax) {
  const ScaleMethod unit = scale_method_from_name("unit_scale").weight;
  const ScaleMethod single = scale_method_from_name("hw_aligned_single_scale").activation;
  const ScaleMethod dummy{Granularity::PTS, ScaleValue::DUMMY_SCALES, Rounding::IDENTITY, 1.0f};
  for (float amax : {0.0f, 3.0f, std::nanf("")}) {
    EXPECT_EQ(inc_scale_inv(amax, unit, {}, "w"), 1.0f);
    EXPECT_EQ(inc_scale_inv(amax, single, {Dialect::gaudi2, Format::E4M3, FloatType::BF16}, "w"), 16.0f);
    EXPECT_EQ(inc_scale_inv(amax, single, {Dialect::gaudi3, Format::E4M3, FloatType::BF16}, "w"), 128.0f);
    EXPECT_EQ(inc_scale_inv(amax, dummy, {}, "w"), 1.0f);
  }
}

// The documented example of the Gaudi2 code path: input 0.0625, weight 0.00390625, both from the hardware's set.
TEST(IncScale, PublishedScaleFileExample) {
  const NamedScaleMethod& method = scale_method_from_name("maxabs_hw");
  const IncTarget gaudi2{Dialect::gaudi2, Format::E4M3, FloatType::BF16};
  EXPECT_EQ(inc_scale_inv(1.0f, method.activation, gaudi2, "x"), 0.0625f);  // 1 / 60 = 2^-5.9
  EXPECT_EQ(inc_scale_inv(0.1f, method.weight, gaudi2, "w"), 0.00390625f);  // 0.1 / 120 = 2^-10.2
}

// Saturating cast to E4M3 and back, nearest even. Normals only, which is all that the device values below need.
float through_e4m3(float x, float max) {
  x = std::clamp(x, -max, max);
  const float unit = std::ldexp(1.0f, std::max(std::ilogb(x), -6) - 3);
  return std::nearbyint(x / unit) * unit;
}

// What a bf16 Linear with weight 1 returned on a device after calibration on `amax`.
float device_result(float x, float amax, const ScaleMethod& method, Dialect dialect) {
  const IncTarget target{dialect, Format::E4M3, FloatType::BF16};
  const float scale_inv = inc_scale_inv(amax, method, target, "x");
  const float scaled = round_to(round_to(x, FloatType::BF16) * inc_scale(scale_inv, FloatType::BF16), FloatType::BF16);
  return through_e4m3(scaled, fp8_max(Format::E4M3, dialect)) * scale_inv;
}

TEST(IncScale, ReproducesTheDeviceValues) {
  struct Case {
    float x[3], amax;
    ScaleMethod method;
    Dialect dialect;
    float y[3];
  };
  const ScaleMethod unit = scale_method_from_name("unit_scale").activation;
  const Dialect g2 = Dialect::gaudi2, g3 = Dialect::gaudi3;
  const Case cases[] = {
      {{232, 240, 248}, 248, kHw, g2, {224, 240, 256}},
      {{232, 240, 248}, 248, kHw, g3, {224, 240, 256}},
      {{232, 240, 248}, 248, kPow2, g2, {224, 240, 256}},
      {{232, 240, 248}, 248, kPow2, g3, {224, 240, 256}},
      {{232, 240, 248}, 248, unit, g2, {224, 240, 240}},
      {{3720, 3721, 13721}, 13721, unit, g2, {240, 240, 240}},
      {{3720, 3721, 13721}, 13721, kHw, g2, {3584, 3840, 3840}},
      {{3720, 3721, 13721}, 13721, kHw, g3, {3584, 3840, 13312}},
      {{3720, 3721, 13721}, 13721, kPow2, g2, {3584, 3840, 13312}},
      {{3720, 3721, 13721}, 13721, kPow2, g3, {3584, 3840, 13312}},
  };
  for (const Case& c : cases) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(device_result(c.x[i], c.amax, c.method, c.dialect), c.y[i])
          << c.x[i] << " " << name_of(c.dialect) << " " << name_of(c.method.rounding);
    }
  }
}

TEST(IncScale, ZeroAmax) {
  const IncTarget gaudi2{Dialect::gaudi2, Format::E4M3, FloatType::BF16}, gaudi3{};
  for (FloatType hp : {FloatType::BF16, FloatType::F16, FloatType::F32}) {
    EXPECT_EQ(inc_scale_inv(0.0f, kPow2, {Dialect::gaudi3, Format::E4M3, hp}, "x"), 1.0f);       // INC: 0, then NaN
    EXPECT_EQ(inc_scale_inv(0.0f, kArbitrary, {Dialect::gaudi3, Format::E4M3, hp}, "x"), 1.0f);  // INC: 0, then NaN
  }
  EXPECT_EQ(inc_scale_inv(0.0f, kHw, gaudi2, "x"), 0x1p-8f);  // as INC: clamped to the set
  EXPECT_EQ(inc_scale_inv(0.0f, kHw, gaudi3, "x"), 0x1p-55f);
  EXPECT_EQ(inc_scale_inv(0.0f, kPerChannel, gaudi3, "w"), 0x1p-126f);  // as INC: clamped to bf16's smallest normal
  EXPECT_EQ(inc_scale(0x1p-126f, FloatType::BF16), 0x1p126f);
}

TEST(IncScale, ScaleIsAlwaysFiniteAndPositive) {
  for (const ScaleMethod& method : {kPow2, kHw, kArbitrary, kPerChannel}) {
    for (FloatType hp : {FloatType::BF16, FloatType::F16, FloatType::F32}) {
      for (Format format : {Format::E4M3, Format::E5M2}) {
        for (int e = -149; e <= (hp == FloatType::F16 ? 15 : 126); ++e) {
          const float scale_inv = inc_scale_inv(std::ldexp(1.0f, e), method, {Dialect::gaudi3, format, hp}, "x");
          const float scale = inc_scale(scale_inv, hp);
          ASSERT_TRUE(std::isfinite(scale) && scale > 0.0f) << e << " " << name_of(hp) << " " << scale_inv;
          ASSERT_TRUE(std::isfinite(scale_inv) && scale_inv > 0.0f) << e << " " << name_of(hp);
        }
      }
    }
  }
}

TEST(IncScale, PerChannelArrayEqualsTheScalarForm) {
  Eigen::ArrayXf amax(4);
  amax << 0.0f, 0.3f, 7.0f, 1000.0f;
  const Eigen::ArrayXf scale_inv = inc_scale_inv(amax, kPerChannel, {}, "w");
  const Eigen::ArrayXf scale = inc_scale(scale_inv, FloatType::BF16);
  ASSERT_EQ(scale_inv.size(), 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(scale_inv[i], inc_scale_inv(amax[i], kPerChannel, {}, "w"));
    EXPECT_EQ(scale[i], 1.0f / scale_inv[i]);  // powers of two
  }
}

TEST(IncScale, ErrorsNameTheTensor) {
  const IncTarget f16{Dialect::gaudi3, Format::E4M3, FloatType::F16};
  EXPECT_THAT(test::error_of<std::invalid_argument>([] { inc_scale_inv(std::nanf(""), kPow2, {}, "fc1.input"); }),
              HasSubstr("fc1.input: amax is nan"));
  EXPECT_THAT(test::error_of<std::invalid_argument>([] { inc_scale_inv(INFINITY, kHw, {}, "x"); }),
              HasSubstr("x: amax is inf"));
  EXPECT_THAT(test::error_of<std::invalid_argument>([] { inc_scale_inv(-2.0f, kHw, {}, "x"); }),
              HasSubstr("x: amax is -2"));
  EXPECT_THAT(test::error_of<std::invalid_argument>([&] { inc_scale_inv(70000.0f, kHw, f16, "x"); }),
              HasSubstr("f16 (hp_dtype) can hold"));
  EXPECT_THAT(test::error_of<std::invalid_argument>([] { inc_scale_inv(3.4e38f, kHw, {}, "x"); }),
              HasSubstr("bf16 (hp_dtype) can hold"));
  EXPECT_THAT(
      test::error_of<std::invalid_argument>([] { inc_scale_inv(1.0f, {Granularity::PTS, ScaleValue::OPT}, {}, "w"); }),
      HasSubstr("w: scale value OPT is a search over the weight's values"));
  for (float backoff : {0.0f, -1.0f, 1.5f, std::nanf("")}) {
    const ScaleMethod method{Granularity::PTS, ScaleValue::MAXABS, Rounding::POW2, backoff};
    EXPECT_THAT(test::error_of<std::invalid_argument>([&] { inc_scale_inv(1.0f, method, {}, "w"); }),
                HasSubstr("w: backoff is "));
  }
  const ScaleMethod minute{Granularity::PTS, ScaleValue::MAXABS, Rounding::POW2, 1e-30f};
  EXPECT_THAT(test::error_of<std::invalid_argument>([&] { inc_scale_inv(1e30f, minute, {}, "w"); }),
              HasSubstr("overflows"));
  Eigen::ArrayXf amax(2);
  amax << 1.0f, std::nanf("");
  EXPECT_THAT(test::error_of<std::invalid_argument>([&] { inc_scale_inv(amax, kPerChannel, {}, "w"); }),
              HasSubstr("w[1]: amax is nan"));
}

}  // namespace
}  // namespace fp8::recipes
