// SPDX-License-Identifier: Apache-2.0
// Scales made from the tensor (current), its blocks, and blocks of 32 with E8M0, against f64 formulas and every edge;
// then what all recipes answer to.

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "fp8/recipes/recipes.h"
#include "fp8/runtime/kernels/cast.h"
#include "support/throws_with.h"

namespace fp8::recipes {
namespace {

constexpr float kMaxima[] = {6.0f, 240.0f, 448.0f, 57344.0f};
constexpr float kF16Max = 65504.0f, kBf16Max = 0x1.FEp127f;
const float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
const float kTiny = std::numeric_limits<float>::denorm_min(), kHuge = std::numeric_limits<float>::max();

std::string invalid(const Recipe& recipe) {
  return test::error_of<std::invalid_argument>([&] { validate(recipe); });
}

TEST(CurrentScale, IsTheRoundedQuotientOrThePowerOfTwoBelow) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> exponent(-100.0f, 100.0f);
  for (const float max : kMaxima)
    for (int i = 0; i < 5000; ++i) {
      const float amax = std::exp2(exponent(random));
      const auto quotient = static_cast<float>(static_cast<double>(max) / amax);
      ASSERT_EQ(current_scale(amax, max, {}), quotient) << amax;
      const auto power = static_cast<float>(std::pow(2.0, std::floor(std::log2(static_cast<double>(quotient)))));
      ASSERT_EQ(current_scale(amax, max, {.power_of_two_scale = true}), power) << amax;
      ASSERT_EQ(block_scale(amax, max, {}), power) << amax;
      ASSERT_EQ(block_scale(amax, max, {.power_of_two_scale = false}), quotient) << amax;
    }
}

TEST(CurrentScale, EdgesOfAmax) {
  for (const bool power_of_two : {false, true}) {
    const CurrentScaling recipe{.power_of_two_scale = power_of_two};
    for (const float amax : {0.0f, -0.0f, -3.0f, kInf, kNaN})
      EXPECT_EQ(current_scale(amax, 448.0f, recipe), 1.0f) << amax;
    for (const float amax : {kTiny, 0x1p-140f, 0x1p-126f}) {  // 448 / amax is above FLT_MAX
      for (const float dtype_max : {kHuge, kBf16Max, kF16Max}) {
        const float expected = !power_of_two ? dtype_max : dtype_max == kF16Max ? 0x1p15f : 0x1p127f;
        EXPECT_EQ(current_scale(amax, 448.0f, recipe, dtype_max), expected) << amax;
      }
    }
  }
  EXPECT_EQ(current_scale(0x1p-119f, 448.0f, {}, kF16Max),
            0x1.Cp127f);  // 448 * 2^119 fits f32, so f16's maximum has no say
  EXPECT_EQ(current_scale(448.0f, 448.0f, {.power_of_two_scale = true}), 1.0f);
  EXPECT_EQ(current_scale(std::nextafter(448.0f, 500.0f), 448.0f, {.power_of_two_scale = true}), 0.5f);
}

TEST(CurrentScale, EpsilonIsALowerBoundOfAmax) {
  const CurrentScaling recipe{.amax_epsilon = 7.0f};
  EXPECT_EQ(current_scale(0.0f, 448.0f, recipe), 64.0f);
  EXPECT_EQ(current_scale(3.0f, 448.0f, recipe), 64.0f);
  EXPECT_EQ(current_scale(14.0f, 448.0f, recipe), 32.0f);
  EXPECT_EQ(current_scale(kNaN, 448.0f, recipe), 1.0f);
  EXPECT_EQ(block_scale(0.0f, 448.0f, {.amax_epsilon = 7.0f}), 64.0f);
}

TEST(CurrentScale, ResultAndReciprocalAreAlwaysUsable) {
  for (const bool power_of_two : {false, true})
    for (const float max : {1.0f, 6.0f, 448.0f, 57344.0f})
      for (const float amax : {0.0f, kTiny, 0x1p-126f, 1.0f, 0x1p127f, kHuge, kInf, kNaN}) {
        const float scale = current_scale(amax, max, {.power_of_two_scale = power_of_two});
        EXPECT_TRUE(scale > 0.0f && std::isfinite(scale)) << amax;
        EXPECT_TRUE(1.0f / scale > 0.0f && std::isfinite(1.0f / scale)) << amax;
      }
  for (const float bad : {0.0f, -1.0f, kInf, kNaN}) {
    EXPECT_THROW(current_scale(1.0f, bad, {}), std::invalid_argument);
    EXPECT_THROW(current_scale(1.0f, 448.0f, {}, bad), std::invalid_argument);
  }
}

// The recipes say what the scale of a block is; the kernels compute it per block on their own. Both must agree to the
// bit: for every exponent with a few significands, for random bits, and for what is no number.
TEST(CurrentScale, TheKernelsBlocksHaveTheSameScale) {
  using kernels::FloatType;
  const std::pair<FloatType, float> types[] = {
      {FloatType::F32, kHuge}, {FloatType::BF16, kBf16Max}, {FloatType::F16, kF16Max}};
  std::vector<float> amaxes = {0.0f, kInf, kNaN};
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const std::uint32_t significand :
         {0u, 1u, 0x12345u, 0x400000u, 0x400001u, 0x5FFFFFu, 0x600000u, 0x600001u, 0x7FFFFFu})
      amaxes.push_back(std::bit_cast<float>(exponent << 23 | significand));
  }
  std::mt19937 random(13);
  for (int i = 0; i < 20000; ++i)
    amaxes.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0x7FFFFFFFu));
  for (const float amax : amaxes)
    for (const float max : {240.0f, 448.0f, 57344.0f})
      for (const auto& [type, dtype_max] : types)
        for (const bool power_of_two : {false, true})
          for (const float epsilon : {0.0f, 1e-30f, 1e-4f}) {
            const BlockScaling recipe{.power_of_two_scale = power_of_two, .amax_epsilon = epsilon};
            const float ours = block_scale(amax, max, recipe, dtype_max);
            const float theirs = kernels::block_scale(amax, type, max, epsilon, power_of_two);
            ASSERT_EQ(std::bit_cast<std::uint32_t>(ours), std::bit_cast<std::uint32_t>(theirs)) << amax;
          }
}

