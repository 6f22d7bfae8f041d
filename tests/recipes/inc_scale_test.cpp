// SPDX-License-Identifier: Apache-2.0
// INC's scales against torch's own arithmetic (inc_scale_table.inc, written by make_scale_table.py), against values
// that INC's authors noted from real devices, and at the edges where we differ from INC on purpose.
#include "fp8/recipes/inc_scale.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "fp8/recipes/recipes.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "support/throws_with.h"

namespace fp8::recipes {
namespace {

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

#include "recipes/inc_scale_table.inc"

const ScaleMethod kPow2{Granularity::tensor, ScaleValue::MAXABS, Rounding::POW2, 0.25f};
const ScaleMethod kHw{Granularity::tensor, ScaleValue::MAXABS, Rounding::HW_ALIGNED, 0.25f};
const ScaleMethod kArbitrary{Granularity::tensor, ScaleValue::MAXABS, Rounding::IDENTITY, 0.25f};
const ScaleMethod kPerChannel{Granularity::channel, ScaleValue::MAXABS, Rounding::POW2, 0.5f};

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
  for (const Golden& row : kGolden)
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
    for (FloatType hp : {FloatType::BF16, FloatType::F32})
      for (int e = -100; e <= 100; ++e) {
        const float scale_inv = inc_scale_inv(std::ldexp(1.37f, e), kHw, {dialect, Format::E4M3, hp}, "x");
        EXPECT_NE(std::find(set.begin(), set.end(), scale_inv), set.end()) << scale_inv;
      }
  }
}

TEST(IncScale, FixedMethodsIgnoreAmax) {
  const ScaleMethod unit = scale_method_from_name("unit_scale").weight;
  const ScaleMethod single = scale_method_from_name("hw_aligned_single_scale").activation;
  const ScaleMethod dummy{Granularity::tensor, ScaleValue::DUMMY_SCALES, Rounding::IDENTITY, 1.0f};
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
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(device_result(c.x[i], c.amax, c.method, c.dialect), c.y[i])
          << c.x[i] << " " << name_of(c.dialect) << " " << name_of(c.method.rounding);
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
  for (const ScaleMethod& method : {kPow2, kHw, kArbitrary, kPerChannel})
    for (FloatType hp : {FloatType::BF16, FloatType::F16, FloatType::F32})
      for (Format format : {Format::E4M3, Format::E5M2})
        for (int e = -149; e <= (hp == FloatType::F16 ? 15 : 126); ++e) {
          const float scale_inv = inc_scale_inv(std::ldexp(1.0f, e), method, {Dialect::gaudi3, format, hp}, "x");
          const float scale = inc_scale(scale_inv, hp);
          ASSERT_TRUE(std::isfinite(scale) && scale > 0.0f) << e << " " << name_of(hp) << " " << scale_inv;
          ASSERT_TRUE(std::isfinite(scale_inv) && scale_inv > 0.0f) << e << " " << name_of(hp);
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
  EXPECT_ERROR(std::invalid_argument, inc_scale_inv(std::nanf(""), kPow2, {}, "fc1.input"), "fc1.input: amax is nan");
  EXPECT_ERROR(std::invalid_argument, inc_scale_inv(INFINITY, kHw, {}, "x"), "x: amax is inf");
  EXPECT_ERROR(std::invalid_argument, inc_scale_inv(-2.0f, kHw, {}, "x"), "x: amax is -2");
  EXPECT_ERROR(std::invalid_argument, inc_scale_inv(70000.0f, kHw, f16, "x"), "f16 (hp_dtype) can hold");
  EXPECT_ERROR(std::invalid_argument, inc_scale_inv(3.4e38f, kHw, {}, "x"), "bf16 (hp_dtype) can hold");
  EXPECT_ERROR(std::invalid_argument, inc_scale_inv(1.0f, {Granularity::tensor, ScaleValue::OPT}, {}, "w"),
               "w: scale value OPT is a search over the weight's values");
  for (float backoff : {0.0f, -1.0f, 1.5f, std::nanf("")}) {
    const ScaleMethod method{Granularity::tensor, ScaleValue::MAXABS, Rounding::POW2, backoff};
    EXPECT_ERROR(std::invalid_argument, inc_scale_inv(1.0f, method, {}, "w"), "w: backoff is ");
  }
  const ScaleMethod minute{Granularity::tensor, ScaleValue::MAXABS, Rounding::POW2, 1e-30f};
  EXPECT_ERROR(std::invalid_argument, inc_scale_inv(1e30f, minute, {}, "w"), "overflows");
  Eigen::ArrayXf amax(2);
  amax << 1.0f, std::nanf("");
  EXPECT_ERROR(std::invalid_argument, inc_scale_inv(amax, kPerChannel, {}, "w"), "w[1]: amax is nan");
}

// Numbers from outside: what the vendor's own tests note for a Linear with weight 1 on the devices, all 13 methods
// against their formulas in f64, and scales made at each call.

// A Linear with weight [1, 1] = 1 and input [x, 0], calibrated on `amax`: cast both, multiply, scale back, in bf16.
float linear(const char* method, Dialect dialect, float amax, float x) {
  const NamedScaleMethod& m = scale_method_from_name(method);
  const IncTarget target{dialect, Format::E4M3, FloatType::BF16};
  const float input_inv = inc_scale_inv(amax, m.activation, target, "x"),
              weight_inv = inc_scale_inv(1.0f, m.weight, target, "w");
  const auto through_fp8 = [&](float value, float scale_inv) {
    const float scaled = round_to(value * inc_scale(scale_inv, FloatType::BF16), FloatType::BF16);
    std::uint8_t code = 0;
    kernels::CastArgs args;
    args.x = &scaled;
    args.rows = args.cols = args.row_stride = 1;
    args.codes = &code;
    args.max = fp8_max(target.format, dialect);
    kernels::cast_to_fp8(args);
    return kernels::decode_table(target.format)[code];
  };
  const float product = through_fp8(round_to(x, FloatType::BF16), input_inv) * through_fp8(1.0f, weight_inv);
  return round_to(product * input_inv * weight_inv, FloatType::BF16);
}

struct DeviceRow {
  const char* method;
  Dialect dialect;
  float first[3];   ///< inputs 232, 240, 248, each calibrated on itself
  float second[3];  ///< likewise: 3720, 3721, 13721
};

// Comments of the vendor's tests, measured on Gaudi 2 and 3. The comment for UNIT_SCALE on Gaudi 3 says 240 where the
// format ends at 448: those three are ours (x > 240 is not saturated there).
const DeviceRow kDevice[] = {
    {"maxabs_hw", Dialect::gaudi2, {224, 240, 256}, {3584, 3840, 3840}},
    {"maxabs_hw", Dialect::gaudi3, {224, 240, 256}, {3584, 3840, 13312}},
    {"maxabs_pow2", Dialect::gaudi2, {224, 240, 256}, {3584, 3840, 13312}},
    {"maxabs_pow2", Dialect::gaudi3, {224, 240, 256}, {3584, 3840, 13312}},
    {"unit_scale", Dialect::gaudi2, {224, 240, 240}, {240, 240, 240}},
    {"unit_scale", Dialect::gaudi3, {224, 240, 256}, {448, 448, 448}},
};

TEST(DeviceGoldenValues, OfTheVendorsTests) {
  const float first[] = {232, 240, 248}, second[] = {3720, 3721, 13721};
  for (const DeviceRow& row : kDevice)
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(linear(row.method, row.dialect, first[i], first[i]), row.first[i])
          << row.method << name_of(row.dialect) << i;
      EXPECT_EQ(linear(row.method, row.dialect, second[i], second[i]), row.second[i])
          << row.method << name_of(row.dialect) << i;
    }
}

