// SPDX-License-Identifier: Apache-2.0
// Traces of a small training, read as JSON: what the vendor's examples of its profiler show, and what every event of
// the device's lane must hold.
#include "fp8/runtime/profile/hpu_profiler.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include "runtime/profile/recorded.h"
#include "support/scoped_variable.h"
#include "support/temp_dir.h"

namespace fp8::runtime {
namespace {

using io::Json;
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

}  // namespace
}  // namespace fp8::runtime
