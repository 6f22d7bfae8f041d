// SPDX-License-Identifier: Apache-2.0
// Kills the fp8 program (SIGKILL) at random moments of its work, resumes it, kills it again, until it ends by itself.
//
//   KillRuns runs({"quantize", "--model", m, "--out", (folder / "out").string()}, folder, folder / "out");
//   runs.whole();                                           // once: how long the work takes; leaves the output
//   for (int i = 0; i < KillRuns::count(6); ++i) kills += runs.trial(random);   // each ends with a finished output
//
// FP8_KILLS in the environment sets the number of trials instead of what a test asks for.
#pragma once

#include <random>

#include "tools/commands/run_fp8.h"

namespace fp8::test {

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