// The formulas of the table of methods, in f64. Amaxes are far from the points where bf16's log2 turns over.
double formula(const std::string& value, double amax, bool channel, double max, double backoff, Dialect dialect,
               FloatType hp) {
  const double full = max * backoff;
  double raw = round_to(static_cast<float>(round_to(static_cast<float>(amax), hp) / static_cast<float>(full)), hp);
  if (channel) raw = std::max(raw, std::ldexp(1.0, -126));
  if (value == "any") return raw;
  const double exponent = std::ceil(std::log2(raw));
  if (value == "pow2") return std::exp2(exponent);
  if (dialect == Dialect::gaudi2) return std::exp2(std::clamp(std::ceil(exponent / 4) * 4, -8.0, 4.0));
  return std::exp2(std::clamp(exponent, -55.0, 7.0));
}

struct MethodRow {
  const char *name, *weight, *activation;  ///< "1", "set", "any", "pow2", "hw", "channel" (pow2), "opt"
};

const MethodRow kMethods[] = {
    {"unit_scale", "1", "1"},
    {"hw_aligned_single_scale", "set", "set"},
    {"maxabs_hw", "hw", "hw"},
    {"maxabs_pow2", "pow2", "pow2"},
    {"maxabs_arbitrary", "any", "any"},
    {"maxabs_hw_opt_weight", "opt", "hw"},
    {"maxabs_pow2_opt_weight", "opt", "pow2"},
    {"act_maxabs_hw_weights_pcs_maxabs_pow2", "channel", "hw"},
    {"act_maxabs_pow2_weights_pcs_maxabs_pow2", "channel", "pow2"},
    {"act_maxabs_hw_weights_pcs_opt_pow2", "opt", "hw"},
    {"act_maxabs_pow2_weights_pcs_opt_pow2", "opt", "pow2"},
    {"act_maxabs_pcs_pow2_weight_maxabs_pts_pow2_hw", "hw", "token"},
    {"maxabs_pcs_pow2", "channel", "token"},
};

