// SPDX-License-Identifier: Apache-2.0
// Several ranks, one after the other and side by side, as threads and as processes: no file is lost, a backup is whole
// and made once. Files written in between, at the end of a program, and what a failed write leaves.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "fp8/measure/calibration/recorder.h"
#include "fp8/measure/calibration/session.h"
#include "fp8/runtime/io/base/file.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::measure {
namespace {

using std::chrono::hours;

MeasurementFile file_of(float amax) {
  MeasurementFile file;
  file.modules.push_back({"m", {{amax}}, std::nullopt, std::nullopt});
  file.selected = {"m"};
  return file;
}

/// One rank's calibration; -1: a single process.
void measure_rank(const test::TempDir& dir, int rank, int world, float amax) {
  std::optional<configs::Rank> r;
  if (rank >= 0) r = configs::Rank{rank, world};
  CalibrationFiles((dir / "p").string(), {"maxabs", r}).write(file_of(amax), nullptr);
}

float amax_of_rank(const fs::path& dir, int rank, int world) {
  return read_measurements(StatsName{(dir / "p").string(), "maxabs", {}, configs::Rank{rank, world}})
      .modules.at(0)
      .inputs[0][0];
}

/// As if an earlier process had written everything that is there.
void age(const test::TempDir& dir) {
  for (const auto& entry : fs::directory_iterator(dir.path())) {
    if (entry.is_regular_file()) fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - hours(1));
  }
}

std::vector<fs::path> backups(const test::TempDir& dir) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(dir.path())) {
    if (entry.is_directory() && entry.path().filename().string().rfind("backup_p_", 0) == 0)
      found.push_back(entry.path());
  }
  return found;
}

std::size_t files_in(const fs::path& dir) {
  std::size_t n = 0;
  for (const auto& entry : fs::directory_iterator(dir)) n += entry.is_regular_file();
  return n;
}

TEST(CalibrationFiles, ASecondRunBacksTheFirstUpAsAWhole) {
  const test::TempDir dir;
  measure_rank(dir, -1, 0, 1);
  EXPECT_TRUE(backups(dir).empty());
  std::ofstream(dir / "p_hooks_maxabs_MAXABS_HW.npz") << "scales of the first run";
  std::ofstream(dir / "p_hooks_maxabs_1_4.json") << "of another number of ranks";
  std::ofstream(dir / "p2_hooks_maxabs.json") << "another prefix";
  std::ofstream(dir / "notes.txt") << "not ours";
  age(dir);
  measure_rank(dir, -1, 0, 2);
  ASSERT_EQ(backups(dir).size(), 1u);
  EXPECT_EQ(files_in(backups(dir)[0]), 5u);
  EXPECT_TRUE(fs::exists(backups(dir)[0] / "p_hooks_maxabs_MAXABS_HW.npz"));
  EXPECT_TRUE(fs::exists(dir / "p2_hooks_maxabs.json"));
  EXPECT_TRUE(fs::exists(dir / "notes.txt"));
  EXPECT_EQ(read_measurements((dir / "p").string()).modules[0].inputs[0][0], 2.0f);
  EXPECT_EQ(read_measurements((backups(dir)[0] / "p").string()).modules[0].inputs[0][0], 1.0f);
}

TEST(CalibrationFiles, TheBackupIsNamedAsIncNamesItButForColons) {
  const test::TempDir dir;
  measure_rank(dir, -1, 0, 1);
  measure_rank(dir, -1, 0, 2);
  const std::string name = backups(dir).at(0).filename().string();  // backup_p_dd-mm_HH-MM-SS
  ASSERT_EQ(name.size(), std::string("backup_p_21-11_15-04-59").size());
  EXPECT_EQ(name[11], '-');
  EXPECT_EQ(name[14], '_');
  EXPECT_EQ(name[17], '-');  // other file systems take no colon
  measure_rank(dir, -1, 0, 3);
  measure_rank(dir, -1, 0, 4);
  EXPECT_EQ(backups(dir).size(), 3u);  // within one second too
}

