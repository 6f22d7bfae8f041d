// SPDX-License-Identifier: Apache-2.0
// HPUProfiler where something is in the way: another profiler, a folder, a name; and runs that are short.
#include <torch/csrc/autograd/profiler_kineto.h>

#include "runtime/profile/recorded.h"
#include "runtime/profile/trace_counts.h"

namespace fp8::runtime {
namespace {

using io::Json;
using trainer::testing::ToyBatches;
using trainer::testing::ToyTask;

/// A folder for traces, and what a profiler of `options` warns of.
struct ProfilerWarnings : InFolder {
  static constexpr ProfileSchedule kOneStep = {.wait = 0, .warmup = 0, .active = 1};

  std::vector<std::string> warnings;
  HPUProfilerOptions options = [this] {
    auto all = in(folder.path());
    all.warn = [this](const std::string& text) { warnings.push_back(text); };
    return all;
  }();
};

TEST_F(ProfilerWarnings, FolderThatCannotBeWritten) {
  std::ofstream(folder / "file") << "x";
  options.dirpath = (folder / "file").string() + "/below";
  auto profiler = std::make_shared<HPUProfiler>(options);
  fit(profiler, 6);  // training continues
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("nothing is recorded: dirpath '"));
  EXPECT_FALSE(leaves_heard());
}

TEST_F(ProfilerWarnings, AnotherProfilerOfTheThread) {
  options.schedule = kOneStep;
  HPUProfiler first(options), second(options);
  const ProfiledStage running(&first, "fit");
  { const ProfiledStage refused(&second, "fit"); }
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("nothing is recorded"));
}

TEST_F(ProfilerWarnings, AProfilerOfAnotherThread) {
  options.schedule = kOneStep;
  HPUProfiler first(options), second(options);
  {
    const ProfiledStage running(&first, "fit");
    std::thread([&] { const ProfiledStage refused(&second, "fit"); }).join();
  }
  EXPECT_THAT(warnings, ElementsAre("[HPUProfiler] nothing is recorded: another HPUProfiler records"));
  EXPECT_EQ(first.traces().size(), 1U);
  EXPECT_TRUE(second.traces().empty());
}

TEST_F(ProfilerWarnings, RecordingThatSomebodyElseEnded) {
  options.schedule = kOneStep;
  HPUProfiler profiler(options);
  test::within(ProfiledStage(&profiler, "fit"), [&] { (void)torch::autograd::profiler::disableProfiler(); });
  EXPECT_THAT(warnings, ::testing::Contains(HasSubstr("somebody else ended the recording")));
  EXPECT_TRUE(files_of(folder.path()).empty());
}

TEST_F(ProfilerWarnings, RankThatCannotBeRead) {
  setenv("RANK", "1", 1);
  {
    HPUProfiler profiler(options);
    const ProfiledStage stage(&profiler, "predict", 1);
  }
  unsetenv("RANK");
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], AllOf(HasSubstr("nothing is recorded"), HasSubstr("WORLD_SIZE")));
}

TEST(HPUProfiler, NamesWithQuotesAndLineBreaks) {
  const TempDir folder;
  HPUProfiler profiler(in(folder.path()));
  const auto x = torch::ones(1, test::on_hpu());
  {
    const ProfiledStage stage(&profiler, "predict", 1);
    const auto action = profiler.profile("my \"own\"\taction\\");
    const LeafScope leaf("my::\"op\"\x01", x);
  }
  const Json events = events_of(profiler.traces().at(0));
  EXPECT_TRUE(names_of(of_category(events, "hpu_op")).contains("my::'op'/"));
  EXPECT_TRUE(names_of(of_category(events, "user_annotation")).contains("[pl][profile]my 'own'/action/"));
}

TEST(HPUProfiler, CheckpointsAndCallbacksArePhases) {
  struct Callback final : trainer::TrainerCallback {
    void on_step_end(trainer::Trainer&, const trainer::StepReport&) override {
      (void)torch::ones(2, test::on_hpu()).add(1);
    }
  };
  const TempDir folder;
  auto profiler = std::make_shared<HPUProfiler>(in(folder.path() / "traces"));
  ToyTask task(1, test::kHpu);
  ToyBatches train(10, 2);
  trainer::TrainerOptions options{.max_steps = 5, .checkpoint_root = folder / "checkpoints", .save_every_n_steps = 3};
  options.profiler = profiler;
  trainer::Trainer(options, {std::make_shared<Callback>()}).fit(task, train);
  std::set<std::string> phases;
  for (const auto& leaf : of_category(events_of(profiler->traces().at(0)), "hpu_op"))
    phases.insert(leaf["args"]["phase"].get<std::string>());
  EXPECT_THAT(phases, ::testing::IsSupersetOf({"checkpoint", "callbacks"}));
  EXPECT_FALSE(phases.contains(""));
}

TEST_F(ProfilerWarnings, EpochsSayHowManyStepsCome) {
  ToyTask task(1, test::kHpu);
  ToyBatches train(6, 2);  // 3 batches: 2 steps
  trainer::Trainer({.max_epochs = 2, .accumulate_grad_batches = 2, .profiler = std::make_shared<HPUProfiler>(options)})
      .fit(task, train);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("all of its 4 steps are recorded"));
}

