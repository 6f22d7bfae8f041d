// SPDX-License-Identifier: Apache-2.0
// Runs the fp8 program as a process and keeps what it wrote. No shell: arguments arrive as they are.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "support/command.h"
#include "support/started_fp8.h"

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

/// A status of waitpid() as Run has it.
inline int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status); }

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
  signal(SIGINT, SIG_DFL);  // the test itself may run in the background
  std::string program = FP8_BINARY_DIR "/bin/fp8";
  std::vector<char*> argv = {program.data()};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  _exit(127);
}

/// Looks every few milliseconds until come() is true; false where it is not within `limit`.
template <class F>
bool wait_for(F&& come, std::chrono::milliseconds limit = std::chrono::minutes(1)) {
  for (const auto end = std::chrono::steady_clock::now() + limit; !come();) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// A run of the program beside the test, which is killed with this object.
class Fp8Process {
 public:
  explicit Fp8Process(const std::vector<std::string>& arguments, const RunOptions& options = {}) : child_(fork()) {
    if (child_ == 0) become_fp8(arguments, options, (folder_ / "out").string(), (folder_ / "err").string());
  }
  ~Fp8Process() {
    send(SIGKILL);
    wait();
  }
  Fp8Process(const Fp8Process&) = delete;
  Fp8Process& operator=(const Fp8Process&) = delete;

  pid_t id() const { return child_; }
  bool ended() {
    if (!ended_) ended_ = waitpid(child_, &status_, WNOHANG) == child_;
    return ended_;
  }
  void send(int number) {
    if (!ended()) kill(child_, number);
  }
  Run wait() {
    while (!ended_) ended_ = waitpid(child_, &status_, 0) == child_ || errno != EINTR;
    return {code_of(status_), read_file(folder_ / "out"), read_file(folder_ / "err")};
  }

 private:
  const TempDir folder_;
  pid_t child_;
  int status_ = 0;
  bool ended_ = false;
};

inline Run run_fp8(const std::vector<std::string>& arguments, const RunOptions& options = {}) {
  if (options.stdout_file == nullptr && options.stdout_fd < 0 && !options.close_stdout &&
      options.signals_after_start.empty()) {
    const TempDir folder;
    const auto out = (folder / "out").string(), err = (folder / "err").string();
    if (const auto status = run_started(arguments, options.environment, out, err))
      return {code_of(*status), read_file(out), read_file(err)};
  }
  Fp8Process process(arguments, options);
  if (!options.signals_after_start.empty()) wait_for([&] { return !std::filesystem::is_empty(options.started_file); });
  for (const int number : options.signals_after_start) {
    process.send(number);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return process.wait();
}
/// run_fp8("inspect {} --json", folder / "out")
template <std::size_t N, class... T>
Run run_fp8(const char (&text)[N], const T&... values) {
  return run_fp8(args(text, values...));
}

}  // namespace fp8::test

namespace fp8 {
using test::run_fp8;
}  // namespace fp8
