// SPDX-License-Identifier: Apache-2.0
// Commands in the test's own process, where its registrations are.
#pragma once
#include "fp8/tools/commands/cli/command.h"
#include "support/command.h"

namespace fp8::test {

/// `fp8 ARGUMENTS`.
inline Run fp8_in_process(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "fp8");
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Run run;
  run.code = commands::run(static_cast<int>(argv.size()), argv.data());
  run.out = ::testing::internal::GetCapturedStdout();
  run.err = ::testing::internal::GetCapturedStderr();
  return run;
}
template <std::convertible_to<std::string_view> Text, class... T>
Run fp8_in_process(const Text& text, const T&... values) {
  return fp8_in_process(args(text, values...));
}

}  // namespace fp8::test
