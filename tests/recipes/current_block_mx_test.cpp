// SPDX-License-Identifier: Apache-2.0
// Scales made from the tensor (current), its blocks, and blocks of 32 with E8M0, against f64 formulas and every edge;
// then what all recipes answer to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "fp8/recipes/recipes.h"
#include "fp8/runtime/kernels/block_cast.h"
#include "support/throws_with.h"

namespace fp8::recipes {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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
  for (const float max : kMaxima) {
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
  for (const bool power_of_two : {false, true}) {
    for (const float max : {1.0f, 6.0f, 448.0f, 57344.0f}) {
      for (const float amax : {0.0f, kTiny, 0x1p-126f, 1.0f, 0x1p127f, kHuge, kInf, kNaN}) {
        const float scale = current_scale(amax, max, {.power_of_two_scale = power_of_two});
        EXPECT_TRUE(scale > 0.0f && std::isfinite(scale)) << amax;
        EXPECT_TRUE(1.0f / scale > 0.0f && std::isfinite(1.0f / scale)) << amax;
      }
    }
  }
  for (const float bad : {0.0f, -1.0f, kInf, kNaN}) {
    EXPECT_THROW(current_scale(1.0f, bad, {}), std::invalid_argument);
    EXPECT_THROW(current_scale(1.0f, 448.0f, {}, bad), std::invalid_argument);
  }
}

// Whole tensors by their recipe and blocks by the kernels must agree to the bit.
TEST(CurrentScale, TheKernelsBlocksHaveTheSameScale) {
  using kernels::FloatType;
  const std::pair<FloatType, float> types[] = {
      {FloatType::F32, kHuge}, {FloatType::BF16, kBf16Max}, {FloatType::F16, kF16Max}};
  std::mt19937 random(13);
  for (int i = 0; i < 20000; ++i) {
    const float amax = i == 0   ? 0.0f
                       : i == 1 ? kInf
                                : std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0x7FFFFFFFu);
    for (const auto& [type, dtype_max] : types) {
      for (const bool power_of_two : {false, true}) {
        for (const float epsilon : {0.0f, 1e-30f}) {
          const BlockScaling recipe{.power_of_two_scale = power_of_two, .amax_epsilon = epsilon};
          const float ours = block_scale(amax, 448.0f, recipe, dtype_max);
          const float theirs = kernels::block_scale(amax, type, 448.0f, epsilon, power_of_two);
          ASSERT_EQ(std::bit_cast<std::uint32_t>(ours), std::bit_cast<std::uint32_t>(theirs)) << amax;
        }
      }
    }
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
    for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
      for (const std::uint32_t significand : {0u, 1u, 2u, 0x3FFFFFu, 0x400000u, 0x400001u, 0x5FFFFFu, 0x600000u,
                                              0x600001u, 0x700000u, 0x700001u, 0x7FFFFEu, 0x7FFFFFu}) {
        const float amax = std::bit_cast<float>(exponent << 23 | significand);
        ASSERT_EQ(e8m0_from_amax(amax, max), e8m0_by_comparison(amax, max)) << exponent << " " << significand;
      }
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
  for (const float max : kMaxima) {
    for (int i = 0; i < 5000; ++i) {
      const float amax = std::exp2(exponent(random));
      const double scaled = static_cast<double>(amax) / kernels::e8m0_value(e8m0_from_amax(amax, max));
      ASSERT_LE(scaled, max * (1 + 0x1p-23)) << amax;
      ASSERT_GE(scaled * 2, max * (1 - 0x1p-23)) << amax;  // and use its upper half
    }
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
  for (const int block : {0, -128, 8, 96, 2048}) {
    EXPECT_THAT(invalid(BlockScaling{.block = block}),
                AllOf(HasSubstr("block is " + std::to_string(block)), HasSubstr("allowed: 16, 32")));
  }
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

}  // namespace
}  // namespace fp8::recipes
