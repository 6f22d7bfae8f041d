// SPDX-License-Identifier: Apache-2.0
// Levels: names, forcing, and the environment variable (in a child process, because the choice is made once).
#include "fp8/runtime/kernels/simd.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

TEST(Simd, ScopedLevelsNest) {
  const SimdLevel before = simd_level();
  {
    ScopedSimdLevel outer(best_simd_level());
    EXPECT_EQ(simd_level(), best_simd_level());
    {
      ScopedSimdLevel inner(SimdLevel::scalar);
      EXPECT_EQ(simd_level(), SimdLevel::scalar);
    }
    EXPECT_EQ(simd_level(), best_simd_level());
  }
  EXPECT_EQ(simd_level(), before);
}

TEST(Simd, RefusesALevelTheMachineLacks) {
  const SimdLevel beyond = static_cast<SimdLevel>(static_cast<int>(SimdLevel::amx) + 1);
  EXPECT_THROW(ScopedSimdLevel{beyond}, std::invalid_argument);
  EXPECT_THROW(ScopedSimdLevel{static_cast<SimdLevel>(-1)}, std::invalid_argument);
}

TEST(Simd, StreamingThresholdIsACacheSize) {
  EXPECT_GE(streaming_bytes(), 64 << 10);
  EXPECT_LE(streaming_bytes(), 16 << 20);
}

/// Prints the level, or the error, that FP8_SIMD=`word` gives, from a fresh process (gtest's threadsafe death test
/// style).
[[noreturn]] void report_level(const std::string& word) {
  setenv("FP8_SIMD", word.c_str(), 1);
  try {
    std::fprintf(stderr, "level=%s;", name_of(simd_level()));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "error=%s;", error.what());
  }
  std::fflush(stderr);
  std::_Exit(7);
}

class SimdDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(SimdDeathTest, EnvironmentLowersTheLevel) {
  for (SimdLevel level : test::levels()) {
    if (level > best_simd_level()) continue;  // software tiles are for ScopedSimdLevel alone
    EXPECT_EXIT(report_level(name_of(level)), testing::ExitedWithCode(7), std::string("level=") + name_of(level) + ";");
  }
  EXPECT_EXIT(report_level(""), testing::ExitedWithCode(7), std::string("level=") + name_of(best_simd_level()) + ";");
}

TEST_F(SimdDeathTest, UnknownWordNamesTheChoices) {
  EXPECT_EXIT(report_level("sse9"), testing::ExitedWithCode(7),
              "error=FP8_SIMD: found \"sse9\", this machine allows scalar");
  EXPECT_EXIT(report_level("AVX2"), testing::ExitedWithCode(7), "error=FP8_SIMD: found \"AVX2\"");
}

}  // namespace
}  // namespace fp8::kernels
