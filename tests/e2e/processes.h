// SPDX-License-Identifier: Apache-2.0
// Runs of the program beside each other: by themselves, and as the ranks of one work.
#pragma once
#include <memory>

#include "e2e/e2e.h"
#include "support/kill_runs.h"
#include "support/ports.h"

namespace fp8::e2e {

/// Runs of the program beside each other.
class Processes {
 public:
  explicit Processes(Environment environment = {}) {
    environment.emplace("OMP_NUM_THREADS", "1");
    environment_ = clean(environment);
  }
  std::size_t start(const Arguments& arguments, const Environment& more = {}) {
    test::RunOptions options{.environment = environment_};
    for (const auto& [name, value] : more) options.environment[name] = value;
    children_.push_back(std::make_unique<test::Fp8Process>(arguments, options));
    return children_.size() - 1;
  }
  /// Waits until it has computed for so long, at most a minute.
  void let_compute(std::size_t i, double seconds) const {
    clockid_t clock = {};
    timespec used = {};
    for (int n = 0; n < 6000; ++n, ::usleep(10'000)) {
      if (clock_getcpuclockid(children_[i]->id(), &clock) != 0 || clock_gettime(clock, &used) != 0)
        return;  // it is over
      if (static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9 >= seconds) return;
    }
  }
  /// True if the kill met it at work.
  bool kill(std::size_t i) {
    children_[i]->send(SIGKILL);
    return wait(i).code == -SIGKILL;
  }
  test::Run wait(std::size_t i) { return children_[i]->wait(); }

 private:
  Environment environment_;
  std::vector<std::unique_ptr<test::Fp8Process>> children_;
};

/// `command` with --out in a folder of its own, killed again and again, ends with the bytes of an undisturbed run.
/// Returns how many kills met it at work.
inline int expect_survives_kills(const Arguments& command, std::mt19937& random) {
  const test::TempDir folder;
  test::KillRuns runs(args("{} --out {}", command, folder / "out"), folder.path(), folder / "out", clean({}));
  runs.whole();
  const auto expected = contents(folder / "out");
  const int trials = test::KillRuns::count(4);
  int kills = 0;
  for (int i = 0; i < trials; ++i) {
    kills += runs.trial(random);
    EXPECT_TRUE(contents(folder / "out") == expected) << "trial " << i;
  }
  return kills;
}

using test::free_port;

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
  EXPECT_NE(port, "0");
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
