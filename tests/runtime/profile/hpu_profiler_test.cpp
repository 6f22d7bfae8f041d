// SPDX-License-Identifier: Apache-2.0
// Traces of a small training, read as JSON: what the vendor's examples of its profiler show, and what every event of
// the device's lane must hold.
#include "fp8/runtime/profile/hpu_profiler.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include "runtime/profile/recorded.h"
#include "support/child.h"
#include "support/scoped_variable.h"
#include "support/threads.h"

namespace fp8::runtime {
namespace {

using io::Json;
using test::status_of_child;
using trainer::testing::ToyBatches;
using trainer::testing::ToyTask;

TEST(HPUProfiler, DefaultWritesATraceAtTheEndOfFit) {
  const TempDir folder;
  auto profiler = std::make_shared<HPUProfiler>(in(folder.path()));
  fit(profiler, 6);
  const auto files = files_of(folder.path());
  ASSERT_EQ(files.size(), 1U);
  EXPECT_THAT(files[0].filename().string(), ::testing::MatchesRegex("fit\\.[0-9]+\\.pt\\.trace\\.json"));
  EXPECT_THAT(profiler->traces(), ElementsAre(files[0].string()));
  const Json events = events_of(files[0]);
  const auto steps = of_category(events, "user_annotation");
  EXPECT_THAT(names_of(steps), ::testing::IsSupersetOf({"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4",
                                                        "[pl][profile]training_step", "[pl][profile]backward",
                                                        "[pl][profile]optimizer_step"}));
  EXPECT_FALSE(names_of(steps).contains("ProfilerStep#1")) << "a warm-up";
  EXPECT_FALSE(names_of(steps).contains("ProfilerStep#5")) << "the schedule ran once";
}

TEST(HPUProfiler, EventsOfTheLane) {
  const TempDir folder;
  auto profiler = std::make_shared<HPUProfiler>(in(folder.path()));
  fit(profiler, 6);
  const Json events = events_of(profiler->traces().at(0));
  const auto leaves = of_category(events, "hpu_op");
  ASSERT_FALSE(leaves.empty());
  std::map<std::int64_t, Json> ops;
  for (const auto& event : events)
    if (event["ph"] == "X" && event.contains("args") && event["args"].contains("External id") &&
        (event["cat"] == "cpu_op" || event["cat"] == "user_annotation"))
      ops[event["args"]["External id"].get<std::int64_t>()] = event;
  std::set<std::string> phases;
  for (const auto& leaf : leaves) {
    const auto& args = leaf["args"];
    phases.insert(args["phase"].get<std::string>());
    EXPECT_FALSE(args["module"].get<std::string>().empty() && args["phase"].get<std::string>().empty()) << leaf;
    EXPECT_GE(leaf["dur"].get<double>(), 0) << leaf;
    EXPECT_EQ(args["stream"], 0);
    EXPECT_EQ(args["Input type"].size(), args["Input Dims"].size());
    const auto op = ops.find(args.value("External id", std::int64_t{-1}));
    ASSERT_NE(op, ops.end()) << leaf;
    const double begin = op->second["ts"], end = begin + op->second["dur"].get<double>();
    EXPECT_GE(leaf["ts"].get<double>(), begin - 0.002) << leaf << op->second;
    EXPECT_LE(leaf["ts"].get<double>() + leaf["dur"].get<double>(), end + 0.002) << leaf << op->second;
  }
  EXPECT_THAT(phases, ::testing::IsSupersetOf({"forward", "backward", "clip", "optimizer"}));
  const auto process = std::ranges::find_if(
      events, [](const Json& e) { return e["ph"] == "M" && e["name"] == "process_name" && e["pid"] == 0; });
  ASSERT_NE(process, events.end());
  EXPECT_EQ((*process)["args"]["name"], "hpu 0 (emulated GAUDI3)");
  std::map<std::string, int> arrows;
  for (const auto& event : events)
    if (event.value("cat", "") == "ac2g") ++arrows[event["ph"].get<std::string>()];
  EXPECT_EQ(arrows["s"], arrows["f"]);
  EXPECT_EQ(arrows["f"], static_cast<int>(leaves.size()));
}

TEST(HPUProfiler, FlopsAndBytesOfAProduct) {
  const TempDir folder;
  HPUProfiler profiler(in(folder.path()));
  const auto a = torch::randn({8, 32}, test::on_hpu()), b = torch::randn({32, 16}, test::on_hpu());
  {
    const ProfiledStage stage(&profiler, "predict", 1);
    const PhaseScope phase("predict");
    (void)at::mm(a, b);
  }
  const auto leaves = of_category(events_of(profiler.traces().at(0)), "hpu_op");
  ASSERT_EQ(leaves.size(), 1U);
  EXPECT_EQ(leaves[0]["name"], "aten::mm");
  EXPECT_EQ(leaves[0]["args"]["flops"], 2 * 8 * 32 * 16);
  EXPECT_EQ(leaves[0]["args"]["bytes"], 4 * (8 * 32 + 32 * 16 + 8 * 16));
  EXPECT_EQ(leaves[0]["args"]["Input Dims"], Json::parse("[[8, 32], [32, 16]]"));
  EXPECT_EQ(leaves[0]["args"]["Input type"], Json::parse(R"(["Float", "Float"])"));
  EXPECT_EQ(profiler.leaves().total().flops, 2 * 8 * 32 * 16);
  EXPECT_THAT(profiler.summary(), HasSubstr("aten::mm"));
}

TEST(HPUProfiler, MemoryAndValuesOnRequest) {
  const TempDir folder;
  auto options = in(folder.path());
  options.profile_memory = options.record_values = true;
  HPUProfiler profiler(options);
  const auto x = torch::ones({64, 64}, test::on_hpu());
  {
    const ProfiledStage stage(&profiler, "predict", 1);
    const auto y = x.add(1), z = y.mul(2);
  }
  const Json events = events_of(profiler.traces().at(0));
  std::set<std::int64_t> counts;
  for (const auto& event : events)
    if (event["ph"] == "C") counts.insert(event["args"]["bytes"].get<std::int64_t>());
  ASSERT_EQ(counts.size(), 2U);  // of one leaf each
  EXPECT_EQ(*counts.rbegin() - *counts.begin(), 64 * 64 * 4);
}

TEST(HPUProfiler, NumberOfTheRankInTheName) {
  const TempDir folder;
  auto options = in(folder.path());
  options.filename = "perf-logs";
  options.clock_ns = [] { return std::int64_t{1700000000000000017}; };
  const test::ScopedVariable rank("RANK", "1"), world("WORLD_SIZE", "2");
  fit(std::make_shared<HPUProfiler>(options), 5);
  const auto files = files_of(folder.path());
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].filename(), "fit-perf-logs-1.1700000000000000017.pt.trace.json");
  EXPECT_EQ(files[1].filename(), "fit-perf-logs-1.txt");
}

