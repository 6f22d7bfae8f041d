// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "fp8/tools/commands/train/train_options.h"

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
    try {
      count_steps(o, epochs_of(10));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  TrainOptions o;
  o.epochs = 0.5;
  o.throughput_warmup = 5;
  EXPECT_EQ(message(o), "--throughput-warmup: found 5, allowed: fewer than --steps 5, which --epochs 0.5 come to");
  o.throughput_warmup = 0;
  o.optimizer.warmup = 6;
  EXPECT_EQ(message(o), "--warmup: found 6, allowed: at most --steps 5, which --epochs 0.5 come to");
}

}  // namespace
}  // namespace fp8::commands