// The smallest power of two that is not below v, by comparing in f64.
int e8m0_by_comparison(float amax, float fp8_max) {
  const auto reciprocal = static_cast<float>(1.0 / static_cast<double>(fp8_max));
  const double v = static_cast<float>(static_cast<double>(amax) * static_cast<double>(reciprocal));
  if (std::isnan(v)) return 0xFF;
  if (std::isinf(v)) return 0xFE;
  int code = 0;
  while (code < 0xFE && std::ldexp(1.0, code - 127) < v) ++code;
  return code;
}

TEST(E8M0, EveryExponentAndTheEdgesOfSignificands) {
  for (const float max : kMaxima) {
    for (std::uint32_t exponent = 0; exponent < 256; ++exponent)
      for (const std::uint32_t significand : {0u, 1u, 2u, 0x3FFFFFu, 0x400000u, 0x400001u, 0x5FFFFFu, 0x600000u,
                                              0x600001u, 0x700000u, 0x700001u, 0x7FFFFEu, 0x7FFFFFu}) {
        const float amax = std::bit_cast<float>(exponent << 23 | significand);
        ASSERT_EQ(e8m0_from_amax(amax, max), e8m0_by_comparison(amax, max)) << exponent << " " << significand;
      }
    std::mt19937 random(9);
    for (int i = 0; i < 20000; ++i) {
      const float amax = std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0x7FFFFFFFu);
      ASSERT_EQ(e8m0_from_amax(amax, max), e8m0_by_comparison(amax, max)) << amax;
    }
  }
}

