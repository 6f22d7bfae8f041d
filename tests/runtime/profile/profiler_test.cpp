// SPDX-License-Identifier: Apache-2.0
// Names, actions, schedules and wall clock, with a clock that the test turns.
#include "fp8/runtime/profile/profiler.h"

#include "runtime/profile/recorded.h"
#include "support/child.h"
#include "support/scoped_variable.h"
#include "support/temp_dir.h"
#include "support/threads.h"

namespace fp8::runtime {
namespace {

using test::status_of_child;

std::vector<int> phases(const ProfileSchedule& schedule, int steps) {
  std::vector<int> found;
  for (int step = 0; step < steps; ++step) found.push_back(static_cast<int>(phase_of(schedule, step)));
  return found;
}

// Actions of torch.profiler.schedule(wait=, warmup=, active=, repeat=): NONE 0, WARMUP 1, RECORD 2, RECORD_AND_SAVE 3.
TEST(ProfileSchedule, CountsAsTorchDoes) {
  EXPECT_THAT(phases({1, 1, 3, 1}, 8), ElementsAre(0, 1, 2, 2, 3, 0, 0, 0));
  EXPECT_THAT(phases({1, 1, 1, 2}, 8), ElementsAre(0, 1, 3, 0, 1, 3, 0, 0));
  EXPECT_THAT(phases({0, 0, 2, 0}, 5), ElementsAre(2, 3, 2, 3, 2));
  EXPECT_THAT(phases({0, 0, 1, 0}, 3), ElementsAre(3, 3, 3));
}

TEST(ProfileSchedule, ZerosAreRefused) {
  const auto error_for = [](ProfileSchedule s) { return error_of([&] { check(s, "HPUProfiler"); }); };
  EXPECT_THAT(
      error_for({0, 0, 0, 0}),
      HasSubstr("[HPUProfiler] schedule: found wait 0, warmup 0, active 0, repeat 0, allowed: active 1 or more"));
  EXPECT_THAT(error_for({-1, 0, 1, 0}), HasSubstr("wait -1"));
  EXPECT_THAT(error_for({0, 0, std::int64_t{1} << 62, 0}), HasSubstr("allowed"));
  EXPECT_EQ(error_for({0, 0, 1, 0}), "");
}

TEST(Profiler, UnknownNameIsRefusedWithTheList) {
  EXPECT_REFUSED(make_profiler("xla"), "found 'xla', allowed: hpu, pytorch, simple");
  for (const char* name : {"hpu", "pytorch", "simple"}) EXPECT_NE(make_profiler(name), nullptr);
}

TEST(Profiler, ActionsNestAndAreNamedInErrors) {
  for (const char* name : {"hpu", "pytorch", "simple"}) {
    const auto profiler = make_profiler(name);
    EXPECT_REFUSED(profiler->stop("load"), "stop('load'): it does not run");
    profiler->start("load");
    {
      const auto inner = profiler->profile("decode");
      EXPECT_REFUSED(profiler->start("load"), "start('load'): it runs already");
      EXPECT_REFUSED((void)profiler->profile("decode"), "'decode'");
    }
    profiler->start("decode");  // the block's end stopped it
    profiler->stop("load");     // in any order
    profiler->stop("decode");
    EXPECT_REFUSED(profiler->stop("decode"), "'decode'");
    EXPECT_REFUSED(profiler->end_stage(), "no stage runs");
  }
}

TEST(Profiler, ReportNames) {
  EXPECT_EQ((ReportName{"fit", "perf-logs", 17}.text(".pt.trace.json")), "fit-perf-logs.17.pt.trace.json");
  EXPECT_EQ((ReportName{"test", ""}.text(".txt")), "test.txt");
  const test::ScopedVariable rank("RANK", "1"), world("WORLD_SIZE", "2");
  EXPECT_EQ((ReportName{"fit", "perf-logs", 17}.text(".pt.trace.json")), "fit-perf-logs-1.17.pt.trace.json");
}

TEST(SimpleProfiler, WallClockPerAction) {
  double now = 100;
  const test::TempDir folder;
  SimpleProfiler profiler({.dirpath = folder.path().string(), .filename = "times", .seconds = [&] { return now; }});
  for (const char* stage : {"fit", "validate", "test", "predict"}) {
    const ProfiledStage running(&profiler, stage);
    for (const double seconds : {0.25, 0.75}) {
      const auto action = profiler.profile("training_step");
      now += seconds;
    }
  }
  EXPECT_THAT(profiler.durations().at("training_step"), ElementsAre(0.25, 0.75, 0.25, 0.75, 0.25, 0.75, 0.25, 0.75));
  for (const char* stage : {"fit", "validate", "test", "predict"})
    EXPECT_TRUE(std::filesystem::file_size(folder.path() / (std::string(stage) + "-times.txt")) > 0) << stage;
  const std::string text = read_file(folder / "predict-times.txt");
  EXPECT_THAT(text, HasSubstr("Action        | Mean duration (s) | Num calls | Total time (s) | Percentage %\n"));
  EXPECT_THAT(text, HasSubstr("Total         |                   |         8 |        4.00000 |       100.00\n"));
  EXPECT_THAT(text, HasSubstr("training_step |           0.50000 |         8 |        4.00000 |       100.00\n"));
}

TEST(SimpleProfiler, FolderThatCannotBeMadeIsOneWarning) {
  const test::TempDir folder;
  std::ofstream(folder.path() / "file") << "x";
  std::vector<std::string> warnings;
  SimpleProfiler profiler({.dirpath = (folder.path() / "file" / "below").string(),
                           .filename = "t",
                           .warn = [&](const std::string& text) { warnings.push_back(text); }});
  { const ProfiledStage stage(&profiler, "fit"); }
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("below"));
}

TEST(SimpleProfiler, WithoutAFilenameTheTableIsLogged) {
  std::string logged;
  SimpleProfiler profiler({.log = [&](const std::string& text) { logged += text; }});
  {
    const ProfiledStage stage(&profiler, "fit");
    const ProfiledStage inner(&profiler, "validate");  // part of fit
    const auto action = profiler.profile("training_step");
  }
  EXPECT_THAT(logged, HasSubstr("training_step"));
  EXPECT_EQ(logged.find("Action"), logged.rfind("Action"));
}

// A forked child of a profiled process, and profilers of several threads.

using ProfilersInProcesses = InFolder;

// The child continues with the profiler that it inherited: it steps, ends the stage, destroys it.
TEST_F(ProfilersInProcesses, ForkedChildLeavesTheParentsFilesAlone) {
  auto options = in(folder.path());
  options.schedule = ProfileSchedule{.wait = 0, .warmup = 0, .active = 2};
  options.filename = "report";
  auto profiler = std::make_unique<HPUProfiler>(options);
  const auto x = torch::ones(4, test::on_hpu());
  profiler->begin_stage("fit");
  (void)x.neg();
  const int status = status_of_child([&] {
    (void)x.exp();
    profiler->step();
    (void)x.exp();
    profiler->step();
    profiler->end_stage();
    profiler.reset();
    return files_of(folder.path()).empty() ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(files_of(folder.path()).empty());
  profiler->step();
  (void)x.neg();
  profiler->end_stage();
  ASSERT_EQ(profiler->traces().size(), 1U);
  const auto leaves = of_category(events_of(profiler->traces()[0]), "hpu_op");
  ASSERT_EQ(leaves.size(), 2U) << "of the parent alone";
  for (const auto& leaf : leaves) EXPECT_EQ(leaf["name"], "aten::neg");
  EXPECT_EQ(files_of(folder.path()).size(), 2U);  // and the report
}

// A stage that the child begins itself is its own.
TEST_F(ProfilersInProcesses, ForkedChildMayBeginAStage) {
  const int status = status_of_child([&] {
    HPUProfiler profiler(in(folder.path()));
    const ProfiledStage stage(&profiler, "predict", 1);
    (void)torch::ones(4, test::on_hpu()).neg();
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(files_of(folder.path()).size(), 1U);
}

TEST_F(ProfilersInProcesses, ForkedChildOfASimpleProfiler) {
  SimpleProfiler profiler({.dirpath = folder.path().string(), .filename = "times"});
  profiler.begin_stage("fit");
  EXPECT_EQ(status_of_child([&] {
              profiler.end_stage();
              return files_of(folder.path()).empty() ? 0 : 2;
            }),
            0);
  profiler.end_stage();
  EXPECT_EQ(files_of(folder.path()).size(), 1U);
}

HabanaProfileOptions one_step(const TempDir& folder, const std::string& name) {
  return {.active = 1, .name = name, .output_dir = folder.path().string()};
}

void run(HabanaProfile& profile) {
  profile.start();
  (void)torch::ones(4, test::on_hpu()).neg();
  profile.step();
  profile.stop();
}

TEST_F(ProfilersInProcesses, HabanaProfileOfAnotherThreadWaitsItsTurn) {
  HabanaProfile first(one_step(folder, "first")), second(one_step(folder, "second")), third(one_step(folder, "third"));
  first.start();
  std::thread([&] { run(second); }).join();  // warns
  EXPECT_TRUE(first.running());
  EXPECT_FALSE(second.running());
  (void)torch::ones(4, test::on_hpu()).exp();
  first.step();
  first.stop();
  std::thread([&] { run(third); }).join();
  EXPECT_EQ(first.profiler()->traces().size(), 1U);
  EXPECT_TRUE(second.profiler()->traces().empty());
  EXPECT_EQ(third.profiler()->traces().size(), 1U);
}

TEST_F(ProfilersInProcesses, HabanaProfilesThatStartAtOnce) {
  for (int round = 0; round < 10; ++round) {
    std::vector<std::unique_ptr<HabanaProfile>> profiles;
    for (const char* name : {"a", "b"})
      profiles.push_back(std::make_unique<HabanaProfile>(one_step(folder, name + std::to_string(round))));
    test::on_threads(2, [&](int i) { run(*profiles[static_cast<std::size_t>(i)]); });
    std::size_t traces = 0;
    for (auto& profile : profiles) {
      EXPECT_FALSE(profile->running());
      for (const auto& path : profile->profiler()->traces()) {
        ++traces;
        EXPECT_FALSE(events_of(path).empty());
      }
    }
    EXPECT_GE(traces, 1U) << "the one that came first";
  }
  EXPECT_FALSE(leaves_heard());
}

}  // namespace
}  // namespace fp8::runtime
