// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fp8/runtime/io/base/file.h"

namespace fp8::io {
namespace {

TEST(Ensure, IsSilentWhereItHolds) { EXPECT_NO_THROW(ensure(true, "anything")); }

TEST(Ensure, NamesPlaceAndInvariant) {
  const std::string line = std::to_string(__LINE__ + 2);
  try {
    ensure(1 > 2, "numbers in their order");
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_THAT(error.what(), ::testing::EndsWith("ensure_test.cpp:" + line + ": expected numbers in their order"));
  }
}

}  // namespace
}  // namespace fp8::io
