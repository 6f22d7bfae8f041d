// SPDX-License-Identifier: Apache-2.0
// The value of a flag in force and its source: default, environment, override, owner; in that order.
#include "fp8/runtime/io/base/runtime_flags.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

namespace fp8::io {
namespace {

constexpr const char* kName = "PT_HPU_LAZY_MODE";  // no code overrides it

struct RuntimeFlagsTest : ::testing::Test {
  void SetUp() override { TearDown(); }
  void TearDown() override {
    override_flag(kName, std::nullopt);
    unsetenv(kName);
  }
};

TEST_F(RuntimeFlagsTest, EveryRowInItsOrder) {
  const RuntimeFlags flags = RuntimeFlags::from_env();
  ASSERT_EQ(flags.all().size(), variables().size());
  for (std::size_t i = 0; i < flags.all().size(); ++i) {
    EXPECT_EQ(flags.all()[i].row, &variables()[i]);
    EXPECT_EQ(&flags[variables()[i].name], &flags.all()[i]);
  }
  EXPECT_THROW(flags["FP8_HPU_DEVCE"], std::logic_error);
}

TEST_F(RuntimeFlagsTest, DefaultThenEnvironment) {
  const Flag unset = RuntimeFlags::from_env()[kName];
  EXPECT_EQ(unset.source, FlagSource::default_value);
  EXPECT_EQ(unset.value, unset.row->fallback);
  EXPECT_EQ(unset.source_text(), "default");
  setenv(kName, "", 1);
  EXPECT_EQ(RuntimeFlags::from_env()[kName].source, FlagSource::default_value);
  setenv(kName, "1", 1);
  const Flag set = RuntimeFlags::from_env()[kName];
  EXPECT_EQ(set.source, FlagSource::environment);
  EXPECT_EQ(set.value, "1");
  EXPECT_EQ(set.source_text(), "environment");
  EXPECT_EQ(unset.value, unset.row->fallback);  // it is what was, not what is
}

TEST_F(RuntimeFlagsTest, NobodyIsShownASecret) {
  setenv("FP8_JOB_SECRET", "0123456789abcdef", 1);
  EXPECT_EQ(RuntimeFlags::from_env()["FP8_JOB_SECRET"].value, "set");
  EXPECT_EQ(environment_problem("FP8_JOB_SECRET"), "");
  unsetenv("FP8_JOB_SECRET");
  EXPECT_EQ(RuntimeFlags::from_env()["FP8_JOB_SECRET"].value, "none");
}

TEST_F(RuntimeFlagsTest, WhatWasSaidStandsBeforeTheEnvironmentUntilItIsTakenBack) {
  setenv(kName, "1", 1);
  override_flag(kName, FlagSetting{"0", FlagSource::option, "--threads"});
  const Flag said = RuntimeFlags::from_env()[kName];
  EXPECT_EQ(said.value, "0");
  EXPECT_EQ(said.source_text(), "option: --threads");
  override_flag(kName, FlagSetting{"2", FlagSource::config_file, "quant.json"});
  EXPECT_EQ(RuntimeFlags::from_env()[kName].value, "2");
  EXPECT_EQ(RuntimeFlags::from_env()[kName].source_text(), "config file: quant.json");
  override_flag(kName, std::nullopt);
  EXPECT_EQ(RuntimeFlags::from_env()[kName].source, FlagSource::environment);
  EXPECT_THROW(override_flag("PATH", std::nullopt), std::logic_error);
  EXPECT_THROW(override_flag("PATH", FlagSetting{"x", FlagSource::call, ""}), std::logic_error);
}

thread_local bool g_mine = false;

TEST_F(RuntimeFlagsTest, AnOwnerAnswersForTheThreadThatAsks) {
  static const FlagOwner owner("PT_HPU_WEIGHT_SHARING", []() -> std::optional<FlagSetting> {
    if (!g_mine) return std::nullopt;
    return FlagSetting{"off", FlagSource::call, "Mine"};
  });
  override_flag("PT_HPU_WEIGHT_SHARING", FlagSetting{"on", FlagSource::option, "--shared"});
  EXPECT_EQ(RuntimeFlags::from_env()["PT_HPU_WEIGHT_SHARING"].source_text(), "option: --shared");
  g_mine = true;
  EXPECT_EQ(RuntimeFlags::from_env()["PT_HPU_WEIGHT_SHARING"].source_text(), "call: Mine");
  std::string elsewhere;
  std::thread([&] { elsewhere = RuntimeFlags::from_env()["PT_HPU_WEIGHT_SHARING"].value; }).join();
  EXPECT_EQ(elsewhere, "on");
  g_mine = false;
  override_flag("PT_HPU_WEIGHT_SHARING", std::nullopt);
  EXPECT_THROW(FlagOwner("PATH", nullptr), std::logic_error);
}

}  // namespace
}  // namespace fp8::io
