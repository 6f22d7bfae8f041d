// SPDX-License-Identifier: Apache-2.0
// Several ranks, one after the other and side by side, as threads and as processes: no file is lost, a backup is whole
// and made once. Files written in between, at the end of a program, and what a failed write leaves.

#include "fp8/measure/calibration/session.h"
#include "support/child.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"
#include "support/threads.h"

namespace fp8::measure {
namespace {

using std::chrono::hours;

MeasurementFile file_of(float amax) {
  MeasurementFile file;
  file.modules.push_back({"m", {{amax}}, std::nullopt, std::nullopt});
  file.selected = {"m"};
  return file;
}

std::size_t files_in(const fs::path& dir) {
  std::size_t n = 0;
  for (const auto& entry : fs::directory_iterator(dir)) n += entry.is_regular_file();
  return n;
}

MeasurementFile read_rank(const fs::path& dir, int rank, int world) {
  return read_measurements(StatsName{(dir / "p").string(), "maxabs", {}, configs::Rank{rank, world}});
}
float amax_of_rank(const fs::path& dir, int rank, int world) {
  return read_rank(dir, rank, world).modules.at(0).inputs[0][0];
}

/// Measurements p of ranks in a folder.
struct CalibrationFilesTest : test::InFolder {
  std::string prefix() const { return (folder / "p").string(); }
  /// A single process's calibration.
  void measure(float amax) const { CalibrationFiles(prefix(), {"maxabs", std::nullopt}).write(file_of(amax), nullptr); }
  /// One rank's, with `dumps` on the way; their amaxes count up.
  void measure_rank(int rank, int world, float amax, int dumps = 1) const {
    CalibrationFiles files(prefix(), {"maxabs", configs::Rank{rank, world}});
    for (int dump = 0; dump < dumps; ++dump) files.write(file_of(amax + static_cast<float>(dump)), nullptr);
  }
  float amax_of_rank(int rank, int world) const { return measure::amax_of_rank(folder.path(), rank, world); }
  MeasurementFile read() const { return read_measurements(prefix()); }
  /// As if an earlier process had written everything that is there.
  void age() const {
    for (const auto& entry : fs::directory_iterator(folder.path()))
      if (entry.is_regular_file()) fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - hours(1));
  }
  std::vector<fs::path> backups() const {
    std::vector<fs::path> found;
    for (const auto& name : names_in(folder.path()))
      if (name.starts_with("backup_p_")) found.push_back(folder / name);
    return found;
  }
};

TEST_F(CalibrationFilesTest, ASecondRunBacksTheFirstUpAsAWhole) {
  measure(1);
  EXPECT_TRUE(backups().empty());
  std::ofstream(folder / "p_hooks_maxabs_MAXABS_HW.npz") << "scales of the first run";
  std::ofstream(folder / "p_hooks_maxabs_1_4.json") << "of another number of ranks";
  std::ofstream(folder / "p2_hooks_maxabs.json") << "another prefix";
  std::ofstream(folder / "notes.txt") << "not ours";
  age();
  measure(2);
  ASSERT_EQ(backups().size(), 1u);
  EXPECT_EQ(files_in(backups()[0]), 5u);
  EXPECT_TRUE(fs::exists(backups()[0] / "p_hooks_maxabs_MAXABS_HW.npz"));
  EXPECT_TRUE(fs::exists(folder / "p2_hooks_maxabs.json"));
  EXPECT_TRUE(fs::exists(folder / "notes.txt"));
  EXPECT_EQ(read().modules[0].inputs[0][0], 2.0f);
  EXPECT_EQ(read_measurements((backups()[0] / "p").string()).modules[0].inputs[0][0], 1.0f);
}

TEST_F(CalibrationFilesTest, TheBackupIsNamedAsIncNamesItButForColons) {
  measure(1);
  measure(2);
  const std::string name = backups().at(0).filename().string();  // backup_p_dd-mm_HH-MM-SS
  ASSERT_EQ(name.size(), std::string("backup_p_21-11_15-04-59").size());
  EXPECT_EQ(name[11], '-');
  EXPECT_EQ(name[14], '_');
  EXPECT_EQ(name[17], '-');  // other file systems take no colon
  measure(3);
  measure(4);
  EXPECT_EQ(backups().size(), 3u);  // within one second too
}

TEST_F(CalibrationFilesTest, RanksOneAfterTheOtherKeepEachOthersFiles) {
  for (int run = 0; run < 3; ++run) {
    for (const int rank : {1, 0, 2}) measure_rank(rank, 3, static_cast<float>(10 * run + rank + 1));
    for (const int rank : {0, 1, 2}) EXPECT_EQ(amax_of_rank(rank, 3), static_cast<float>(10 * run + rank + 1));
    ASSERT_EQ(backups().size(), static_cast<std::size_t>(run));  // one for each earlier run
    age();
  }
  for (const auto& backup : backups()) EXPECT_EQ(files_in(backup), 9u);
}

TEST_F(CalibrationFilesTest, ARankThatMeasuresAgainTouchesItsOwnFilesOnly) {
  for (int rank = 0; rank < 3; ++rank) measure_rank(rank, 3, static_cast<float>(rank + 1));
  age();
  measure_rank(1, 3, 20);
  EXPECT_EQ(amax_of_rank(0, 3), 1.0f);
  EXPECT_EQ(amax_of_rank(1, 3), 20.0f);
  EXPECT_EQ(amax_of_rank(2, 3), 3.0f);
  ASSERT_EQ(backups().size(), 1u);
  EXPECT_EQ(files_in(backups()[0]), 3u);
  EXPECT_EQ(measure::amax_of_rank(backups()[0], 1, 3), 2.0f);
}

/// The first run lost a rank; in the second one that rank is done before the other begins.
TEST_F(CalibrationFilesTest, ALateRankLeavesWhatAnEarlyOneWrote) {
  measure_rank(0, 2, 1);
  age();
  measure_rank(1, 2, 20);
  age();
  measure_rank(0, 2, 10);
  EXPECT_EQ(amax_of_rank(0, 2), 10.0f);
  EXPECT_EQ(amax_of_rank(1, 2), 20.0f);
}

TEST_F(CalibrationFilesTest, ARunWithOtherRanksBacksUpAllOfTheEarlier) {
  for (int rank = 0; rank < 4; ++rank) measure_rank(rank, 4, 1);
  age();
  measure_rank(1, 2, 5);
  ASSERT_EQ(backups().size(), 1u);
  EXPECT_EQ(files_in(backups()[0]), 12u);
  measure_rank(0, 2, 6);
  EXPECT_EQ(backups().size(), 1u);
  EXPECT_EQ(amax_of_rank(1, 2), 5.0f);
}

TEST_F(CalibrationFilesTest, ARerunAfterACrashKeepsTheNewFilesOfOthers) {
  measure_rank(0, 2, 1);  // rank 1 crashed
  age();
  measure_rank(1, 2, 20);  // the second run: rank 1 is first this time
  measure_rank(0, 2, 10);
  EXPECT_EQ(amax_of_rank(0, 2), 10.0f);
  EXPECT_EQ(amax_of_rank(1, 2), 20.0f);
  ASSERT_EQ(backups().size(), 1u);
  EXPECT_EQ(measure::amax_of_rank(backups()[0], 0, 2), 1.0f);
}

TEST_F(CalibrationFilesTest, ThreadsAsRanksLoseNothing) {
  for (int run = 0; run < 2; ++run) {
    test::on_threads(6, [&](int rank) { measure_rank(rank, 6, static_cast<float>(100 * run + 10 * rank), 5); });
    for (int rank = 0; rank < 6; ++rank)
      EXPECT_EQ(amax_of_rank(rank, 6), static_cast<float>(100 * run + 10 * rank + 4));
    EXPECT_EQ(backups().empty(), run == 0);
    age();
  }
  std::size_t saved = 0;
  for (const auto& backup : backups()) saved += files_in(backup);
  EXPECT_EQ(saved, 18u);
}

TEST_F(CalibrationFilesTest, ProcessesAsRanksLoseNothing) {
  for (int run = 0; run < 3; ++run) {
    std::vector<pid_t> children;
    for (int rank = 0; rank < 4; ++rank) {
      children.push_back(test::start_child([&] {
        if (rank == 3) usleep(30000);  // the late one
        measure_rank(rank, 4, static_cast<float>(100 * run + 10 * rank), 4);
      }));
    }
    for (const pid_t child : children) EXPECT_EQ(test::status_of(child), 0);
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(amax_of_rank(rank, 4), static_cast<float>(100 * run + 10 * rank + 3));
    age();
    ASSERT_EQ(backups().size(), static_cast<std::size_t>(run));
  }
  for (const auto& backup : backups()) EXPECT_EQ(files_in(backup), 12u);
}

TEST_F(CalibrationFilesTest, AFailedWritePutsTheOldFilesBack) {
  measure(1);
  age();
  auto bad = file_of(2);
  bad.modules[0].inputs[0][0] = NAN;  // no JSON can hold it
  EXPECT_THROW(CalibrationFiles(prefix(), {}).write(bad, nullptr), io::Error);
  EXPECT_TRUE(backups().empty());
  EXPECT_EQ(read().modules[0].inputs[0][0], 1.0f);
}

TEST_F(CalibrationFilesTest, WithoutAPrefixNothingIsWritten) {
  EXPECT_TRUE(CalibrationFiles("", {}).write(file_of(1), nullptr).empty());
}

TEST_F(CalibrationFilesTest, AppearEverySoManySamples) {
  auto model = test::tiny_lm();
  const at::Tensor ids = test::token_ids();
  const auto session = CalibrationSession::attach(*model, {.select = {}, .prefix = prefix(), .sample_interval = 50});
  std::map<std::int64_t, std::optional<std::int64_t>> seen;  // before sample n: NumSamples in the file
  for (std::int64_t first = 0; first < 120; first += 8) {
    session->begin_samples(first, 8);
    seen[first] = fs::exists(folder / "p_hooks_maxabs.json") ? read().num_samples : std::nullopt;
    model(ids);
  }
  EXPECT_FALSE(seen[48].has_value());
  EXPECT_EQ(seen[56], 56);
  EXPECT_EQ(seen[96], 56);
  EXPECT_EQ(seen[104], 104);
  finalize_calibration(*model);
  EXPECT_EQ(read().num_samples, 120);
  EXPECT_TRUE(backups().empty());
}

TEST_F(CalibrationFilesTest, AForwardIsASampleForWhoDoesNotCount) {
  auto model = test::tiny_lm();
  const at::Tensor ids = test::token_ids();
  CalibrationSession::attach(*model, {.select = {}, .prefix = prefix(), .sample_interval = 2});
  const auto written = [&] { return fs::exists(folder / "p_hooks_maxabs.json") ? read().num_samples : std::nullopt; };
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
  EXPECT_EQ(test::status_of_child([&] {
              setenv(kFolder, dir.path().c_str(), 1);
              execl("/proc/self/exe", "measure_test", "--gtest_also_run_disabled_tests", filter.c_str(),
                    static_cast<char*>(nullptr));
              return 127;
            }),
            0);
}

std::shared_ptr<CalibrationSession> calibrate_for_ever(std::int64_t rank = -1) {
  const char* folder = std::getenv(kFolder);
  if (folder == nullptr) return nullptr;
  auto* model = new test::TinyLm(test::tiny_lm());  // never destroyed
  CalibrationOptions options{.prefix = std::string(folder) + "/p"};
  if (rank >= 0) options.rank = configs::Rank{static_cast<int>(rank), 2};
  const auto session = CalibrationSession::attach(**model, options);
  (*model)(test::token_ids());
  return session;
}

TEST(CalibrationFilesProgram, DISABLED_Ends) {
  ASSERT_NE(calibrate_for_ever(), nullptr);
  // The child has a copy of the calibration, which is not its to write.
  EXPECT_EQ(test::status_of_child([] { std::exit(0); }), 0);
  EXPECT_TRUE(fs::is_empty(std::getenv(kFolder)));
}

TEST(CalibrationFilesProgram, DISABLED_Discards) {
  const auto session = calibrate_for_ever();
  ASSERT_NE(session, nullptr);
  session->discard();
}

TEST(CalibrationFilesProgram, DISABLED_EndsAsRank0) { ASSERT_NE(calibrate_for_ever(0), nullptr); }
TEST(CalibrationFilesProgram, DISABLED_EndsAsRank1) { ASSERT_NE(calibrate_for_ever(1), nullptr); }

TEST_F(CalibrationFilesTest, AProgramThatEndsKeepsWhatWasMeasured) {
  run_program("Ends", folder);
  EXPECT_EQ(read().modules.size(), 15u);
}

TEST_F(CalibrationFilesTest, ADiscardedCalibrationIsNotWrittenAtTheEnd) {
  run_program("Discards", folder);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST_F(CalibrationFilesTest, ProgramsAsRanksEachKeepTheirs) {
  for (int run = 0; run < 2; ++run) {
    std::thread other([&] { run_program("EndsAsRank1", folder); });
    run_program("EndsAsRank0", folder);
    other.join();
    for (const int rank : {0, 1}) EXPECT_EQ(read_rank(folder.path(), rank, 2).modules.size(), 15u);
    EXPECT_EQ(backups().size(), static_cast<std::size_t>(run));
  }
  EXPECT_EQ(files_in(backups().at(0)), 8u);
}

}  // namespace
}  // namespace fp8::measure
