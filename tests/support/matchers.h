// SPDX-License-Identifier: Apache-2.0
// GoogleTest, and the matchers that most tests use, by their own names.
#pragma once
#include <gmock/gmock.h>

namespace fp8 {
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
}  // namespace fp8
