// SPDX-License-Identifier: Apache-2.0
// A forked child of a profiled process, and profilers of several threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fp8/runtime/profile/hpu_profiler.h"
#include "fp8/runtime/profile/profiler.h"
#include "runtime/profile/recorded.h"
#include "support/child.h"
#include "support/temp_dir.h"

namespace fp8::runtime {
namespace {

using test::status_of_child;
using test::TempDir;

// The child continues with the profiler that it inherited: it steps, ends the stage, destroys it.
TEST(ProfilersInProcesses, ForkedChildLeavesTheParentsFilesAlone) {
  const TempDir folder;
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
TEST(ProfilersInProcesses, ForkedChildMayBeginAStage) {
  const TempDir folder;
  const int status = status_of_child([&] {
    HPUProfiler profiler(in(folder.path()));
    const ProfiledStage stage(&profiler, "predict", 1);
    (void)torch::ones(4, test::on_hpu()).neg();
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(files_of(folder.path()).size(), 1U);
}

TEST(ProfilersInProcesses, ForkedChildOfASimpleProfiler) {
  const TempDir folder;
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

TEST(ProfilersInProcesses, HabanaProfileOfAnotherThreadWaitsItsTurn) {
  const TempDir folder;
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

TEST(ProfilersInProcesses, HabanaProfilesThatStartAtOnce) {
  const TempDir folder;
  for (int round = 0; round < 10; ++round) {
    std::vector<std::unique_ptr<HabanaProfile>> profiles;
    std::vector<std::thread> threads;
    for (const char* name : {"a", "b"})
      profiles.push_back(std::make_unique<HabanaProfile>(one_step(folder, name + std::to_string(round))));
    for (auto& profile : profiles) threads.emplace_back([&profile] { run(*profile); });
    for (auto& thread : threads) thread.join();
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
