// SPDX-License-Identifier: Apache-2.0
// Runs the fp8 program as a process and keeps what it wrote. No shell: arguments arrive as they are.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <thread>

#include "support/command.h"

namespace fp8::test {

struct RunOptions {
  std::map<std::string, std::string> environment = {};
  const char* stdout_file = nullptr;  ///< instead of a file that is read back
  int stdout_fd = -1;                 ///< an open descriptor instead of a file
  bool close_stdout = false;
  std::vector<int> signals_after_start =
      {};                         ///< sent one after the other once the program shows a sign of life in `started_file`
  std::string started_file = {};  ///< a folder in which a new file appears when work has begun
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// In the child: standard streams, environment, exec.
[[noreturn]] inline void become_fp8(const std::vector<std::string>& arguments, const RunOptions& options,
                                    const std::string& out, const std::string& err) {
  const auto redirect = [](const std::string& path, int fd) {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, fd) < 0) _exit(126);
    close(file);
  };
  redirect(options.stdout_file != nullptr ? options.stdout_file : out, STDOUT_FILENO);
  redirect(err, STDERR_FILENO);
  if (options.stdout_fd >= 0) dup2(options.stdout_fd, STDOUT_FILENO);
  if (options.close_stdout) close(STDOUT_FILENO);
  for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
  std::string program = FP8_BINARY_DIR "/bin/fp8";
  std::vector<char*> argv = {program.data()};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  _exit(127);
}

inline void send_signals(pid_t child, const RunOptions& options) {
  if (options.signals_after_start.empty()) return;
  for (int i = 0; i < 6000 && std::filesystem::is_empty(options.started_file); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  for (const int number : options.signals_after_start) {
    kill(child, number);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

inline Run run_fp8(const std::vector<std::string>& arguments, const RunOptions& options = {}) {
  const TempDir folder;
  const auto out = (folder / "out").string(), err = (folder / "err").string();
  const pid_t child = fork();
  if (child == 0) become_fp8(arguments, options, out, err);
  send_signals(child, options);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  Run run;
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  run.out = read_file(out);
  run.err = read_file(err);
  return run;
}
/// run_fp8("inspect {} --json", folder / "out")
template <std::size_t N, class... T>
Run run_fp8(const char (&text)[N], const T&... values) {
  return run_fp8(args(text, values...));
}

}  // namespace fp8::test

namespace fp8 {
using test::read_file;
using test::run_fp8;
}  // namespace fp8
