// SPDX-License-Identifier: Apache-2.0
// Runs of the program beside each other: by themselves, and as the ranks of one work.
#pragma once
#include <random>

#include "e2e/e2e.h"
#include "support/ports.h"

namespace fp8::test {

// Kills the fp8 program (SIGKILL) at random moments of its work, resumes it, kills it again, until it ends by itself.
//
//   KillRuns runs({"quantize", "--model", m, "--out", (folder / "out").string()}, folder, folder / "out");
//   runs.whole();                                           // once: how long the work takes; leaves the output
//   for (int i = 0; i < KillRuns::count(6); ++i) kills += runs.trial(random);   // each ends with a finished output
//
// FP8_KILLS in the environment sets the number of trials instead of what a test asks for.

class KillRuns {
 public:
  using Arguments = std::vector<std::string>;
  using Clock = std::chrono::steady_clock;

  /// arguments: without --resume. folder: where a first file shows that work has begun; empty before each trial. out:
  /// what stands when all is done, and not before.
  KillRuns(Arguments arguments, std::filesystem::path folder, std::filesystem::path out,
           std::map<std::string, std::string> environment = {})
      : arguments_(std::move(arguments)), folder_(std::move(folder)), out_(std::move(out)) {
    options_.environment = std::move(environment);
  }

  static int count(int wanted) {
    const char* text = std::getenv("FP8_KILLS");
    return text == nullptr ? wanted : std::max(1, std::atoi(text));
  }

  /// An undisturbed run.
  void whole() {
    clear();
    const Run run = run_until_killed(arguments_, std::chrono::hours(1));
    ASSERT_EQ(run.code, 0) << run.err;
  }

  /// Kills at a random moment, then resumes with one more kill for every second time; returns how many kills met a run
  /// at work.
  int trial(std::mt19937& random) {
    clear();
    Arguments resumed = arguments_;
    resumed.push_back("--resume");
    int kills = 0;
    for (int i = 0; i < 8; ++i) {
      const bool last = i == 7 || (i > 0 && random() % 2 == 0);
      const std::chrono::duration<double> moment =
          seconds_ * (static_cast<double>(random() % 1000) / 1000.0) * (i == 0 ? 0.8 : 0.5);
      const Run run =
          run_until_killed(i == 0 ? arguments_ : resumed, last ? Clock::duration(std::chrono::hours(1))
                                                               : std::chrono::duration_cast<Clock::duration>(moment));
      if (run.code == -SIGKILL) {
        if (std::filesystem::exists(out_)) return kills;  // it had just finished
        ++kills;
        continue;
      }
      EXPECT_EQ(run.code, 0) << run.err;
      return kills;
    }
    return kills;
  }

 private:
  void clear() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) std::filesystem::remove_all(entry.path());
  }

  /// SIGKILL `after` the first file in folder_ appears (a resumed run: after its start).
  Run run_until_killed(const Arguments& arguments, Clock::duration after) {
    const bool fresh = std::filesystem::is_empty(folder_);
    Fp8Process process(arguments, options_);
    auto begin = Clock::now();
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::microseconds(200)); };
    while (fresh && !process.ended() && std::filesystem::is_empty(folder_)) pause();
    if (fresh) {
      startup_ = Clock::now() - begin;
      begin = Clock::now();
    } else {
      after += startup_;
    }
    while (!process.ended() && Clock::now() - begin < after) pause();
    if (fresh && process.ended()) seconds_ = Clock::now() - begin;
    process.send(SIGKILL);
    return process.wait();
  }

  Arguments arguments_;
  std::filesystem::path folder_, out_;
  RunOptions options_;
  std::chrono::duration<double> seconds_{0.1};
  Clock::duration startup_{};
};

}  // namespace fp8::test

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
