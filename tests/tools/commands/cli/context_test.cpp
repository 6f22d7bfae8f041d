// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/context.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace fp8::commands {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A variable for as long as it lives.
class Given {
 public:
  Given(const char* name, const char* value) : name_(name) { ::setenv(name, value, /*overwrite=*/1); }
  ~Given() { ::unsetenv(name_); }
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;

 private:
  const char* name_;
};

TEST(EnvironmentProblems, AreThoseOfTheDeviceALineEach) {
  EXPECT_THAT(environment_problems(), IsEmpty());
  const Given right("FP8_HPU_DEVICE", "gaudi2");
  EXPECT_THAT(environment_problems(), IsEmpty());
  const Given wrong("FP8_HPU_DEVICE", "gaudi9"), memory("FP8_HPU_MEMORY", "much");
  EXPECT_THAT(environment_problems(), ::testing::UnorderedElementsAre(
                                          AllOf(HasSubstr("FP8_HPU_DEVICE"), HasSubstr("gaudi9"), HasSubstr("gaudi3")),
                                          AllOf(HasSubstr("FP8_HPU_MEMORY"), HasSubstr("much"))));
}

TEST(EnvironmentProblems, OfOtherReadersAreNotJudgedHere) {
  const Given other("OMP_WAIT_POLICY", "sometimes");
  EXPECT_THAT(environment_problems(), IsEmpty());
}

}  // namespace
}  // namespace fp8::commands