// fp8_max 1 shows the rounding rule alone.
TEST(E8M0, SpecialValues) {
  EXPECT_EQ(e8m0_from_amax(kNaN, 448.0f), 0xFF);
  EXPECT_EQ(e8m0_from_amax(kInf, 448.0f), 0xFE);
  EXPECT_EQ(e8m0_from_amax(0.0f, 448.0f), 0x00);
  EXPECT_EQ(e8m0_from_amax(kTiny, 448.0f), 0x00);
  EXPECT_EQ(e8m0_from_amax(448.0f, 448.0f), 127);
  EXPECT_EQ(e8m0_from_amax(449.0f, 448.0f), 128);
  EXPECT_EQ(e8m0_from_amax(0x1p-127f, 1.0f), 0);
  EXPECT_EQ(e8m0_from_amax(std::nextafter(0x1p-127f, 1.0f), 1.0f), 1);
  EXPECT_EQ(e8m0_from_amax(0x1p-126f, 1.0f), 1);
  EXPECT_EQ(e8m0_from_amax(0x1p127f, 1.0f), 0xFE);
  EXPECT_EQ(e8m0_from_amax(kHuge, 1.0f), 0xFE);
}

TEST(E8M0, CodesAndTheirScales) {
  for (int code = 0; code < 0xFF; ++code) {
    const float scale_inv = kernels::e8m0_value(static_cast<std::uint8_t>(code));
    EXPECT_EQ(static_cast<double>(scale_inv), std::pow(2.0, code - 127));
    if (code >= 1) {  // a power of two is its own, rounded up
      EXPECT_EQ(e8m0_from_amax(scale_inv, 1.0f), code);
    }
  }
  EXPECT_TRUE(std::isnan(kernels::e8m0_value(0xFF)));
}

TEST(E8M0, BlocksFitTheirFormat) {
  std::mt19937 random(11);
  std::uniform_real_distribution<float> exponent(-100.0f, 100.0f);
  for (const float max : kMaxima)
    for (int i = 0; i < 5000; ++i) {
      const float amax = std::exp2(exponent(random));
      const double scaled = static_cast<double>(amax) / kernels::e8m0_value(e8m0_from_amax(amax, max));
      ASSERT_LE(scaled, max * (1 + 0x1p-23)) << amax;
      ASSERT_GE(scaled * 2, max * (1 - 0x1p-23)) << amax;  // and use its upper half
    }
}

TEST(Recipe, DefaultsNamesAndFormats) {
  EXPECT_EQ(std::get<DelayedScaling>(Recipe()), DelayedScaling::habana());
  const Recipe recipes[] = {DelayedScaling::nvidia(), CurrentScaling{}, BlockScaling{}, MXFP8{}};
  const char* const names[] = {"delayed", "current", "block", "mxfp8"};
  const RecipeFormat formats[] = {RecipeFormat::HYBRID, RecipeFormat::HYBRID, RecipeFormat::E4M3, RecipeFormat::E4M3};
  for (int i = 0; i < 4; ++i) {
    EXPECT_STREQ(name_of(recipes[i]), names[i]);
    EXPECT_EQ(format_of(recipes[i]), formats[i]);
    EXPECT_EQ(invalid(recipes[i]), "");
  }
}

TEST(Recipe, ScalingIsWhatTheFieldsSay) {
  DelayedScaling exact = DelayedScaling::nvidia();
  exact.override_linear_precision = {false, false, true};
  const RecipeScaling habana = scaling_of(Recipe(DelayedScaling{.fp8_format = RecipeFormat::HYBRID})),
                      nvidia = scaling_of(Recipe(exact)), current = scaling_of(Recipe(CurrentScaling{})),
                      block = scaling_of(Recipe(BlockScaling{.block = 64, .amax_epsilon = 0.5f})),
                      mx = scaling_of(Recipe(MXFP8{}));
  EXPECT_TRUE(habana.keeps_history() && habana.stochastic_gradients && habana.bf16_bias && !habana.exact_weight_grad);
  EXPECT_TRUE(nvidia.keeps_history() && !nvidia.stochastic_gradients && !nvidia.bf16_bias && nvidia.exact_weight_grad);
  EXPECT_TRUE(habana.weight.power_of_two && !nvidia.weight.power_of_two);
  EXPECT_FALSE(scaling_of(Recipe(DelayedScaling::habana())).stochastic_gradients);
  EXPECT_TRUE(current.input.rule == ScalingRule::tensor && !current.keeps_history());
  EXPECT_TRUE(habana.one_scale() && current.one_scale() && !block.one_scale() && !mx.one_scale());
  for (const Role role : {Role::input, Role::weight, Role::grad}) {
    EXPECT_EQ(block.of(role).block_rows, role == Role::weight ? 64 : 1);
    EXPECT_EQ(block.of(role).block_cols, 64);
    EXPECT_TRUE(block.of(role).power_of_two && block.of(role).amax_epsilon == 0.5f);
    EXPECT_TRUE(mx.of(role).rule == ScalingRule::mx && mx.of(role).block_rows == 1 && mx.of(role).block_cols == 32);
    EXPECT_EQ(habana.format(role), role == Role::grad ? Format::E5M2 : Format::E4M3);
  }
  EXPECT_EQ(block.row_alignment, 16);
  EXPECT_EQ(mx.row_alignment, 32);
}