/// The documents' MyModel: it refers to the profiler and names its own actions.
class MyModel : public ToyTask {
 public:
  explicit MyModel(std::shared_ptr<Profiler> profiler) : ToyTask(1, test::kHpu), profiler_(std::move(profiler)) {}
  at::Tensor training_step(const trainer::Batch& batch, std::int64_t index) override {
    {
      const auto action = profiler_->profile("my_custom_action");
      (void)torch::ones(2, test::on_hpu()).add(1);
    }
    profiler_->start("my_other_action");
    const auto loss = ToyTask::training_step(batch, index);
    profiler_->stop("my_other_action");
    return loss;
  }

 private:
  std::shared_ptr<Profiler> profiler_;
};

TEST(HPUProfiler, OwnActions) {
  const TempDir folder;
  auto profiler = std::make_shared<HPUProfiler>(in(folder.path()));
  MyModel model(profiler);
  ToyBatches train(12, 2);
  trainer::Trainer({.max_steps = 6, .profiler = profiler}).fit(model, train);
  const Json events = events_of(profiler->traces().at(0));
  const auto names = names_of(of_category(events, "user_annotation"));
  EXPECT_TRUE(names.contains("[pl][profile]my_custom_action"));
  EXPECT_TRUE(names.contains("[pl][profile]my_other_action"));
}

TEST(HPUProfiler, AnotherAcceleratorHasHostEventsOnly) {
  const TempDir folder;
  auto profiler = std::make_shared<HPUProfiler>(in(folder.path()));
  fit(profiler, 6, at::kCPU);
  const Json events = events_of(profiler->traces().at(0));
  EXPECT_FALSE(of_category(events, "cpu_op").empty());
  EXPECT_TRUE(of_category(events, "hpu_op").empty());
  auto options = in(folder.path() / "cpu");
  options.activities = {ProfilerActivity::CPU};
  profiler = std::make_shared<HPUProfiler>(options);
  fit(profiler, 6);
  const Json of_hpu = events_of(profiler->traces().at(0));
  EXPECT_FALSE(of_category(of_hpu, "cpu_op").empty());
  EXPECT_TRUE(of_category(of_hpu, "hpu_op").empty()) << "only CPU was asked for";
  EXPECT_EQ(profiler->summary(), "no operation on hpu was recorded\n");
}

