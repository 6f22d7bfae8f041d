// SPDX-License-Identifier: Apache-2.0
// Optimum's rows of device memory in the log of fp8 train, and what it says where the device's memory is too small.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "fp8/runtime/io/json/json.h"
#include "support/temp_dir.h"
#include "tools/commands/train/train_run.h"

namespace fp8 {
namespace {

using test::arguments;
using test::log_of;
using test::run_fp8;
using test::small_config;
using ::testing::HasSubstr;

constexpr const char* kRows[] = {"memory_allocated (GB)", "max_memory_allocated (GB)", "total_memory_available (GB)"};

TEST(TrainMemory, ThreeRowsEveryLoggingSteps) {
  const test::TempDir folder;
  small_config(folder);
  const auto run = run_fp8(arguments(folder, "run", {"--steps", "7", "--logging-steps", "3", "--precision", "fp8"}),
                           {.environment = {{"FP8_HPU_MEMORY", "1.5G"}}});
  ASSERT_EQ(run.code, 0) << run.err;
  const auto log = log_of(folder / "run");
  ASSERT_EQ(log.size(), 7u);
  for (std::size_t i = 0; i < log.size(); ++i) {
    for (const char* row : kRows) EXPECT_EQ(log[i].contains(row), i == 2 || i == 5) << row << " of step " << i + 1;
    if (!log[i].contains(kRows[0])) continue;
    const auto gb = [&](const char* key) {
      return std::round(log[i]["memory"][key].get<double>() / (1024.0 * 1024 * 1024) * 100) / 100;
    };
    EXPECT_DOUBLE_EQ(log[i][kRows[0]].get<double>(), gb("in_use"));
    EXPECT_DOUBLE_EQ(log[i][kRows[1]].get<double>(), gb("max"));
    EXPECT_DOUBLE_EQ(log[i][kRows[2]].get<double>(), 1.5);
  }
  const auto on_cpu = run_fp8(arguments(folder, "cpu", {"--steps", "4", "--logging-steps", "2", "--device", "cpu"}));
  ASSERT_EQ(on_cpu.code, 0) << on_cpu.err;
  for (const auto& entry : log_of(folder / "cpu")) EXPECT_FALSE(entry.contains(kRows[0]));
}

TEST(TrainMemory, HelpNamesTheOption) {
  const auto help = run_fp8({"train", "--help-all"});
  EXPECT_THAT(help.out, HasSubstr("--logging-steps"));
  EXPECT_THAT(help.out, HasSubstr("500"));
  const auto refused = run_fp8({"train", "--logging-steps", "0"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--logging-steps"));
}

TEST(TrainMemory, WhereItEndsTheLargestOwnersAreNamed) {
  const test::TempDir folder;
  small_config(folder);
  const auto run = run_fp8(arguments(folder, "run", {"--batch", "64"}), {.environment = {{"FP8_HPU_MEMORY", "20M"}}});
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(run.error_lines(), 1) << run.err;
  EXPECT_THAT(run.err, ::testing::AllOf(HasSubstr("out of memory on hpu:0: tried to allocate"),
                                        HasSubstr("largest owners: "), HasSubstr(" MiB in ")));
}

}  // namespace
}  // namespace fp8
