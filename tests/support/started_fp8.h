// SPDX-License-Identifier: Apache-2.0
// Runs of the fp8 program in processes that are forked from one which has loaded LibTorch: a third of a second less
// each. What depends on how or when a process starts (limits, peak memory, signals, open files) is run by Fp8Process.
#pragma once
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace fp8::test {

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

}  // namespace fp8::test
