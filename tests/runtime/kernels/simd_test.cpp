// SPDX-License-Identifier: Apache-2.0
// Levels: names, forcing, and the environment variable (in a child process, because the choice is made once).
#include "fp8/runtime/kernels/simd.h"

#include <cstdio>
#include <cstdlib>

#include "fp8/runtime/kernels/device_kind.h"
#include "fp8/runtime/kernels/float_bits.h"
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

struct SimdDeathTest : testing::Test {
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(SimdDeathTest, EnvironmentLowersTheLevel) {
  for (SimdLevel level : levels()) {
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

struct KindOfEnvironment : ::testing::Test {
  void TearDown() override { unsetenv("FP8_HPU_DEVICE"); }
};

TEST_F(KindOfEnvironment, IsGaudi3UnlessNamed) {
  unsetenv("FP8_HPU_DEVICE");
  EXPECT_EQ(kind_from_environment(), DeviceKind::gaudi3);
  for (const auto& [word, kind] : {std::pair{"", DeviceKind::gaudi3},
                                   {"gaudi", DeviceKind::gaudi},
                                   {"gaudi2", DeviceKind::gaudi2},
                                   {"gaudi3", DeviceKind::gaudi3}}) {
    setenv("FP8_HPU_DEVICE", word, 1);
    EXPECT_EQ(kind_from_environment(), kind) << word;
  }
}

TEST_F(KindOfEnvironment, OthersAreRefused) {
  setenv("FP8_HPU_DEVICE", "gaudi4", 1);
  EXPECT_EQ(error_of<std::invalid_argument>(kind_from_environment),
            "FP8_HPU_DEVICE: found 'gaudi4', allowed: gaudi, gaudi2, gaudi3");
}

TEST(DialectOf, TheSecondGenerationHasItsOwn) {
  EXPECT_EQ(fp8_max(Format::E4M3, dialect_of(DeviceKind::gaudi2)), 240.0f);
  EXPECT_EQ(fp8_max(Format::E4M3, dialect_of(DeviceKind::gaudi3)), 448.0f);
}

// Against the numbers that the reference code of splitmix64 (Vigna, prng.di.unimi.it/splitmix64.c) gives.

TEST(RandomBits, AreThoseOfSplitmix64) {
  constexpr std::uint64_t kOf1234567[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                          4593380528125082431u, 16408922859458223821u};
  for (std::uint64_t i = 0; i < std::size(kOf1234567); ++i) EXPECT_EQ(splitmix64(1234567, i), kOf1234567[i]) << i;
  EXPECT_EQ(splitmix64(0, 0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(splitmix64(0, 1), 0x6e789e6aa1b965f4u);
}

TEST(RandomBits, TheLastNumbersWrapAround) {
  EXPECT_EQ(splitmix64(7, ~std::uint64_t{0}), mix(7));
  EXPECT_EQ(mix(0), 0u);
}

TEST(RandomBits, OneBitChangesAboutHalfOfThem) {
  for (int bit = 0; bit < 64; ++bit) {
    const int changed = std::popcount(mix(0x0123456789abcdefu) ^ mix(0x0123456789abcdefu ^ (std::uint64_t{1} << bit)));
    EXPECT_GT(changed, 10) << bit;
    EXPECT_LT(changed, 54) << bit;
  }
}

TEST(Scratch, KeepsItsMemoryUntilItGrowsOrShrinks) {
  Scratch scratch;
  std::uint8_t* first = scratch.get(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
  std::memset(first, 1, 100);
  EXPECT_EQ(scratch.get(50), first);
  scratch.shrink(100);
  EXPECT_EQ(scratch.get(100), first);
  std::memset(scratch.get(5000), 2, 5000);
  scratch.shrink(4999);
  std::memset(scratch.get(10), 3, 10);  // memory of its own again
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scratch.get(10)) % 64, 0u);
}

}  // namespace
}  // namespace fp8::kernels
