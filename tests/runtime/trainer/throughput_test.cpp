// SPDX-License-Identifier: Apache-2.0
// Speeds by hand from clock readings. That the trainer reads the clock where it should: trainer_test.
#include <gtest/gtest.h>

#include "fp8/runtime/trainer/metrics.h"

namespace fp8::trainer {
namespace {

/// Given clock readings: 10 steps of 4 samples in 20 s, the first 3 of which took 8 s; 2 s of the rest were for
/// saving.
TEST(Throughput, SpeedMetrics) {
  SpeedInput input{.start = 100, .end = 120, .samples = 40, .steps = 10, .tokens = 4000};
  auto m = speed_metrics("train", input);
  EXPECT_EQ(m["train_runtime"], 20.0);
  EXPECT_EQ(m["train_samples_per_second"], 2.0);
  EXPECT_EQ(m["train_steps_per_second"], 0.5);
  EXPECT_EQ(m["train_tokens_per_second"], 200.0);
  input.start_after_warmup = 108;
  input.warmup_steps = 3;
  input.warmup_samples = 12;
  input.warmup_tokens = 1200;
  input.log_evaluate_save_seconds = 2;
  m = speed_metrics("train", input);
  EXPECT_EQ(m["train_runtime"], 20.0);
  EXPECT_EQ(m["train_samples_per_second"], 2.8);
  EXPECT_EQ(m["train_steps_per_second"], 0.7);
  EXPECT_EQ(m["train_tokens_per_second"], 280.0);
  input.start = 0;
  input.end = 1.0 / 3;
  input.start_after_warmup.reset();
  input.log_evaluate_save_seconds = 0;
  m = speed_metrics("eval", input);
  EXPECT_EQ(m["eval_runtime"], 0.3333);
  EXPECT_EQ(m["eval_steps_per_second"], 30.0);
  input.end = 0;
  EXPECT_EQ(speed_metrics("eval", input).size(), 1u);
  input = {.start = 0, .end = 4, .start_after_warmup = 3.0, .steps = 2, .warmup_steps = 2};
  EXPECT_EQ(speed_metrics("eval", input)["eval_steps_per_second"], 0.5);  // nothing after the warm-up: all of it counts
}

}  // namespace
}  // namespace fp8::trainer
