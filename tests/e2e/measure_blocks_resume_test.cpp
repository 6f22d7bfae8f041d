// SPDX-License-Identifier: Apache-2.0
// fp8 measure with one decoder layer in memory at a time: runs that are killed, and go on from their snapshots; what
// changed meanwhile is named.
//
// FP8_TEST_KILLS: how many runs are killed in each way (4).
#include <cstdio>

#include "e2e/measure_blocks.h"

namespace fp8::e2e {
namespace {

namespace fs = std::filesystem;

/// Runs that are killed.
class Killed : public Blocks {
 protected:
  Arguments demo_command(const std::string& samples) const {
    return args("measure --block-wise --model $DEMO --data $CALIB --samples {} --out {}", samples, folder / "none");
  }
  /// Starts the program and kills it after `delay`; true if it was still running.
  static bool killed_after(const Arguments& arguments, std::chrono::microseconds delay, std::string* error) {
    const test::TempDir streams;
    test::RunOptions options;
    options.environment = clean({});
    const std::string out = (streams / "out").string(), err = (streams / "err").string();
    const pid_t child = fork();
    if (child == 0) test::become_fp8(arguments, options, out, err);
    std::this_thread::sleep_for(delay);
    kill(child, SIGKILL);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    *error = read_file(err);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << *error;
    return WIFSIGNALED(status);
  }

  void expect_survives(const Arguments& command, const fs::path& out,
                       const std::map<std::string, std::string>& expected, std::chrono::microseconds whole) {
    const char* wanted = std::getenv("FP8_TEST_KILLS");
    const int kills = wanted != nullptr ? std::atoi(wanted) : 4;
    std::mt19937_64 random(static_cast<std::uint64_t>(getpid()));
    int resumed = 0;
    for (int killed = 0; killed < kills;) {
      std::string error;
      const auto delay = std::chrono::microseconds(random() % static_cast<std::uint64_t>(whole.count()));
      const bool stopped = killed_after(command, delay, &error);
      killed += stopped ? 1 : 0;
      EXPECT_EQ(error, "");
      if (stopped && killed % 4 != 0) continue;  // four kills in a row, then the run may end
      const auto json = json_of(fp8(command));
      resumed += json.value("resumed", false) ? 1 : 0;
      auto found = all_files(out);
      EXPECT_EQ(found, expected) << "after " << killed << " kills";
      fs::remove_all(out);
    }
    std::printf("%d runs killed, %d of the runs that ended had gone on from a snapshot\n", kills, resumed);
  }

  void expect_survives(const Arguments& how) {
    const auto arguments = [&](const std::string& out) {
      return args("measure --json --model $DEMO --data $CALIB --samples 32 --snapshot-seconds 0 --out {} {}",
                  folder / out, how);
    };
    const auto start = std::chrono::steady_clock::now();
    expect_success_json(fp8(arguments("expected")));
    const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
    expect_survives(args("{} --resume", arguments("out")), folder / "out", all_files(folder / "expected"), whole);
  }
  static void expect_success_json(const test::Run& run) { EXPECT_EQ(run.code, 0) << run.err; }
};

TEST_F(Killed, WholeModelGoesOn) { expect_survives({"--whole"}); }
TEST_F(Killed, BlocksGoOn) { expect_survives({"--block-wise"}); }
TEST_F(Killed, BlocksWithStatesInFilesGoOn) {
  expect_survives({"--block-wise", "--memory-limit", least(demo_command("32")), "--quiet"});
}

TEST_F(Killed, CtrlCLeavesNothingBeforeTheFirstSnapshot) {
  const fs::path out = folder / "out", snapshots = out / ".inc_output_hooks_maxabs.resume";
  const auto limit = least(demo_command("1500"));
  for (const int signals : {1, 2}) {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGINT, SIG_DFL);
      test::RunOptions options;
      options.environment = clean({});
      test::become_fp8(
          args("measure --quiet --model $DEMO --data $CALIB --samples 1500 --memory-limit {} --block-wise --out {}",
               limit, out),
          options, (folder / "o").string(), (folder / "e").string());
    }
    for (int k = 0; k < 60000 && !fs::exists(snapshots / "hidden-1"); ++k)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int i = 0; i < signals; ++i) kill(child, SIGINT);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 130);
    EXPECT_THAT(names_in(out), IsEmpty());
  }
}

