// SPDX-License-Identifier: Apache-2.0
// Several ranks of one test: the test binary again, once per rank, with a case that does not run by itself. (Forked
// copies would not do: thread pools don't survive a fork.) Ranks meet in a file of their own.
//
//   FP8_TEST_RANKS(Amax, IsEqual, 2, 3) { auto group = test::rank_group(); ... }
//
// The body runs in each of 2 and of 3 ranks, which all have to pass. What expects other ends of its ranks is two cases:
//
//   TEST(AmaxRanks, DISABLED_OneDies) { FP8_RANK_ONLY(); ... }
//   TEST(Amax, OneDies) { EXPECT_EQ(test::run_ranks("AmaxRanks.DISABLED_OneDies", 2), ...); }
#pragma once
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "fp8/runtime/distributed/gloo_group.h"
#include "support/temp_dir.h"

namespace fp8::test {

constexpr char kRanksFile[] = "FP8_TEST_RANKS_FILE";
/// Milliseconds until a rank gives up on another.
constexpr char kRanksTimeout[] = "FP8_TEST_RANKS_TIMEOUT";

/// Inside a rank: the options of its group.
inline runtime::distributed::GroupOptions rank_options() {
  auto options = runtime::distributed::group_options_from_environment();
  if (const char* file = std::getenv(kRanksFile)) options.file = file;
  options.agree = true;
  if (const char* ms = std::getenv(kRanksTimeout)) options.timeout = std::chrono::milliseconds(std::atol(ms));
  return options;
}
inline std::shared_ptr<runtime::distributed::ProcessGroup> rank_group() {
  return runtime::distributed::make_gloo_group(rank_options());
}

/// Each rank's exit status: 0 passed, 1 failed, 128 + n ended by signal n, -1 still going on after `limit` (it is
/// killed then). They share a folder, FP8_TEST_ROOT.
inline std::vector<int> run_ranks(const std::string& name, int size,
                                  std::map<std::string, std::string> environment = {},
                                  std::chrono::seconds limit = std::chrono::seconds(120)) {
  const TempDir dir, root;
  const std::string filter = "--gtest_filter=" + name, world = std::to_string(size), file = (dir / "ranks").string();
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", world.c_str(), 1);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      setenv("MASTER_PORT", "29500", 1);
      setenv(kRanksFile, file.c_str(), 1);
      setenv("FP8_TEST_ROOT", root.path().c_str(), 1);
      setenv(kRanksTimeout, "60000", 1);
      setenv("OMP_NUM_THREADS", "1", 1);
      for (const auto& [key, value] : environment)
        value.empty() ? unsetenv(key.c_str()) : setenv(key.c_str(), value.c_str(), 1);
      execl("/proc/self/exe", "rank", "--gtest_also_run_disabled_tests", filter.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    children.push_back(child);
  }
  const auto end = std::chrono::steady_clock::now() + limit;
  std::vector<int> results;
  for (const pid_t child : children) {
    int status = 0;
    while (child > 0 && waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        status = -1;
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    results.push_back(child <= 0 || status == -1 ? -1
                      : WIFEXITED(status)        ? WEXITSTATUS(status)
                                                 : 128 + WTERMSIG(status));
  }
  return results;
}

inline std::vector<int> all_pass(int size) { return std::vector<int>(static_cast<std::size_t>(size), 0); }

/// This process is a rank: cases that only ranks run skip themselves elsewhere (FP8_RANK_ONLY).
inline bool is_rank() { return std::getenv(kRanksFile) != nullptr; }

}  // namespace fp8::test

/// The first line of such a case.
#define FP8_RANK_ONLY() \
  if (!::fp8::test::is_rank()) GTEST_SKIP() << "run by another case, once per rank"

namespace fp8::test {

/// The fixture of such cases.
struct OnlyRanks : ::testing::Test {
  void SetUp() override { FP8_RANK_ONLY(); }
};

}  // namespace fp8::test

#define FP8_TEST_RANKS(suite, name, ...)                                                               \
  void suite##_##name();                                                                               \
  TEST(suite, name) {                                                                                  \
    for (const int size : {__VA_ARGS__})                                                               \
      EXPECT_EQ(::fp8::test::run_ranks(#suite ".DISABLED_" #name, size), ::fp8::test::all_pass(size)); \
  }                                                                                                    \
  TEST(suite, DISABLED_##name) {                                                                       \
    FP8_RANK_ONLY();                                                                                   \
    suite##_##name();                                                                                  \
  }                                                                                                    \
  void suite##_##name()
