// SPDX-License-Identifier: Apache-2.0
// The program as several processes that a launcher started: by torchrun's variables, no launcher is needed.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "support/launchers.h"
#include "tools/commands/train/train_run.h"

namespace fp8::test {

/// A socket that listens at a port of this machine that was free.
class Listening {
 public:
  Listening() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t length = sizeof address;
    bind(socket_, reinterpret_cast<sockaddr*>(&address), length);
    listen(socket_, 1);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  ~Listening() { close(socket_); }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
  std::string port() const { return std::to_string(port_); }

 private:
  int socket_, port_ = 0;
};

inline std::string free_port() { return Listening().port(); }

/// Ranks of one run, started together. arguments(rank), environment(rank): more than the launcher's.
class RankProcesses {
 public:
  using ByRank = std::function<std::vector<std::string>(int)>;

  RankProcesses(const ByRank& arguments, int size, const std::vector<Variables>& more = {},
                const std::string& launcher = "torchrun") {
    const auto port = free_port();
    for (int rank = 0; rank < size; ++rank) {
      RunOptions options{.environment = no_launcher()};
      const Variables set_by_launcher = launchers(rank, size).at(launcher);
      for (const auto& [name, value] : set_by_launcher) options.environment[name] = value;
      options.environment["MASTER_ADDR"] = "127.0.0.1";
      options.environment["MASTER_PORT"] = port;
      options.environment["OMP_NUM_THREADS"] = "1";
      if (static_cast<std::size_t>(rank) < more.size())
        for (const auto& [name, value] : more[static_cast<std::size_t>(rank)]) options.environment[name] = value;
      const auto list = arguments(rank);
      const pid_t child = fork();
      if (child == 0) become_fp8(list, options, stream("out", rank), stream("err", rank));
      children_.push_back(child);
    }
  }
  RankProcesses(const std::vector<std::string>& arguments, int size, const std::vector<Variables>& more = {},
                const std::string& launcher = "torchrun")
      : RankProcesses([&](int) { return arguments; }, size, more, launcher) {}

  /// Waits until `out` has logged `lines` steps, then sends the signal to `rank`.
  void signal_after(const std::filesystem::path& out, std::size_t lines, int rank, int number) const {
    for (int i = 0; i < 12000; ++i) {
      const auto text = read_file(out / "log.jsonl");
      if (static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) >= lines) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    send(rank, number);
  }
  void send(int rank, int number) const { kill(children_[static_cast<std::size_t>(rank)], number); }

  /// The result of one, which is killed after `limit`.
  Run wait(int rank, std::chrono::seconds limit = std::chrono::hours(1)) {
    int status = 0;
    const auto end = std::chrono::steady_clock::now() + limit;
    while (waitpid(children_[static_cast<std::size_t>(rank)], &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) send(rank, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read_file(stream("out", rank)),
            read_file(stream("err", rank))};
  }
  /// The results, by rank.
  std::vector<Run> wait() {
    std::vector<Run> runs;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) runs.push_back(wait(static_cast<int>(rank)));
    return runs;
  }

 private:
  std::string stream(const std::string& name, int rank) const {
    return (folder_ / (name + std::to_string(rank))).string();
  }

  TempDir folder_;
  std::vector<pid_t> children_;
};

/// All of them end well, and rank 0 alone says something. Returns what it said.
inline io::Json expect_trained(RankProcesses processes) {
  const auto runs = processes.wait();
  for (std::size_t rank = 0; rank < runs.size(); ++rank) {
    EXPECT_EQ(runs[rank].code, 0) << rank << ": " << runs[rank].err;
    if (rank > 0) {
      EXPECT_EQ(runs[rank].out + runs[rank].err, "") << rank;
    }
  }
  return runs[0].code == 0 ? io::parse_json(runs[0].out, "stdout") : io::Json::object();
}

}  // namespace fp8::test
