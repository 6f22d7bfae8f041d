// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/stopwatch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace fp8::commands {
namespace {

TEST(Stopwatch, CountsSecondsSinceItWasMade) {
  const Stopwatch watch;
  const double before = watch.seconds();
  EXPECT_GE(before, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(watch.seconds(), before + 0.02);
}

}  // namespace
}  // namespace fp8::commands