TEST(CalibrationFiles, RanksOneAfterTheOtherKeepEachOthersFiles) {
  const test::TempDir dir;
  for (int run = 0; run < 3; ++run) {
    for (const int rank : {1, 0, 2}) measure_rank(dir, rank, 3, static_cast<float>(10 * run + rank + 1));
    for (const int rank : {0, 1, 2})
      EXPECT_EQ(amax_of_rank(dir.path(), rank, 3), static_cast<float>(10 * run + rank + 1));
    ASSERT_EQ(backups(dir).size(), static_cast<std::size_t>(run));  // one for each earlier run
    age(dir);
  }
  for (const auto& backup : backups(dir)) EXPECT_EQ(files_in(backup), 9u);
}

/// One rank alone again, long after all of them: the others' files are theirs.
TEST(CalibrationFiles, ARankThatMeasuresAgainTouchesItsOwnFilesOnly) {
  const test::TempDir dir;
  for (int rank = 0; rank < 3; ++rank) measure_rank(dir, rank, 3, static_cast<float>(rank + 1));
  age(dir);
  measure_rank(dir, 1, 3, 20);
  EXPECT_EQ(amax_of_rank(dir.path(), 0, 3), 1.0f);
  EXPECT_EQ(amax_of_rank(dir.path(), 1, 3), 20.0f);
  EXPECT_EQ(amax_of_rank(dir.path(), 2, 3), 3.0f);
  ASSERT_EQ(backups(dir).size(), 1u);
  EXPECT_EQ(files_in(backups(dir)[0]), 3u);
  EXPECT_EQ(amax_of_rank(backups(dir)[0], 1, 3), 2.0f);
}

/// The first run lost a rank; in the second one that rank is done before the other begins.
TEST(CalibrationFiles, ALateRankLeavesWhatAnEarlyOneWrote) {
  const test::TempDir dir;
  measure_rank(dir, 0, 2, 1);
  age(dir);
  measure_rank(dir, 1, 2, 20);
  age(dir);
  measure_rank(dir, 0, 2, 10);
  EXPECT_EQ(amax_of_rank(dir.path(), 0, 2), 10.0f);
  EXPECT_EQ(amax_of_rank(dir.path(), 1, 2), 20.0f);
}

TEST(CalibrationFiles, ARunWithOtherRanksBacksUpAllOfTheEarlier) {
  const test::TempDir dir;
  for (int rank = 0; rank < 4; ++rank) measure_rank(dir, rank, 4, 1);
  age(dir);
  measure_rank(dir, 1, 2, 5);
  ASSERT_EQ(backups(dir).size(), 1u);
  EXPECT_EQ(files_in(backups(dir)[0]), 12u);
  measure_rank(dir, 0, 2, 6);
  EXPECT_EQ(backups(dir).size(), 1u);
  EXPECT_EQ(amax_of_rank(dir.path(), 1, 2), 5.0f);
}

TEST(CalibrationFiles, ARerunAfterACrashKeepsTheNewFilesOfOthers) {
  const test::TempDir dir;
  measure_rank(dir, 0, 2, 1);  // rank 1 crashed
  age(dir);
  measure_rank(dir, 1, 2, 20);  // the second run: rank 1 is first this time
  measure_rank(dir, 0, 2, 10);
  EXPECT_EQ(amax_of_rank(dir.path(), 0, 2), 10.0f);
  EXPECT_EQ(amax_of_rank(dir.path(), 1, 2), 20.0f);
  ASSERT_EQ(backups(dir).size(), 1u);
  EXPECT_EQ(amax_of_rank(backups(dir)[0], 0, 2), 1.0f);
}