TEST(HPUProfiler, BadOptionsAreNamed) {
  const auto with = [](auto set) {
    HPUProfilerOptions o;
    set(o);
    return error_of([&] { HPUProfiler profiler(o); });
  };
  EXPECT_THAT(with([](auto& o) { o.schedule = ProfileSchedule{0, 0, 0, 0}; }), HasSubstr("schedule: found wait 0"));
  EXPECT_THAT(with([](auto& o) { o.sort_by_key = "cuda_time"; }), HasSubstr("sort_by_key: found 'cuda_time', allowed"));
  EXPECT_THAT(with([](auto& o) { o.activities.clear(); }), HasSubstr("activities"));
  EXPECT_THAT(with([](auto& o) { o.row_limit = -2; }), HasSubstr("row_limit: found -2"));
  EXPECT_THAT(with([](auto& o) { o.most_host_events = 0; }),
              HasSubstr("most_host_events: found 0, allowed: 1 or more"));
}

// One step without end: what a recording keeps of it, what it says of the rest, and that memory stays within a bound
// that the step's length has no part in. Traces are read back as streams: they are larger than that bound.

/// Of this process, in MiB: "VmRSS", and "VmHWM", its peak.
std::int64_t memory(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) / 1024;
  return -1;
}

/// Runs f() in a stage of one step. Returns by how many MiB the process has grown at most, its trace written.
template <class F>
std::int64_t recorded(HPUProfiler& profiler, F&& f) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak is what is in use now
  const auto before = memory("VmRSS");
  test::within(ProfiledStage(&profiler, "predict", 1), [&] { f(); });
  return memory("VmHWM") - before;
}

using BoundedTrace = ProfilerWarnings;

// A leaf is 56 bytes in the log, and two or three activities of 32 with Kineto's pointers to them: 2^20 of them stay
// under 300 MiB, whatever comes after them.
TEST_F(BoundedTrace, AMillionLeavesOfOneStep) {
  HPUProfiler profiler(in(folder.path()));
  const auto x = torch::ones(1, test::on_hpu());
  constexpr std::int64_t kMost = LeafLog::kMostLeaves, kMore = 100000;
  const auto growth = recorded(profiler, [&] {
    for (std::int64_t i = 0; i < kMost + kMore; ++i) const LeafScope leaf("my::op", x);
  });
  EXPECT_LT(growth, 300);
  const auto trace = counted(profiler.traces().at(0));
  EXPECT_EQ(trace.events.at("hpu_op X"), kMost);
  EXPECT_EQ(trace.numbers.at("leavesLeftOut"), kMore);
  EXPECT_EQ(profiler.leaves().total().count, kMost);
  EXPECT_EQ(profiler.leaves().dropped(), kMore);
}

// With shapes and allocations an operation's events take about 6 kB: 1.2 GB without a limit.
TEST_F(BoundedTrace, OperationsOfOneStep) {
  options.profile_memory = options.record_shapes = true;
  options.most_host_events = 20000;
  options.schedule = ProfileSchedule{.wait = 0, .warmup = 0, .active = 2};
  HPUProfiler profiler(options);
  const auto x = torch::ones(1, test::on_hpu());
  constexpr std::int64_t kMany = 200000;
  bool ends = false;
  const auto growth = recorded(profiler, [&] {
    for (std::int64_t i = 0; i < kMany; ++i) (void)x.neg();
    profiler.step();
    ends = !leaves_heard();
  });
  EXPECT_LT(growth, 300);
  EXPECT_TRUE(ends) << "a second step is recorded";
  const auto trace = counted(profiler.traces().at(0));
  EXPECT_EQ(trace.events.at("hpu_op X"), kMany);
  EXPECT_LE(trace.events.at("cpu_op X"), 10000);  // half of the limit, for allocations are asked for
  EXPECT_GE(trace.events.at("cpu_op X"), 9990);
  EXPECT_LE(trace.events.at("cpu_instant_event i"), 4 * 10001);
  const auto left_out = trace.numbers.at("hostEventsLeftOut");
  EXPECT_NEAR(static_cast<double>(left_out), kMany - 10000, 10);
  EXPECT_THAT(warnings, ElementsAre("[HPUProfiler] predict: " + std::to_string(left_out) +
                                    " events of the host beyond the first 10000 are not in the trace, nor is what "
                                    "follows their step"));
}

// Each of its nodes has the callbacks that forward's thread had as backward began: its first event is kept.
TEST_F(BoundedTrace, LimitThatBackwardMeets) {
  options.most_host_events = 3000;
  options.schedule = kOneStep;
  HPUProfiler profiler(options);
  const auto x = torch::ones(1, test::on_hpu()).requires_grad_();
  recorded(profiler, [&] {
    auto y = x;
    for (int i = 0; i < 2000; ++i) y = y.sin();
    y.sum().backward();
  });
  const auto trace = counted(profiler.traces().at(0));
  EXPECT_LE(trace.events.at("cpu_op X"), 3000 + 2010);
  EXPECT_GE(trace.events.at("cpu_op X"), 2990);
  EXPECT_GT(trace.numbers.at("hostEventsLeftOut"), 2 * 2000U);
  EXPECT_GE(trace.events.at("hpu_op X"), 3 * 2000) << "sin; cos and mul";
  EXPECT_EQ(warnings.size(), 1U);
}

TEST_F(BoundedTrace, WithoutALimitMetNothingIsSaid) {
  options.schedule = kOneStep;
  HPUProfiler profiler(options);
  recorded(profiler, [] { (void)torch::ones(1, test::on_hpu()).neg(); });
  EXPECT_TRUE(warnings.empty());
  const auto trace = counted(profiler.traces().at(0));
  EXPECT_FALSE(trace.numbers.contains("hostEventsLeftOut") || trace.numbers.contains("leavesLeftOut"));
}

}  // namespace
}  // namespace fp8::runtime
