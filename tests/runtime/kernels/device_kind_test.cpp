// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/kernels/device_kind.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

namespace fp8::kernels {
namespace {

class KindOfEnvironment : public ::testing::Test {
 protected:
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
  try {
    kind_from_environment();
    ADD_FAILURE() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()), "FP8_HPU_DEVICE: found 'gaudi4', allowed: gaudi, gaudi2, gaudi3");
  }
}

TEST(DialectOf, TheSecondGenerationHasItsOwn) {
  EXPECT_EQ(fp8_max(Format::E4M3, dialect_of(DeviceKind::gaudi2)), 240.0f);
  EXPECT_EQ(fp8_max(Format::E4M3, dialect_of(DeviceKind::gaudi3)), 448.0f);
}

}  // namespace
}  // namespace fp8::kernels
