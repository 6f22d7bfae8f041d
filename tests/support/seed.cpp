// SPDX-License-Identifier: Apache-2.0
// Every test starts with the same seed: torch seeds its default generator anew in each process.
#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace fp8::test {
namespace {

class Seed : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { at::manual_seed(20230915); }
};

[[maybe_unused]] const bool appended = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Seed);
  return true;
}();

}  // namespace
}  // namespace fp8::test
