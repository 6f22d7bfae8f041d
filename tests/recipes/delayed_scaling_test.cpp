// SPDX-License-Identifier: Apache-2.0
// Delayed scaling as a value: the documented defaults of the two dialects, their limits, the interval's schedule and
// both scale formulas against f64 and against the vendors' worked numbers.

#include <bit>
#include <cmath>
#include <random>

#include "fp8/recipes/scaling.h"
#include "support/enum_names.h"
#include "support/throws_with.h"

namespace fp8::recipes {
namespace {

constexpr float kMaxima[] = {240.0f, 448.0f, 57344.0f};
const float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
const float kTiny = std::numeric_limits<float>::denorm_min(), kHuge = std::numeric_limits<float>::max();

std::string invalid(const DelayedScaling& recipe) {
  return test::error_of<std::invalid_argument>([&] { validate(recipe); });
}

TEST(DelayedScaling, DefaultIsTheGaudiDialect) {
  EXPECT_EQ(DelayedScaling{}, DelayedScaling::habana());
  const DelayedScaling recipe;
  EXPECT_EQ(recipe.margin, 0);
  EXPECT_EQ(recipe.interval, 1);
  EXPECT_EQ(recipe.fp8_format, RecipeFormat::E5M2);
  EXPECT_EQ(recipe.amax_history_len, 1);
  EXPECT_EQ(recipe.amax_compute_algo, AmaxComputeAlgo::most_recent);
  EXPECT_EQ(recipe.override_linear_precision, (std::array<bool, 3>{false, false, false}));
  EXPECT_TRUE(recipe.reduce_amax);
  EXPECT_TRUE(recipe.power_of_two_scale);
  EXPECT_EQ(recipe.dialect, RecipeDialect::habana);
  EXPECT_FALSE(recipe.stale_row_compat);
}

TEST(DelayedScaling, NvidiaDiffersInFiveFields) {
  const DelayedScaling recipe = DelayedScaling::nvidia();
  EXPECT_EQ(recipe.fp8_format, RecipeFormat::HYBRID);
  EXPECT_EQ(recipe.amax_history_len, 1024);
  EXPECT_EQ(recipe.amax_compute_algo, AmaxComputeAlgo::max);
  EXPECT_FALSE(recipe.power_of_two_scale);
  EXPECT_EQ(recipe.dialect, RecipeDialect::nvidia);
  EXPECT_EQ(recipe.margin, 0);
  EXPECT_EQ(recipe.interval, 1);
  EXPECT_TRUE(recipe.reduce_amax);
  EXPECT_NE(recipe, DelayedScaling::habana());
}

TEST(DelayedScaling, EqualityLooksAtEveryFieldAndNotIntoCallables) {
  const auto changed = [](auto&& change) {
    DelayedScaling recipe;
    change(recipe);
    return recipe;
  };
  EXPECT_NE(changed([](auto& r) { r.margin = 1; }), DelayedScaling{});
  EXPECT_NE(changed([](auto& r) { r.amax_history_len = 2; }), DelayedScaling{});
  EXPECT_NE(changed([](auto& r) { r.override_linear_precision[2] = true; }), DelayedScaling{});
  EXPECT_NE(changed([](auto& r) { r.stale_row_compat = true; }), DelayedScaling{});
  const DelayedScaling callable = changed([](auto& r) {
    r.amax_compute_algo = [](const AmaxRows& history) -> Eigen::ArrayXf { return history.colwise().maxCoeff(); };
  });
  EXPECT_NE(callable, DelayedScaling{});
  EXPECT_NE(callable, DelayedScaling(callable));
}

TEST(DelayedScaling, Names) {
  fp8::test::check_names<AmaxComputeAlgo>();
  fp8::test::check_names<RecipeDialect>();
  EXPECT_STREQ(name_of(AmaxComputeAlgo::most_recent), "most_recent");
  EXPECT_STREQ(name_of(AmaxComputeAlgo::max), "max");
  EXPECT_STREQ(name_of(DelayedScaling::nvidia().amax_compute_algo), "max");
  const DelayedScaling own{
      .amax_compute_algo = [](const AmaxRows& history) -> Eigen::ArrayXf { return history.row(0).transpose(); }};
  EXPECT_STREQ(name_of(own.amax_compute_algo), "a callable");
  EXPECT_FALSE(own.amax_compute_algo == AmaxComputeAlgo::most_recent || own.amax_compute_algo == AmaxComputeAlgo::max);
  EXPECT_STREQ(name_of(RecipeDialect::habana), "habana");
  EXPECT_STREQ(name_of(RecipeDialect::nvidia), "nvidia");
}

TEST(DelayedScaling, PresetsAndLimitsAreValid) {
  validate(DelayedScaling::habana());
  validate(DelayedScaling::nvidia());
  validate({.margin = -64, .interval = 16, .fp8_format = RecipeFormat::HYBRID, .amax_history_len = 65536});
  DelayedScaling recipe = DelayedScaling::nvidia();
  recipe.fp8_format = RecipeFormat::E4M3;
  recipe.override_linear_precision[2] = true;
  validate(recipe);
}

TEST(DelayedScaling, EveryRejectionNamesFieldFoundAndAllowed) {
  EXPECT_EQ(invalid({.margin = 65}), "DelayedScaling: margin is 65, allowed: -64 to 64");
  EXPECT_EQ(invalid({.interval = 0}), "DelayedScaling: interval is 0, allowed: 1 to 1048576");
  EXPECT_EQ(invalid({.amax_history_len = 0}), "DelayedScaling: amax_history_len is 0, allowed: 1 to 65536");
  EXPECT_THAT(invalid({.amax_history_len = 65537}), HasSubstr("amax_history_len is 65537"));
  EXPECT_EQ(invalid({.fp8_format = RecipeFormat::E4M3}),
            "DelayedScaling: fp8_format is E4M3, allowed: E5M2, HYBRID (habana dialect)");
  EXPECT_EQ(invalid({.override_linear_precision = {false, false, true}}),
            "DelayedScaling: override_linear_precision is (false, false, true), allowed: (false, false, false)");

  DelayedScaling recipe = DelayedScaling::nvidia();
  recipe.fp8_format = RecipeFormat::E5M2;
  EXPECT_EQ(invalid(recipe), "DelayedScaling: fp8_format is E5M2, allowed: E4M3, HYBRID (nvidia dialect)");
  recipe = DelayedScaling::nvidia();
  recipe.interval = 2;
  EXPECT_THAT(invalid(recipe), AllOf(HasSubstr("interval is 2"), HasSubstr("allowed: 1 ")));
  recipe = DelayedScaling::nvidia();
  recipe.override_linear_precision[0] = true;
  EXPECT_THAT(invalid(recipe), HasSubstr("(true, false, false)"));
  recipe = DelayedScaling::nvidia();
  recipe.stale_row_compat = true;
  EXPECT_THAT(invalid(recipe), HasSubstr("stale_row_compat is true"));
  EXPECT_EQ(invalid({.amax_compute_algo = AmaxChoice::Callable()}),
            "DelayedScaling: amax_compute_algo is an empty callable, allowed: most_recent, max, a callable");
}

// ---- schedule

std::set<int> steps_where(bool (*question)(const DelayedScaling&, std::int64_t), const DelayedScaling& recipe,
                          int steps) {
  std::set<int> result;
  for (int step = 1; step <= steps; ++step)
    if (question(recipe, step)) result.insert(step);
  return result;
}

TEST(Schedule, DocumentedSteps) {
  const DelayedScaling recipe{.interval = 16};
  EXPECT_EQ(steps_where(measures_amax, recipe, 40), (std::set<int>{1, 17, 33}));
  EXPECT_EQ(steps_where(updates_scale, recipe, 40), (std::set<int>{2, 18, 34}));
  EXPECT_EQ(steps_where(measures_amax, {.interval = 5, .amax_history_len = 3}, 11),
            (std::set<int>{1, 4, 5, 6, 9, 10, 11}));
  EXPECT_EQ(steps_where(measures_amax, {.interval = 3, .amax_history_len = 5}, 4), (std::set<int>{1, 2, 3, 4}));
  EXPECT_EQ(steps_where(measures_amax, {.interval = 2}, 6), (std::set<int>{1, 3, 5}));
  EXPECT_EQ(steps_where(updates_scale, {.interval = 2}, 6), (std::set<int>{2, 4, 6}));
}

// Said in other words: updates come at step 2 and every `interval` steps; what they use was measured in the H steps
// before them (as far as steps exist).
TEST(Schedule, EveryUpdateHasItsHistory) {
  for (const int interval : {1, 2, 3, 5, 16})
    for (const int history : {1, 3, 5, 20}) {
      const DelayedScaling recipe{.interval = interval, .amax_history_len = history};
      std::set<int> updates, measured;
      for (int step = interval == 1 ? 1 : 2; step <= 200; step += interval) updates.insert(step);
      for (const int update : updates)
        for (int back = 1; back <= history && back < update; ++back) measured.insert(update - back);
      EXPECT_EQ(steps_where(updates_scale, recipe, 150), std::set<int>(updates.begin(), updates.upper_bound(150)))
          << interval;
      EXPECT_EQ(steps_where(measures_amax, recipe, 150), std::set<int>(measured.begin(), measured.upper_bound(150)))
          << interval << " " << history;
    }
}

TEST(Schedule, NvidiaAlwaysAndExtremeCounts) {
  const DelayedScaling nvidia = DelayedScaling::nvidia();
  for (std::int64_t step = 1; step < 10; ++step)
    EXPECT_TRUE(measures_amax(nvidia, step) && updates_scale(nvidia, step));
  const DelayedScaling recipe{.interval = 1 << 20};
  EXPECT_FALSE(updates_scale(recipe, std::numeric_limits<std::int64_t>::max()));  // 2^63 - 1 mod 2^20 is not 2
  EXPECT_FALSE(measures_amax(recipe, std::numeric_limits<std::int64_t>::min()));
}

// ---- scales

TEST(NextScale, VendorsWorkedValues) {
  const DelayedScaling recipe = DelayedScaling::habana();
  EXPECT_EQ(next_scale(0.47f, 1.0f, 240.0f, recipe), 256.0f);
  EXPECT_EQ(next_scale(0.47f, 1.0f, 57344.0f, recipe), 65536.0f);
  EXPECT_EQ(next_scale(3.26f, 1.0f, 240.0f, recipe), 64.0f);
  EXPECT_EQ(next_scale(3.26f, 1.0f, 57344.0f, recipe), 16384.0f);
  EXPECT_EQ(next_scale(109000.0f, 1.0f, 240.0f, recipe), 0x1p-9f);
  EXPECT_EQ(next_scale(109000.0f, 1.0f, 57344.0f, recipe), 0.5f);
}

// amax * 2^k in f64 has one correct answer: the largest power of two with amax * scale <= fp8_max (times 2^-margin).
TEST(NextScale, PowerOfTwoIsTheLargestThatFits) {
  std::mt19937 random(7);
  std::uniform_int_distribution<std::uint32_t> bits(1, 0x7F7FFFFF);
  for (const float max : kMaxima)
    for (int i = 0; i < 20000; ++i) {
      const float amax = std::bit_cast<float>(bits(random));
      const double scale = next_scale(amax, 3.0f, max, {});
      int exponent = 0;
      ASSERT_EQ(std::frexp(scale, &exponent), 0.5);
      ASSERT_LE(amax * scale, max) << amax;
      if (scale < 0x1p126) {
        ASSERT_GT(amax * scale * 2, max) << amax;
      }
      const double with_margin = next_scale(amax, 3.0f, max, {.margin = 3});
      if (scale < 0x1p126 && scale > 0x1p-120) {
        ASSERT_EQ(with_margin, scale / 8) << amax;
      }
    }
}

TEST(NextScale, PowerOfTwoBesideTheStep) {
  for (const float max : kMaxima)
    for (int k = -100; k <= 100; ++k) {
      const float amax = std::ldexp(max, k);  // the quotient is exactly 2^-k
      if (!std::isfinite(amax)) continue;
      EXPECT_EQ(next_scale(amax, 1.0f, max, {}), std::ldexp(1.0f, -k));
      EXPECT_EQ(next_scale(std::nextafter(amax, kInf), 1.0f, max, {}), std::ldexp(1.0f, -k - 1));
      EXPECT_EQ(next_scale(std::nextafter(amax, 0.0f), 1.0f, max, {}), std::ldexp(1.0f, -k));
    }
}

TEST(NextScale, RealValuedIsTheRoundedQuotient) {
  DelayedScaling recipe = DelayedScaling::nvidia();
  std::mt19937 random(8);
  std::uniform_real_distribution<float> exponent(-100.0f, 100.0f);
  for (const int margin : {0, 2, -3}) {
    recipe.margin = margin;
    for (const float max : kMaxima)
      for (int i = 0; i < 5000; ++i) {
        const float amax = std::exp2(exponent(random));
        const auto quotient = static_cast<float>(static_cast<double>(max) / amax);
        ASSERT_EQ(next_scale(amax, 1.0f, max, recipe), static_cast<float>(quotient / std::pow(2.0, margin))) << amax;
      }
  }
}

// The five cases of NVIDIA's own test: zero, tiny, normal, infinite, NaN.
TEST(NextScale, NvidiaAmaxCases) {
  const DelayedScaling recipe = DelayedScaling::nvidia();
  for (const float max : {448.0f, 57344.0f}) {
    EXPECT_EQ(next_scale(0.0f, 1.0f, max, recipe), 1.0f);
    EXPECT_EQ(next_scale(0x1p-126f, 1.0f, max, recipe), kHuge);
    EXPECT_EQ(next_scale(kTiny, 1.0f, max, recipe), kHuge);
    EXPECT_EQ(next_scale(1.0f, 1.0f, max, recipe), max);
    EXPECT_EQ(next_scale(kInf, 1.0f, max, recipe), 1.0f);
    EXPECT_EQ(next_scale(kNaN, 1.0f, max, recipe), 1.0f);
  }
}

TEST(NextScale, NothingUsefulKeepsTheOldScale) {
  for (const DelayedScaling& recipe : {DelayedScaling::habana(), DelayedScaling::nvidia()})
    for (const float amax : {0.0f, -0.0f, -1.0f, -kInf, kInf, kNaN, -kNaN})
      EXPECT_EQ(next_scale(amax, 0.125f, 448.0f, recipe), 0.125f) << amax;
}

TEST(NextScale, ResultAndReciprocalAreAlwaysUsable) {
  for (DelayedScaling recipe : {DelayedScaling::habana(), DelayedScaling::nvidia()})
    for (const int margin : {-64, 0, 64}) {
      recipe.margin = margin;
      for (const float max : {6.0f, 240.0f, 57344.0f})
        for (const float amax : {kTiny, 1e-40f, 0x1p-126f, 1e-20f, 1.0f, 1e20f, kHuge}) {
          const float scale = next_scale(amax, 1.0f, max, recipe);
          EXPECT_TRUE(scale > 0.0f && std::isfinite(scale)) << amax << " " << margin;
          EXPECT_TRUE(1.0f / scale > 0.0f && std::isfinite(1.0f / scale)) << amax << " " << margin;
        }
    }
}

TEST(NextScale, BadMaximumIsAnError) {
  for (const float max : {0.0f, -1.0f, kInf, kNaN})
    EXPECT_THROW(next_scale(1.0f, 1.0f, max, {}), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::recipes