TEST(CalibrationFiles, ThreadsAsRanksLoseNothing) {
  const test::TempDir dir;
  for (int run = 0; run < 2; ++run) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 6; ++rank) {
      threads.emplace_back([&, rank] {
        CalibrationFiles files((dir / "p").string(), {"maxabs", configs::Rank{rank, 6}});
        for (int dump = 0; dump < 5; ++dump)
          files.write(file_of(static_cast<float>(100 * run + 10 * rank + dump)), nullptr);
      });
    }
    for (auto& thread : threads) thread.join();
    for (int rank = 0; rank < 6; ++rank)
      EXPECT_EQ(amax_of_rank(dir.path(), rank, 6), static_cast<float>(100 * run + 10 * rank + 4));
    EXPECT_EQ(backups(dir).empty(), run == 0);
    age(dir);
  }
  std::size_t saved = 0;
  for (const auto& backup : backups(dir)) saved += files_in(backup);
  EXPECT_EQ(saved, 18u);
}

/// Runs f in a child process that ends by exit(): 0 when it did.
template <class F>
pid_t in_child(F&& f) {
  const pid_t child = fork();
  if (child == 0) {
    f();
    _exit(0);
  }
  return child;
}

void wait_for(const std::vector<pid_t>& children) {
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(CalibrationFiles, ProcessesAsRanksLoseNothing) {
  const test::TempDir dir;
  for (int run = 0; run < 3; ++run) {
    std::vector<pid_t> children;
    for (int rank = 0; rank < 4; ++rank) {
      children.push_back(in_child([&] {
        if (rank == 3) usleep(30000);  // the late one
        CalibrationFiles files((dir / "p").string(), {"maxabs", configs::Rank{rank, 4}});
        for (int dump = 0; dump < 4; ++dump)
          files.write(file_of(static_cast<float>(100 * run + 10 * rank + dump)), nullptr);
      }));
    }
    wait_for(children);
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(amax_of_rank(dir.path(), rank, 4), static_cast<float>(100 * run + 10 * rank + 3));
    age(dir);
    ASSERT_EQ(backups(dir).size(), static_cast<std::size_t>(run));
  }
  for (const auto& backup : backups(dir)) EXPECT_EQ(files_in(backup), 12u);
}

TEST(CalibrationFiles, AFailedWritePutsTheOldFilesBack) {
  const test::TempDir dir;
  measure_rank(dir, -1, 0, 1);
  age(dir);
  auto bad = file_of(2);
  bad.modules[0].inputs[0][0] = NAN;  // no JSON can hold it
  EXPECT_THROW(CalibrationFiles((dir / "p").string(), {}).write(bad, nullptr), io::Error);
  EXPECT_TRUE(backups(dir).empty());
  EXPECT_EQ(read_measurements((dir / "p").string()).modules[0].inputs[0][0], 1.0f);
}

TEST(CalibrationFiles, WithoutAPrefixNothingIsWritten) {
  EXPECT_TRUE(CalibrationFiles("", {}).write(file_of(1), nullptr).empty());
}

CalibrationOptions options_for(const test::TempDir& dir, std::int64_t interval = 0) {
  CalibrationOptions options;
  options.prefix = (dir / "p").string();
  options.sample_interval = interval;
  return options;
}

TEST(CalibrationFiles, AppearEverySoManySamples) {
  const test::TempDir dir;
  auto model = test::tiny_lm();
  const at::Tensor ids = test::token_ids();
  const auto session = CalibrationSession::attach(*model, options_for(dir, 50));
  std::map<std::int64_t, std::optional<std::int64_t>> seen;  // before sample n: NumSamples in the file
  for (std::int64_t first = 0; first < 120; first += 8) {
    session->begin_samples(first, 8);
    seen[first] =
        fs::exists(dir / "p_hooks_maxabs.json") ? read_measurements((dir / "p").string()).num_samples : std::nullopt;
    model(ids);
  }
  EXPECT_FALSE(seen[48].has_value());
  EXPECT_EQ(seen[56], 56);
  EXPECT_EQ(seen[96], 56);
  EXPECT_EQ(seen[104], 104);
  finalize_calibration(*model);
  EXPECT_EQ(read_measurements((dir / "p").string()).num_samples, 120);
  EXPECT_TRUE(backups(dir).empty());
}

TEST(CalibrationFiles, AForwardIsASampleForWhoDoesNotCount) {
  const test::TempDir dir;
  auto model = test::tiny_lm();
  const at::Tensor ids = test::token_ids();
  CalibrationSession::attach(*model, options_for(dir, 2));
  const auto written = [&] {
    return fs::exists(dir / "p_hooks_maxabs.json") ? read_measurements((dir / "p").string()).num_samples : std::nullopt;
  };
  for (int i = 0; i < 5; ++i) model(ids);
  EXPECT_EQ(written(), 4);
  finalize_calibration(*model);
  EXPECT_EQ(written(), 5);
}

// Programs of their own: this binary again, with one of the cases below that do not run by themselves. (A forked copy
// of this process would not do: thread pools don't survive a fork.)
constexpr char kFolder[] = "FP8_TEST_CALIBRATION_FOLDER";

void run_program(const char* name, const test::TempDir& dir) {
  const std::string filter = std::string("--gtest_filter=CalibrationFilesProgram.DISABLED_") + name;
  const pid_t child = fork();
  if (child == 0) {
    setenv(kFolder, dir.path().c_str(), 1);
    execl("/proc/self/exe", "measure_test", "--gtest_also_run_disabled_tests", filter.c_str(),
          static_cast<char*>(nullptr));
    _exit(127);
  }
  wait_for({child});
}

std::shared_ptr<CalibrationSession> calibrate_for_ever(std::int64_t rank = -1) {
  const char* folder = std::getenv(kFolder);
  if (folder == nullptr) return nullptr;
  auto* model = new test::TinyLm(test::tiny_lm());  // never destroyed
  CalibrationOptions options;
  options.prefix = std::string(folder) + "/p";
  if (rank >= 0) options.rank = configs::Rank{static_cast<int>(rank), 2};
  const auto session = CalibrationSession::attach(**model, options);
  (*model)(test::token_ids());
  return session;
}

TEST(CalibrationFilesProgram, DISABLED_Ends) {
  ASSERT_NE(calibrate_for_ever(), nullptr);
  const pid_t copy = fork();
  if (copy == 0) std::exit(0);  // has a copy of the calibration, which is not its to write
  wait_for({copy});
  EXPECT_TRUE(fs::is_empty(std::getenv(kFolder)));
}

TEST(CalibrationFilesProgram, DISABLED_Discards) {
  const auto session = calibrate_for_ever();
  ASSERT_NE(session, nullptr);
  session->discard();
}

TEST(CalibrationFilesProgram, DISABLED_EndsAsRank0) { ASSERT_NE(calibrate_for_ever(0), nullptr); }
TEST(CalibrationFilesProgram, DISABLED_EndsAsRank1) { ASSERT_NE(calibrate_for_ever(1), nullptr); }

TEST(CalibrationFiles, AProgramThatEndsKeepsWhatWasMeasured) {
  const test::TempDir dir;
  run_program("Ends", dir);
  EXPECT_EQ(read_measurements((dir / "p").string()).modules.size(), 15u);
}

TEST(CalibrationFiles, ADiscardedCalibrationIsNotWrittenAtTheEnd) {
  const test::TempDir dir;
  run_program("Discards", dir);
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(CalibrationFiles, ProgramsAsRanksEachKeepTheirs) {
  const test::TempDir dir;
  for (int run = 0; run < 2; ++run) {
    std::thread other([&] { run_program("EndsAsRank1", dir); });
    run_program("EndsAsRank0", dir);
    other.join();
    for (const int rank : {0, 1}) {
      EXPECT_EQ(read_measurements(StatsName{(dir / "p").string(), "maxabs", {}, configs::Rank{rank, 2}}).modules.size(),
                15u);
    }
    EXPECT_EQ(backups(dir).size(), static_cast<std::size_t>(run));
  }
  EXPECT_EQ(files_in(backups(dir).at(0)), 8u);
}

}  // namespace
}  // namespace fp8::measure
