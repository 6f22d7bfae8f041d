// SPDX-License-Identifier: Apache-2.0
// Commands in the test's own process, where its registrations are.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fp8/tools/commands/cli/command.h"

namespace fp8::test {

struct CommandRun {
  int code;
  std::string out, err;
};

/// `fp8 ARGUMENTS`.
inline CommandRun fp8_in_process(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "fp8");
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  CommandRun run;
  run.code = commands::run(static_cast<int>(argv.size()), argv.data());
  run.out = ::testing::internal::GetCapturedStdout();
  run.err = ::testing::internal::GetCapturedStderr();
  return run;
}

}  // namespace fp8::test