TEST(Recipe, RejectionsNameFieldFoundAndAllowed) {
  EXPECT_EQ(invalid(CurrentScaling{.fp8_format = RecipeFormat::E5M2}),
            "CurrentScaling: fp8_format is E5M2, allowed: E4M3, HYBRID");
  EXPECT_EQ(invalid(CurrentScaling{.amax_epsilon = -1.0f}),
            "CurrentScaling: amax_epsilon is -1, allowed: a finite value >= 0");
  EXPECT_THAT(invalid(CurrentScaling{.amax_epsilon = kNaN}), HasSubstr("amax_epsilon is nan"));
  EXPECT_THAT(invalid(BlockScaling{.amax_epsilon = kInf}), HasSubstr("BlockScaling: amax_epsilon is inf"));
  EXPECT_EQ(invalid(BlockScaling{.x_block_scaling_dim = 3}),
            "BlockScaling: x_block_scaling_dim is 3, allowed: 1 (1 x block), 2 (block x block)");
  EXPECT_EQ(invalid(BlockScaling{.x_block_scaling_dim = 2}),
            "BlockScaling: w_block_scaling_dim is 2, allowed: 1 where x_block_scaling_dim is 2");
  EXPECT_EQ(invalid(BlockScaling{.grad_block_scaling_dim = 2}),
            "BlockScaling: grad_block_scaling_dim is 2, allowed: 1 where w_block_scaling_dim is 2");
  EXPECT_THAT(invalid(BlockScaling{.x_block_scaling_dim = 2, .w_block_scaling_dim = 1, .grad_block_scaling_dim = 2}),
              HasSubstr("1 where x_block_scaling_dim is 2"));
  EXPECT_EQ(invalid(BlockScaling{.x_block_scaling_dim = 2, .w_block_scaling_dim = 1}), "");
  for (const int block : {0, -128, 8, 96, 2048})
    EXPECT_THAT(invalid(BlockScaling{.block = block}),
                AllOf(HasSubstr("block is " + std::to_string(block)), HasSubstr("allowed: 16, 32")));
  EXPECT_EQ(invalid(MXFP8{.block = 16}), "MXFP8: block is 16, allowed: 32");
  EXPECT_EQ(invalid(MXFP8{.fp8_format = RecipeFormat::E5M2}), "MXFP8: fp8_format is E5M2, allowed: E4M3, HYBRID");
  EXPECT_THAT(invalid(DelayedScaling{.margin = 1000}), HasSubstr("DelayedScaling: margin is 1000"));
}

TEST(Recipe, DescriptionsInOneLine) {
  DelayedScaling delayed{.interval = 16, .fp8_format = RecipeFormat::HYBRID, .reduce_amax = false};
  EXPECT_EQ(describe(delayed),
            "delayed (habana), HYBRID, interval 16, history 1, most_recent, power-of-two scales, "
            "amax not reduced over ranks");
  EXPECT_EQ(describe(DelayedScaling::nvidia()), "delayed (nvidia), HYBRID, history 1024, max, f32 scales");
  EXPECT_EQ(describe(CurrentScaling{.amax_epsilon = 0.5f}), "current, HYBRID, f32 scales, amax at least 0.5");
  EXPECT_EQ(describe(BlockScaling{}), "block, E4M3, x 1x128, w 128x128, grad 1x128, power-of-two scales");
  EXPECT_EQ(describe(MXFP8{}), "mxfp8, E4M3, blocks of 32, E8M0 scales");
}

