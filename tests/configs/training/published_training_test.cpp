// SPDX-License-Identifier: Apache-2.0
// The gaudi_config.json files and the training arguments that Optimum Habana publishes, as facts: each is taken, or
// refused with the sentence of one of its keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "fp8/configs/training/gaudi_config.h"

namespace fp8::configs {
namespace {

io::Json published() {
  return io::read_json(std::filesystem::path(FP8_SOURCE_DIR) / "tests/configs/training/published_training.json");
}

/// What a message begins with, and how many of the files have it.
using Refusals = std::map<std::string, int>;

void expect_refusals(const io::Json& rows, Findings (*check)(const io::Json&, const std::string&),
                     const Refusals& expected) {
  Refusals met;
  for (const auto& row : rows) {
    for (const auto& problem : check(row[1], "f.json").problems) {
      const auto known = std::ranges::find_if(expected, [&](const auto& r) { return problem.starts_with(r.first); });
      EXPECT_NE(known, expected.end()) << row[0] << ": " << problem;
      if (known != expected.end()) ++met[known->first];
    }
  }
  EXPECT_EQ(met, expected);
}

TEST(PublishedTraining, GaudiConfigsAreTakenButThoseOfHabanaMixedPrecision) {
  const auto rows = published()["gaudi_configs"];
  EXPECT_EQ(rows.size(), 5u);
  expect_refusals(rows, check_gaudi_config, {{"f.json: key 'use_habana_mixed_precision': found true", 1}});
}

TEST(PublishedTraining, ArgumentsAreTakenOrRefusedByName) {
  const auto rows = published()["training_args"];
  EXPECT_EQ(rows.size(), 37u);
  expect_refusals(rows, check_training_arguments,
                  {{"f.json: key 'deepspeed': found", 6},
                   {"f.json: key 'metric_for_best_model': found 'accuracy'", 1},
                   {"f.json: key 'optim': found \"paged_adamw_32bit\"", 3},
                   {"f.json: key 'predict_with_generate': found true", 5}});
}

TEST(PublishedTraining, WhatIsTakenComesToACommand) {
  const auto all = published();
  for (const auto& row : all["training_args"]) {
    if (!check_training_arguments(row[1], "f.json").problems.empty()) continue;
    const auto words = training_arguments_command(row[1]).arguments();
    EXPECT_EQ(std::ranges::count(words, "--precision"), 1) << row[0];
    EXPECT_EQ(std::ranges::count(words, "--steps") + std::ranges::count(words, "--epochs"), 1) << row[0];
  }
}

}  // namespace
}  // namespace fp8::configs