double expected(const std::string& what, double amax, double backoff, const IncTarget& t) {
  const double max = t.dialect == Dialect::gaudi2 ? 240.0 : 448.0;
  if (what == "1") return 1.0;
  if (what == "set") return t.dialect == Dialect::gaudi2 ? 16.0 : 128.0;
  const bool channel = what == "channel" || what == "token";
  return formula(channel ? "pow2" : what, amax, channel, max, backoff, t.dialect, t.hp);
}

TEST(AllMethods, WeightsAndActivationsAreTheirFormulas) {
  ASSERT_EQ(std::size(kMethods), scale_methods().size());
  for (const MethodRow& row : kMethods) {
    const NamedScaleMethod& method = scale_method_from_name(row.name);
    for (const Dialect dialect : {Dialect::gaudi2, Dialect::gaudi3})
      for (const FloatType hp : {FloatType::BF16, FloatType::F32}) {
        const IncTarget target{dialect, Format::E4M3, hp};
        for (const float amax : {1e-6f, 0.011f, 0.7f, 3.3f, 95.0f, 5000.0f, 1.4e6f}) {
          if (std::string(row.weight) != "opt") {
            EXPECT_EQ(inc_scale_inv(amax, method.weight, target, "w"),
                      static_cast<float>(expected(row.weight, amax, 0.5, target)))
                << row.name << amax;
          }
          if (std::string(row.activation) != "token") {
            EXPECT_EQ(inc_scale_inv(amax, method.activation, target, "x"),
                      static_cast<float>(expected(row.activation, amax, 0.25, target)))
                << row.name << amax;
            continue;
          }
          float made = 0.0f;
          inc_dynamic_scale_inv(&amax, 1, method.activation, target, &made);
          EXPECT_EQ(made, static_cast<float>(expected("token", amax, 0.5, target))) << row.name << amax;
        }
        if (std::string(row.weight) == "opt") {
          EXPECT_THROW(inc_scale_inv(1.0f, method.weight, target, "w"), std::invalid_argument);
        }
      }
  }
}

TEST(DynamicScale, BackoffIsAHalfWhateverTheMethodSays) {
  const IncTarget target{Dialect::gaudi3, Format::E4M3, FloatType::F32};
  const float amax[] = {448.0f, 224.0f, 100.0f, 3.0f};
  float made[4];
  for (const float backoff : {0.25f, 0.5f, 1.0f}) {
    inc_dynamic_scale_inv(amax, 4, {Granularity::tensor, ScaleValue::MAXABS, Rounding::IDENTITY, backoff}, target,
                          made);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(made[i], amax[i] / 224.0f);
    inc_dynamic_scale_inv(amax, 4, {Granularity::channel, ScaleValue::MAXABS, Rounding::POW2, backoff}, target, made);
    EXPECT_THAT(made, testing::ElementsAre(2.0f, 1.0f, 0.5f, 0x1p-6f));
  }
}

// Dynamic and static scales differ in nothing but the backoff.
TEST(DynamicScale, EqualsTheStaticFormulaForEveryBf16) {
  for (const Rounding rounding : {Rounding::POW2, Rounding::IDENTITY})
    for (const Granularity granularity : {Granularity::tensor, Granularity::channel}) {
      const ScaleMethod method{granularity, ScaleValue::MAXABS, rounding, 0.5f};
      for (std::uint32_t bits = 0; bits < 0x7F80; ++bits) {
        const float amax = kernels::bf16_to_f32(static_cast<std::uint16_t>(bits));
        float made = 0.0f;
        inc_dynamic_scale_inv(&amax, 1, method, {}, &made);
        ASSERT_EQ(made, inc_scale_inv(amax, method, {}, "x")) << std::hexfloat << amax;
      }
    }
}

TEST(DynamicScale, ZerosAreUsableAndWhatIsNotFiniteStaysSo) {
  float values[] = {0.0f, std::nanf(""), INFINITY, 0x1p-149f, 1.0f};
  inc_dynamic_scale_inv(values, 5, {Granularity::channel, ScaleValue::MAXABS, Rounding::POW2}, {}, values);  // in place
  EXPECT_EQ(values[0], 0x1p-126f);
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_EQ(values[2], INFINITY);
  EXPECT_EQ(values[3], 0x1p-126f);
  float zero = 0.0f;
  inc_dynamic_scale_inv(&zero, 1, {Granularity::tensor, ScaleValue::MAXABS, Rounding::IDENTITY}, {}, &zero);
  EXPECT_EQ(zero, 1.0f);
  float largest = 0x1.FEp127f;  // 2^128 / 224 = 2^120.19, whose log2 is 120 in bf16
  inc_dynamic_scale_inv(&largest, 1, {Granularity::tensor, ScaleValue::MAXABS, Rounding::POW2}, {}, &largest);
  EXPECT_EQ(largest, 0x1p120f);
}

TEST(DynamicScale, SearchesAreForWeights) {
  float amax = 1.0f;
  EXPECT_ERROR(std::invalid_argument,
               inc_dynamic_scale_inv(&amax, 1, {Granularity::tensor, ScaleValue::OPT}, {}, &amax),
               "scale value OPT is for weights");
}

}  // namespace
}  // namespace fp8::recipes