// NVFP4 against a search for the nearest value in f64 and the published steps of its scales.

// s ee m: (1 + m / 2) * 2^(e - 1), m / 2 for e = 0.
double e2m1_value(int code) {
  const int e = (code >> 1) & 3, m = code & 1;
  const double magnitude = e == 0 ? m / 2.0 : (1 + m / 2.0) * std::pow(2.0, e - 1);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// The same for E4M3, code 0..0x7E.
double e4m3_value(int code) {
  const int e = code >> 3, m = code & 7;
  return e == 0 ? m / 8.0 * std::pow(2.0, -6) : (1 + m / 8.0) * std::pow(2.0, e - 7);
}

// The nearest of values 0..last (ascending), ties to the even code.
template <class Value>
int nearest(double x, int last, Value value) {
  int best = 0;
  for (int code = 1; code <= last; ++code) {
    const double here = std::fabs(value(code) - x), there = std::fabs(value(best) - x);
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return best;
}

int nearest_e2m1(float x) { return nearest(std::fabs(x), 7, e2m1_value) | (std::signbit(x) ? 8 : 0); }

TEST(E2M1, ValuesAndRounding) {
  for (int code = 0; code < 16; ++code) EXPECT_EQ(e2m1_to_float(static_cast<std::uint8_t>(code)), e2m1_value(code));
  for (int step = -8000; step <= 8000; ++step) {  // every tie is among them
    const float x = static_cast<float>(step) / 1000.0f, tie = static_cast<float>(step) / 32.0f;
    ASSERT_EQ(e2m1_from_float(x), nearest_e2m1(x)) << x;
    ASSERT_EQ(e2m1_from_float(tie), nearest_e2m1(tie)) << tie;
    ASSERT_EQ(e2m1_from_float(std::nextafter(tie, kInf)), nearest_e2m1(std::nextafter(tie, kInf))) << tie;
  }
  EXPECT_EQ(e2m1_from_float(kInf), 7);
  EXPECT_EQ(e2m1_from_float(-kInf), 15);
  EXPECT_EQ(e2m1_from_float(-0.0f), 8);
  EXPECT_EQ(e2m1_from_float(kNaN), 0);
}

std::vector<float> random_matrix(std::int64_t rows, std::int64_t cols, float size) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  for (float& value : x) value = normal(random) * size * std::exp2(normal(random) * 3.0f);
  return x;
}

// Every element by itself, from its block's amax: f32 steps as published, nearest values by search.
void expect_published_rule(std::int64_t rows, std::int64_t cols, bool square, float size) {
  const std::vector<float> x = random_matrix(rows, cols, size);
  const NVFP4Matrix q = nvfp4_quantize(x.data(), rows, cols, square);
  const std::vector<float> y = nvfp4_dequantize(q);
  float amax = 0.0f;
  for (const float value : x) amax = std::max(amax, std::fabs(value));
  const auto f32 = [](double value) { return static_cast<float>(value); };
  const float s_enc = f32(448.0 * 6.0 / amax), inverse = f32(1.0 / s_enc);
  ASSERT_EQ(q.scale_inv, inverse);
  const std::int64_t height = square ? 16 : 1, across = (cols + 15) / 16;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      float block = 0.0f;
      for (std::int64_t i = r / height * height; i < std::min(rows, r / height * height + height); ++i)
        for (std::int64_t j = c / 16 * 16; j < std::min(cols, c / 16 * 16 + 16); ++j)
          block = std::max(block, std::fabs(x[i * cols + j]));
      const float wanted = f32(static_cast<double>(f32(block / 6.0)) * s_enc);
      const int scale = nearest(wanted, 0x7E, e4m3_value);
      ASSERT_EQ(q.block_scales[r / height * across + c / 16], scale) << r << " " << c;
      const float m = f32(e4m3_value(scale) * inverse);
      const float scaled = f32(static_cast<double>(x[r * cols + c]) * f32(1.0 / m));
      const std::uint8_t pair = q.codes[r * ((cols + 1) / 2) + c / 2];
      ASSERT_EQ(c % 2 == 0 ? pair & 15 : pair >> 4, nearest_e2m1(scaled)) << r << " " << c;
      ASSERT_EQ(y[r * cols + c], f32(e2m1_value(nearest_e2m1(scaled)) * m));
    }
}

