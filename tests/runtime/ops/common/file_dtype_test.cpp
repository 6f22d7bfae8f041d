// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/common/file_dtype.h"

#include <gtest/gtest.h>

namespace fp8::runtime::ops {
namespace {

TEST(FileDType, ThereAndBackWithTheSameSize) {
  for (const auto& [own, stored] : kFileDTypes) {
    EXPECT_TRUE(file_dtype(own) == stored) << own;
    EXPECT_TRUE(tensor_dtype(stored) == own) << own;
    EXPECT_EQ(c10::elementSize(own), static_cast<std::size_t>(io::size_of(stored))) << own;
  }
}

TEST(FileDType, IsEmptyWhereTheOtherHasNone) {
  EXPECT_FALSE(file_dtype(at::kComplexDouble).has_value());
  EXPECT_FALSE(file_dtype(at::kQInt8).has_value());
  EXPECT_FALSE(tensor_dtype(io::DType::C64).has_value());
}

}  // namespace
}  // namespace fp8::runtime::ops
