// SPDX-License-Identifier: Apache-2.0
// Runs the fp8 program as a process and keeps what it wrote. No shell: arguments arrive as they are.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <source_location>
#include <thread>

#include "support/command.h"

namespace fp8::test {

// Runs of the fp8 program in processes that are forked from one which has loaded LibTorch: a third of a second less
// each. What depends on how or when a process starts (limits, peak memory, signals, open files) is run by Fp8Process.

/// A running started_fp8, whose LibTorch has read the environment that it was started with.
class StartedFp8 {
 public:
  explicit StartedFp8(const std::set<std::string>& environment) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      fcntl(ends[1], F_SETFD, 0);
      std::string program = FP8_BINARY_DIR "/bin/started_fp8", descriptor = std::to_string(ends[1]);
      char* argv[] = {program.data(), descriptor.data(), nullptr};
      std::vector<std::string> list(environment.begin(), environment.end());
      std::vector<char*> envp;
      for (auto& variable : list) envp.push_back(variable.data());
      envp.push_back(nullptr);
      execve(program.c_str(), argv, envp.data());
      _exit(127);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~StartedFp8() {
    close(socket_);
    if (child_ > 0) waitpid(child_, nullptr, 0);
  }
  StartedFp8(const StartedFp8&) = delete;
  StartedFp8& operator=(const StartedFp8&) = delete;

  /// The status of waitpid(); none where there is no program that answers.
  std::optional<int> run(const std::vector<std::string>& fields) const {
    std::string message;
    for (const auto& field : fields) message += field + '\0';
    int status = 0;
    if (send(socket_, message.data(), message.size(), MSG_NOSIGNAL) < 0) return std::nullopt;
    if (recv(socket_, &status, sizeof status, 0) != sizeof status) return std::nullopt;
    return status;
  }

 private:
  int socket_ = -1;
  pid_t child_ = -1;
};

/// The variables of this process with `more`.
inline std::map<std::string, std::string> environment_with(std::map<std::string, std::string> more) {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    more.emplace(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
  }
  return more;
}

/// Runs a command that computes with LibTorch; its status, and what it wrote in `out` and `err`. None where it has to
/// be started by itself: commands that load no LibTorch, a process forked from a test, a run beside another one, and
/// environments of more kinds than programs are kept for.
inline std::optional<int> run_started(const std::vector<std::string>& arguments,
                                      const std::map<std::string, std::string>& more, const std::string& out,
                                      const std::string& err) {
  static const std::set<std::string> commands = {"embed", "evaluate", "generate", "measure", "run", "train"};
  constexpr std::size_t kMost = 2;
  static std::mutex busy;
  static std::map<std::set<std::string>, StartedFp8> programs;
  static const pid_t owner = getpid();
  if (arguments.empty() || !commands.contains(arguments[0]) || owner != getpid()) return std::nullopt;
  const std::unique_lock lock(busy, std::try_to_lock);
  if (!lock.owns_lock()) return std::nullopt;
  std::set<std::string> all, read_at_start;
  for (const auto& [name, value] : environment_with(more)) {
    all.insert(name + '=' + value);
    if (name != "QUANT_CONFIG") read_at_start.insert(name + '=' + value);
  }
  if (!programs.contains(read_at_start) && programs.size() == kMost) return std::nullopt;
  std::vector<std::string> fields = {std::filesystem::current_path().string(), out, err, std::to_string(all.size())};
  fields.insert(fields.end(), all.begin(), all.end());
  fields.insert(fields.end(), arguments.begin(), arguments.end());
  return programs.try_emplace(read_at_start, read_at_start).first->second.run(fields);
}

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

/// A command has more in the folder of its output than what it makes before it reads: a lock and an empty folder.
inline bool has_begun(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code gone;
    if (entry.is_directory(gone) ? !std::filesystem::is_empty(entry, gone) : entry.path().extension() != ".lock")
      return true;
  }
  return false;
}

inline Run run_fp8(const std::vector<std::string>& arguments, const RunOptions& options = {}) {
  if (options.stdout_file == nullptr && options.stdout_fd < 0 && !options.close_stdout &&
      options.signals_after_start.empty()) {
    const TempDir folder;
    const auto out = (folder / "out").string(), err = (folder / "err").string();
    if (const auto status = run_started(arguments, options.environment, out, err))
      return {code_of(*status), read_file(out), read_file(err)};
  }
  Fp8Process process(arguments, options);
  if (!options.signals_after_start.empty()) wait_for([&] { return has_begun(options.started_file); });
  for (const int number : options.signals_after_start) {
    process.send(number);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return process.wait();
}
/// run_fp8("inspect {} --json", folder / "out")
template <std::convertible_to<std::string_view> Text, class... T>
Run run_fp8(const Text& text, const T&... values) {
  return run_fp8(args(text, values...));
}

/// The run, which ended well: const auto run = succeeded(run_fp8("inspect {}", model)).
inline Run succeeded(Run run, const std::source_location place = std::source_location::current()) {
  const ::testing::ScopedTrace trace(place.file_name(), static_cast<int>(place.line()), "succeeded");
  EXPECT_EQ(run.code, 0) << run.err;
  return run;
}

}  // namespace fp8::test

namespace fp8 {
using test::run_fp8;
using test::succeeded;
}  // namespace fp8