TEST(NVFP4, EqualsThePublishedRule) {
  expect_published_rule(5, 64, false, 1.0f);
  expect_published_rule(33, 47, false, 1e-6f);  // partial blocks, an odd nibble
  expect_published_rule(48, 32, true, 1.0f);
  expect_published_rule(37, 21, true, 1e9f);
  expect_published_rule(1, 1, false, 3.0f);
}

TEST(NVFP4, ValuesOfTheFormatSurvive) {
  std::vector<float> x;
  for (int code = 0; code < 16; ++code) x.push_back(static_cast<float>(e2m1_value(code)));
  EXPECT_EQ(nvfp4_dequantize(nvfp4_quantize(x.data(), 1, 16)), x);
  const NVFP4Matrix q = nvfp4_quantize(x.data(), 1, 16);
  EXPECT_EQ(q.codes[0], 0x10);  // 0, 0.5: the first in the low nibble
  EXPECT_EQ(q.codes[7], 0xFE);  // -4, -6
  EXPECT_EQ(q.block_scales[0], 0x7E);
}

TEST(NVFP4, ZerosNonFiniteAndExtremes) {
  const std::vector<float> zeros(20, 0.0f);
  EXPECT_EQ(nvfp4_dequantize(nvfp4_quantize(zeros.data(), 1, 20)), zeros);
  EXPECT_EQ(nvfp4_quantize(zeros.data(), 1, 20).scale_inv, 1.0f);
  std::vector<float> x(48, 1.0f);
  x[3] = kInf, x[20] = kNaN;
  const std::vector<float> y = nvfp4_dequantize(nvfp4_quantize(x.data(), 1, 48));
  for (int i = 0; i < 32; ++i) EXPECT_TRUE(std::isnan(y[i])) << i;
  for (int i = 32; i < 48; ++i) EXPECT_NEAR(y[i], 1.0f, 1e-6f) << i;
  for (const float size : {std::numeric_limits<float>::max(), 0x1p-110f}) {
    const std::vector<float> same(16, -size);
    for (const float value : nvfp4_dequantize(nvfp4_quantize(same.data(), 1, 16)))
      EXPECT_TRUE(std::isfinite(value) && std::fabs(value + size) <= 0.07f * size) << size << " " << value;
  }
  // From about 2^-117 down s_enc or 1 / m meets FLT_MAX, and values shrink.
  for (const float tiny : {0x1p-126f, 0x1p-140f, std::numeric_limits<float>::denorm_min()}) {
    const float value = nvfp4_dequantize(nvfp4_quantize(&tiny, 1, 1))[0];
    EXPECT_TRUE(value >= 0.0f && value <= 1.2f * tiny) << tiny << " " << value;
  }
}

TEST(NVFP4, SizesAreChecked) {
  EXPECT_TRUE(nvfp4_dequantize(nvfp4_quantize(nullptr, 0, 16)).empty());
  EXPECT_TRUE(nvfp4_dequantize(nvfp4_quantize(nullptr, 3, 0, true)).empty());
  EXPECT_THROW(nvfp4_quantize(nullptr, 1, 1), std::invalid_argument);
  EXPECT_THROW(nvfp4_quantize(nullptr, -1, 1), std::invalid_argument);
  EXPECT_THROW(nvfp4_quantize(nullptr, std::int64_t{1} << 40, std::int64_t{1} << 40), std::invalid_argument);
  const float one = 1.0f;
  NVFP4Matrix q = nvfp4_quantize(&one, 1, 1);
  q.cols = 3;
  EXPECT_THROW(nvfp4_dequantize(q), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::recipes
