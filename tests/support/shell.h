// SPDX-License-Identifier: Apache-2.0
// The output of a shell command.
#pragma once
#include <cstdio>
#include <string>

namespace fp8::test {

struct ShellResult {
  std::string text;  // stdout; stderr where the command says 2>&1
  int status = 0;    // as of waitpid, 0 for success
};

inline ShellResult run_shell(const std::string& command) {
  ShellResult result;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {"popen failed", -1};
  for (char buffer[4096]; const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe);)
    result.text.append(buffer, n);
  result.status = pclose(pipe);
  return result;
}

/// True if a program is in PATH.
inline bool is_installed(const std::string& program) {
  return run_shell("command -v " + program + " > /dev/null 2>&1").status == 0;
}

}  // namespace fp8::test