TEST(HPUProfiler, ScheduleRepeatsAndShortRunsAreRecordedWhole) {
  const TempDir folder;
  auto options = in(folder.path());
  options.schedule = ProfileSchedule{.wait = 1, .warmup = 1, .active = 1, .repeat = 2};
  std::int64_t now = 0;
  options.clock_ns = [&] { return ++now; };
  auto profiler = std::make_shared<HPUProfiler>(options);
  fit(profiler, 9);
  ASSERT_EQ(profiler->traces().size(), 2U);
  EXPECT_TRUE(names_of(of_category(events_of(profiler->traces()[0]), "user_annotation")).contains("ProfilerStep#2"));
  EXPECT_TRUE(names_of(of_category(events_of(profiler->traces()[1]), "user_annotation")).contains("ProfilerStep#5"));

  std::vector<std::string> warnings;
  options.schedule.reset();
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  profiler = std::make_shared<HPUProfiler>(options);
  fit(profiler, 2);
  ASSERT_EQ(profiler->traces().size(), 1U);
  EXPECT_TRUE(names_of(of_category(events_of(profiler->traces()[0]), "user_annotation")).contains("ProfilerStep#0"));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("all of its 2 steps are recorded"));

  options.schedule = ProfileSchedule{.wait = 10, .warmup = 0, .active = 1};
  profiler = std::make_shared<HPUProfiler>(options);
  fit(profiler, 2);
  EXPECT_TRUE(profiler->traces().empty());
  EXPECT_THAT(warnings.back(), HasSubstr("ended after 2 steps, before the schedule's first that is recorded (10)"));
}

TEST(HPUProfiler, ModulesAndSummaries) {
  const TempDir folder;
  auto options = in(folder.path());
  options.record_module_names = options.group_by_input_shapes = true;
  HPUProfiler profiler(options);
  const std::string path = "model.layers.0.mlp";
  const auto x = torch::randn({4, 4}, test::on_hpu());
  {
    const ProfiledStage stage(&profiler, "predict", 1);
    const PhaseScope phase("forward");
    const ModuleScope module(path, "Mlp");
    (void)at::mm(x, x);
    (void)x.add(1);
  }
  const Json events = events_of(profiler.traces().at(0));
  EXPECT_TRUE(names_of(of_category(events, "user_annotation")).contains("[pl][module]Mlp: model.layers.0.mlp"));
  for (const auto& leaf : of_category(events, "hpu_op")) EXPECT_EQ(leaf["args"]["module"], path);
  EXPECT_THAT(profiler.summary(), HasSubstr("aten::mm [4, 4] [4, 4]"));
  EXPECT_THAT(profiler.summary(), HasSubstr("forward;model;layers;0;mlp;aten::mm"));
  const auto rows = profiler.leaves().rows(SummaryBy::module);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].second.count, 2);
  profiler.export_flame_graph((folder / "flame.txt").string());
  std::ifstream file(folder / "flame.txt");
  std::string line;
  while (std::getline(file, line))
    EXPECT_THAT(line, ::testing::MatchesRegex("forward;model;layers;0;mlp;aten::[A-Za-z.]+ [0-9]+"));
}

TEST(HabanaProfile, RecordsItsActiveStepsAndStopsAnother) {
  const TempDir folder;
  const auto options = [&](const char* name, std::int64_t active) {
    return HabanaProfileOptions{
        .wait = 1, .warmup = 1, .active = active, .name = name, .output_dir = folder.path().string()};
  };
  const auto x = torch::ones(4, test::on_hpu());
  HabanaProfile none(options("none", 0)), first(options("first", 2)), second(options("second", 1));
  none.start();
  none.step();
  none.stop();
  EXPECT_FALSE(none.running());
  first.start();
  for (int i = 0; i < 3; ++i) {
    (void)x.neg();
    first.step();
  }
  second.start();  // the first had one of its two steps
  EXPECT_FALSE(first.running());
  for (int i = 0; i < 5; ++i) {
    (void)x.exp();
    second.step();
  }
  second.stop();
  second.stop();
  ASSERT_EQ(first.profiler()->traces().size(), 1U);
  ASSERT_EQ(second.profiler()->traces().size(), 1U);
  EXPECT_EQ(names_of(of_category(events_of(first.profiler()->traces()[0]), "hpu_op")).count("aten::neg"), 1U);
  const auto leaves = of_category(events_of(second.profiler()->traces()[0]), "hpu_op");
  ASSERT_EQ(leaves.size(), 1U);
  EXPECT_EQ(leaves[0]["name"], "aten::exp");
}

// One kind and 56 bytes more each: what a trace of a million leaves takes.
TEST(LeafLog, IsBounded) {
  LeafLog log({}, 1000);
  {
    const Listening listening(log);
    const auto x = torch::ones(1, test::on_hpu());
    for (int i = 0; i < 1500; ++i) const LeafScope leaf("my::op", x);
  }
  EXPECT_EQ(log.leaves().size(), 1000U);
  EXPECT_EQ(log.dropped() + log.leaves().size(), 1501U);  // ones() is one too
  EXPECT_EQ(sizeof(LoggedLeaf), 56U);
  std::set<const LeafKind*> kinds;
  for (const auto& leaf : log.leaves()) kinds.insert(leaf.kind);
  EXPECT_EQ(kinds.size(), 2U);
}

// Names, actions, schedules and wall clock, with a clock that the test turns.

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
