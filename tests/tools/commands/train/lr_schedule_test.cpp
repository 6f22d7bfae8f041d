// SPDX-License-Identifier: Apache-2.0
// Learning rates against those of transformers' get_scheduler (5.23) of 10 steps with 4 of warm-up.
#include <gtest/gtest.h>

#include <vector>

#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {
namespace {

using Schedule = OptimizerSettings::Schedule;

void expect_factors(const OptimizerSettings& settings, const std::vector<double>& expected) {
  const auto factor = lr_factor(settings);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(factor(static_cast<std::int64_t>(i)), expected[i], 1e-15) << i;
}

TEST(LrSchedule, AsTransformersHasThem) {
  OptimizerSettings s{.lr = 1, .schedule = Schedule::linear, .warmup = 4, .warmup_from = 0, .steps = 10};
  expect_factors(s, {0.0, 0.25, 0.5, 0.75, 1.0, 0.8333333333333334, 0.6666666666666666, 0.5, 0.3333333333333333,
                     0.16666666666666666});
  s.schedule = Schedule::cosine;
  expect_factors(s,
                 {0.0, 0.25, 0.5, 0.75, 1.0, 0.9330127018922194, 0.75, 0.5, 0.2500000000000001, 0.06698729810778065});
  s.min_lr = 0.25;
  expect_factors(
      s, {0.0, 0.25, 0.5, 0.75, 1.0, 0.9497595264191645, 0.8125, 0.625, 0.4375000000000001, 0.3002404735808355});
  s.schedule = Schedule::constant;
  expect_factors(s, {0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0});
}

TEST(LrSchedule, TheRiseBeginsAboveZeroUnlessToldOtherwise) {
  const OptimizerSettings s{.lr = 2, .min_lr = 0.5, .warmup = 2, .steps = 4};
  expect_factors(s, {0.5, 1.0, 1.0, 0.25 + 0.75 * 0.5, 0.25, 0.25});
}

TEST(LrSchedule, OfNoStepsOrNoRate) {
  expect_factors({.lr = 0, .schedule = Schedule::linear, .steps = 2}, {1.0, 0.5, 0.0});
  expect_factors({.lr = 1, .schedule = Schedule::linear, .warmup = 2, .steps = 2}, {0.5, 1.0, 0.0});
}

}  // namespace
}  // namespace fp8::commands