/// A snapshot that a killed run left.
class Resumed : public Killed {
 protected:
  void SetUp() override {
    Killed::SetUp();
    fs::create_directory(folder / "model");
    for (const auto& name : names_in(demo_model()))
      if (name != "reference.safetensors") fs::copy_file(fs::path(demo_model()) / name, folder / "model" / name);
    leave_snapshot();
  }
  Arguments measuring(const Arguments& more, bool resume = true) const {
    auto all = args("measure --json --model {} --data $CALIB --block-wise --snapshot-seconds 0 --out {} {}",
                    folder / "model", folder / "out", more);
    if (resume) all.push_back("--resume");
    return all;
  }
  fs::path snapshot() const { return folder / "out" / ".inc_output_hooks_maxabs.resume"; }
  void leave_snapshot() {
    for (int i = 0; i < 50; ++i) {
      std::string error;
      const pid_t child = fork();
      if (child == 0) {
        test::RunOptions options;
        options.environment = clean({});
        test::become_fp8(measuring({"--samples", "400"}, false), options, (folder / "o").string(),
                         (folder / "e").string());
      }
      for (int k = 0; k < 60000 && !fs::exists(snapshot() / "state") && kill(child, 0) == 0 &&
                      waitpid(child, nullptr, WNOHANG) == 0;
           ++k)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      if (fs::exists(snapshot() / "state")) return;
    }
    FAIL() << "no run left a snapshot";
  }
};

TEST_F(Resumed, WhatChangedIsNamed) {
  expect_refused(fp8(measuring({"--samples", "401"})), {"--resume", "data samples", "400", "401"});
  expect_refused(fp8(measuring({"--samples", "400", "--exclude", "lm_head"})), {"--resume", "options exclude"});
  expect_refused(fp8(measuring({"--samples", "400", "--dtype", "bf16"})), {"--resume", "options dtype", "bf16"});
  const auto weights = folder / "model" / "model.safetensors";
  fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(5));
  expect_refused(fp8(measuring({"--samples", "400"})), {"--resume", "model.safetensors"});
  EXPECT_TRUE(fs::exists(snapshot() / "state"));  // still there for who asks the right thing
}

TEST_F(Resumed, ADamagedSnapshotIsRefused) {
  const auto hidden = [&] {
    for (const auto& name : names_in(snapshot()))
      if (name.rfind("hidden-", 0) == 0) return snapshot() / name;
    return snapshot() / "none";
  }();
  auto bytes = read_file(hidden);
  ASSERT_GT(bytes.size(), 1000u);
  auto damaged = bytes;
  damaged[damaged.size() / 2] ^= 1;
  write_file(hidden, damaged);
  expect_refused(fp8(measuring({"--samples", "400"})), {hidden.filename().string(), "checksum"});
  write_file(hidden, bytes.substr(1));
  expect_refused(fp8(measuring({"--samples", "400"})), {hidden.filename().string(), "bytes"});
  write_file(hidden, bytes);
  auto state = read_file(snapshot() / "state");
  state[state.size() - 9] ^= 1;
  write_file(snapshot() / "state", state);
  expect_refused(fp8(measuring({"--samples", "400"})), {"state", "checksum"});
}

TEST_F(Resumed, WithoutResumeItIsRemoved) {
  const auto json = json_of(fp8(measuring({"--samples", "8"}, false)));
  EXPECT_EQ(json.value("resumed", true), false);
  EXPECT_EQ(json.value("samples", 0), 8);
  EXPECT_FALSE(fs::exists(snapshot()));
}

TEST_F(Resumed, ASourceThatChangesIsReported) {
  const auto weights = folder / "model" / "model.safetensors";
  const auto bytes = read_file(weights);
  for (const bool cut : {false, true}) {
    SCOPED_TRACE(cut ? "cut short" : "replaced");
    fs::remove_all(folder / "out");
    const pid_t child = fork();
    if (child == 0) {
      test::RunOptions options;
      options.environment = clean({});
      test::become_fp8(measuring({"--samples", "1500", "--batch", "2"}, false), options, (folder / "o").string(),
                       (folder / "e").string());
    }
    for (int k = 0; k < 60000 && !fs::exists(snapshot() / "state"); ++k)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (cut) {
      fs::resize_file(weights, bytes.size() / 2);
    } else {
      write_file(folder / "model" / "new", bytes);
      fs::rename(folder / "model" / "new", weights);
    }
    int status = 0;
    waitpid(child, &status, 0);
    write_file(weights, bytes);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    EXPECT_EQ(read_file(folder / "o"), "");
    EXPECT_THAT(read_file(folder / "e"), AllOf(StartsWith("fp8: error: "), HasSubstr("model.safetensors")));
    for (const auto& name : names_in(folder / "out"))
      EXPECT_THAT(name, StartsWith(".inc_output"));  // no measurement, half or whole
  }
}

}  // namespace
}  // namespace fp8::e2e
