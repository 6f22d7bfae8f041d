// SPDX-License-Identifier: Apache-2.0
// Runs of the program beside each other: by themselves, and as the ranks of one work.
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <ctime>

#include "e2e/e2e.h"

namespace fp8::e2e {

/// Runs of the program beside each other.
class Processes {
 public:
  explicit Processes(Environment environment = {}) {
    environment.emplace("OMP_NUM_THREADS", "1");
    options_.environment = clean(environment);
  }
  ~Processes() {
    for (auto& child : children_) end(child, SIGKILL);
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  std::size_t start(const Arguments& arguments, const Environment& more = {}) {
    const std::size_t i = children_.size();
    test::RunOptions options = options_;
    for (const auto& [name, value] : more) options.environment[name] = value;
    const pid_t child = fork();
    if (child == 0) test::become_fp8(arguments, options, file(i, "out"), file(i, "err"));
    children_.push_back(child);
    return i;
  }
  /// Waits until it has computed for so long, at most a minute.
  void let_compute(std::size_t i, double seconds) const {
    clockid_t clock = {};
    timespec used = {};
    for (int n = 0; n < 6000; ++n, ::usleep(10'000)) {
      if (clock_getcpuclockid(children_[i], &clock) != 0 || clock_gettime(clock, &used) != 0) return;  // it is over
      if (static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9 >= seconds) return;
    }
  }
  /// True if the kill met it at work.
  bool kill(std::size_t i) { return end(children_[i], SIGKILL) == -SIGKILL; }
  test::Run wait(std::size_t i) {
    test::Run run;
    run.code = end(children_[i], 0);
    run.out = read_file(file(i, "out"));
    run.err = read_file(file(i, "err"));
    return run;
  }

 private:
  std::string file(std::size_t i, const std::string& end) const {
    return (folder_ / (std::to_string(i) + end)).string();
  }
  static int end(pid_t& child, int signal) {
    if (child <= 0) return 0;
    if (signal != 0) ::kill(child, signal);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    child = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  test::TempDir folder_;
  test::RunOptions options_;
  std::vector<pid_t> children_;
};

/// A port that is free now.
inline std::string free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(fd);
  return std::to_string(ntohs(address.sin_port));
}

/// The variables that a launcher sets for rank `rank` of `world`, which meet at a port of this machine.
inline Environment rank_variables(int rank, int world, const std::string& port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(world)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port}};
}

/// Runs a command on each of `world` ranks; others, variables: ranks with another command, or with more variables.
inline std::vector<test::Run> on_ranks(int world, const Arguments& arguments,
                                       const std::map<int, Arguments>& others = {},
                                       const std::map<int, Environment>& variables = {}) {
  Processes processes;
  const std::string port = free_port();
  for (int rank = 0; rank < world; ++rank) {
    Environment environment = rank_variables(rank, world, port);
    if (variables.contains(rank)) environment.insert(variables.at(rank).begin(), variables.at(rank).end());
    processes.start(others.contains(rank) ? others.at(rank) : arguments, environment);
  }
  std::vector<test::Run> runs;
  for (int rank = 0; rank < world; ++rank) runs.push_back(processes.wait(static_cast<std::size_t>(rank)));
  return runs;
}

}  // namespace fp8::e2e
