// SPDX-License-Identifier: Apache-2.0
// The program as several processes that a launcher started: by torchrun's variables, no launcher is needed.
#pragma once
#include <memory>

#include "support/launchers.h"
#include "support/ports.h"
#include "tools/commands/train/train_run.h"

namespace fp8::test {

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
      children_.push_back(std::make_unique<Fp8Process>(arguments(rank), options));
    }
  }
  RankProcesses(const std::vector<std::string>& arguments, int size, const std::vector<Variables>& more = {},
                const std::string& launcher = "torchrun")
      : RankProcesses([&](int) { return arguments; }, size, more, launcher) {}

  /// Waits until `out` has logged `lines` steps, then sends the signal to `rank`.
  void signal_after(const std::filesystem::path& out, std::size_t lines, int rank, int number) const {
    wait_for([&] { return steps_logged(out) >= lines; });
    send(rank, number);
  }
  void send(int rank, int number) const { children_[static_cast<std::size_t>(rank)]->send(number); }

  /// The result of one, which is killed after `limit`.
  Run wait(int rank, std::chrono::seconds limit = std::chrono::hours(1)) {
    Fp8Process& process = *children_[static_cast<std::size_t>(rank)];
    if (!wait_for([&] { return process.ended(); }, limit)) process.send(SIGKILL);
    return process.wait();
  }
  /// The results, by rank.
  std::vector<Run> wait() {
    std::vector<Run> runs;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) runs.push_back(wait(static_cast<int>(rank)));
    return runs;
  }

 private:
  std::vector<std::unique_ptr<Fp8Process>> children_;
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
