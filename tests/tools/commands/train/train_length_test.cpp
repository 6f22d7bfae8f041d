// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <fstream>
#include <functional>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/train/train_options.h"
#include "fp8/tools/commands/work/snapshots.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

/// Epochs of so many steps.
std::function<std::int64_t(double)> epochs_of(std::int64_t steps) {
  return [steps](double epochs) { return static_cast<std::int64_t>(std::ceil(epochs * static_cast<double>(steps))); };
}

TEST(TrainLength, PartsOfStepsAreWhole) {
  TrainOptions o;
  o.epochs = 1.5;
  o.warmup_ratio = 0.1;
  o.eval_each_epoch = o.save_each_epoch = true;
  count_steps(o, epochs_of(3));
  EXPECT_EQ(o.optimizer.steps, 5);
  EXPECT_EQ(o.optimizer.warmup, 1);
  EXPECT_EQ(o.eval_every, 3);
  EXPECT_EQ(o.save_every, 3);
}

TEST(TrainLength, WithoutEpochsTheStepsAreThoseGiven) {
  TrainOptions o;
  o.optimizer.warmup = 7;
  count_steps(o, epochs_of(21));
  EXPECT_EQ(o.optimizer.steps, 1000);
  EXPECT_EQ(o.optimizer.warmup, 7);
  EXPECT_EQ(o.eval_every, 0);
  EXPECT_EQ(o.save_every, 0);
  o.epochs = 1e-6;
  o.optimizer.warmup = 0;
  count_steps(o, epochs_of(21));
  EXPECT_EQ(o.optimizer.steps, 1);
}

TEST(TrainLength, WhatDoesNotFitNamesTheOption) {
  const auto message = [](TrainOptions o) -> std::string {
    return error_of<UsageError>([&] { count_steps(o, epochs_of(10)); });
  };
  TrainOptions o;
  o.epochs = 0.5;
  o.throughput_warmup = 5;
  EXPECT_EQ(message(o), "--throughput-warmup: found 5, allowed: fewer than --steps 5, which --epochs 0.5 come to");
  o.throughput_warmup = 0;
  o.optimizer.warmup = 6;
  EXPECT_EQ(message(o), "--warmup: found 6, allowed: at most --steps 5, which --epochs 0.5 come to");
}

// Learning rates against those of transformers' get_scheduler (5.23) of 10 steps with 4 of warm-up.

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

std::filesystem::path log_of(const test::TempDir& folder, const std::string& text) {
  std::ofstream(folder / "log.jsonl") << text;
  return folder / "log.jsonl";
}

TEST(TrainLogFile, IsReadLineByLineAndALastOneCutShortIsLeftOut) {
  const test::TempDir folder;
  const auto entries = read_log(log_of(folder, "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"loss\": null}\n{\"st"));
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0]["loss"], 2.5);
  EXPECT_TRUE(entries[1]["loss"].is_null());
}

TEST(TrainLogFile, EndsWhereTheCallerHasSeenEnough) {
  const test::TempDir folder;
  const std::string first = "{\"step\": 1, \"loss\": 2}\n";
  std::size_t calls = 0, end = 0;
  for_each_step(log_of(folder, first + "no step\n"), [&](const io::Json&, std::size_t behind) {
    ++calls;
    end = behind;
    return false;
  });
  EXPECT_EQ(calls, 1u);
  EXPECT_EQ(end, first.size());
}

TEST(TrainLogFile, AnythingElseIsRefusedWithFileAndLine) {
  const test::TempDir folder;
  for (const char* line : {"{\"step\": 1}", "[]", "{\"step\": 1.5, \"loss\": 2}", "step"}) {
    const auto path = log_of(folder, std::string("{\"step\": 1, \"loss\": 2}\n") + line + "\n");
    EXPECT_THAT(error_of<io::Error>([&] { read_log(path); }), HasSubstr("log.jsonl, line 2"));
  }
}

}  // namespace
}  // namespace fp8::commands
