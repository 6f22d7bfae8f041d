// SPDX-License-Identifier: Apache-2.0
// HPUProfiler where something is in the way: another profiler, a folder, a name; and runs that are short.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fp8/runtime/leaf/leaf.h"
#include "runtime/profile/recorded.h"
#include "support/temp_dir.h"

namespace fp8::runtime {
namespace {

using io::Json;
using test::error_of;
using test::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using trainer::testing::ToyBatches;
using trainer::testing::ToyTask;

TEST(HPUProfiler, FolderThatCannotBeWrittenIsOneWarning) {
  const TempDir folder;
  std::ofstream(folder / "file") << "x";
  auto options = in(folder.path() / "file" / "below");
  std::vector<std::string> warnings;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  auto profiler = std::make_shared<HPUProfiler>(options);
  fit(profiler, 6);  // training continues
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("nothing is recorded: dirpath '"));
  EXPECT_FALSE(leaves_heard());
}

TEST(HPUProfiler, AnotherProfilerOfTheThreadIsAWarning) {
  namespace kineto = torch::autograd::profiler;
  const TempDir folder;
  auto options = in(folder.path());
  options.schedule = ProfileSchedule{.wait = 0, .warmup = 0, .active = 1};
  std::vector<std::string> warnings;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  HPUProfiler first(options), second(options);
  const ProfiledStage running(&first, "fit");
  { const ProfiledStage refused(&second, "fit"); }
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("nothing is recorded"));
}

TEST(HPUProfiler, AProfilerOfAnotherThreadIsAWarning) {
  const TempDir folder;
  auto options = in(folder.path());
  options.schedule = ProfileSchedule{.wait = 0, .warmup = 0, .active = 1};
  std::vector<std::string> warnings;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  HPUProfiler first(options), second(options);
  {
    const ProfiledStage running(&first, "fit");
    std::thread([&] { const ProfiledStage refused(&second, "fit"); }).join();
  }
  EXPECT_THAT(warnings, ElementsAre("[HPUProfiler] nothing is recorded: another HPUProfiler records"));
  EXPECT_EQ(first.traces().size(), 1U);
  EXPECT_TRUE(second.traces().empty());
}

TEST(HPUProfiler, RecordingThatSomebodyElseEndedIsAWarning) {
  const TempDir folder;
  auto options = in(folder.path());
  std::vector<std::string> warnings;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  options.schedule = ProfileSchedule{.wait = 0, .warmup = 0, .active = 1};
  HPUProfiler profiler(options);
  {
    const ProfiledStage stage(&profiler, "fit");
    (void)torch::autograd::profiler::disableProfiler();
  }
  EXPECT_THAT(warnings, ::testing::Contains(HasSubstr("somebody else ended the recording")));
  EXPECT_TRUE(files_of(folder.path()).empty());
}

TEST(HPUProfiler, RankThatCannotBeReadIsAWarning) {
  const TempDir folder;
  auto options = in(folder.path());
  std::vector<std::string> warnings;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  setenv("RANK", "1", 1);
  {
    HPUProfiler profiler(options);
    const ProfiledStage stage(&profiler, "predict", 1);
  }
  unsetenv("RANK");
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("nothing is recorded"));
  EXPECT_THAT(warnings[0], HasSubstr("WORLD_SIZE"));
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

/// All ops of a step with a checkpoint and callbacks belong to a phase.
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

TEST(HPUProfiler, EpochsSayHowManyStepsCome) {
  const TempDir folder;
  auto options = in(folder.path());
  std::vector<std::string> warnings;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
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

}  // namespace
}  // namespace fp8::runtime
