// SPDX-License-Identifier: Apache-2.0
// Traces and activations that are computed again, on two ranks: the weights of a run without either, bit for bit, and a
// trace for each rank that names its collectives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "tools/commands/train/train_ranks_run.h"

namespace fp8 {
namespace {

namespace fs = std::filesystem;
using test::arguments;
using test::expect_trained;
using test::RankProcesses;
using test::read_file;
using test::run_fp8;
using test::small_config;

/// By rank, as the names say: fit-<rank>.<nanoseconds>.pt.trace.json.
std::map<std::string, fs::path> traces_of(const fs::path& folder) {
  std::map<std::string, fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(found.emplace(name.substr(0, name.find('.')), entry.path()).second) << name;
  }
  return found;
}

/// The names of the events that took time, and how many of each.
std::map<std::string, int> events_of(const fs::path& trace) {
  std::map<std::string, int> found;
  const auto json = io::read_json(trace);
  for (const auto& event : json["traceEvents"])
    if (event.value("ph", "") == "X") ++found[event.value("name", "")];
  return found;
}

/// Steps 3 to 5 of 6 are recorded.
TEST(TrainRanksTrace, OneForEachRankWithItsCollectivesAndTheSameWeights) {
  const test::TempDir folder;
  small_config(folder);
  const std::map<std::string, std::string> sends = {{"hpu_ddp", "c10d::allreduce_"}, {"fast_ddp", "gloo:all_reduce"}};
  for (const auto& [strategy, call] : sends) {
    const auto train = [&](const std::string& name, std::vector<std::string> more) {
      more.insert(more.end(), {"--strategy", strategy, "--precision", "fp8", "--steps", "6", "--warmup", "0"});
      expect_trained(RankProcesses(arguments(folder, strategy + name, more), 2));
      return read_file(folder / (strategy + name) / "model.safetensors");
    };
    const std::string plain = train("", {});
    ASSERT_FALSE(plain.empty());
    EXPECT_TRUE(plain == train("-again", {"--activation-checkpointing"})) << strategy;
    const auto traces = folder / (strategy + "-traces");
    EXPECT_TRUE(plain == train("-traced", {"--activation-checkpointing", "--profile", traces.string()})) << strategy;
    const auto by_rank = traces_of(traces);
    ASSERT_EQ(by_rank.size(), 2U);
    for (const int rank : {0, 1}) {
      const auto trace = by_rank.at("fit-" + std::to_string(rank));
      const auto events = events_of(trace);
      EXPECT_GE(events.contains(call) ? events.at(call) : 0, 3) << strategy << ": " << call << " in " << trace;
      EXPECT_EQ(events.contains("ProfilerStep#2"), true) << trace;
      const auto seen = run_fp8({"inspect", trace.string(), "--json"});
      ASSERT_EQ(seen.code, 0) << seen.err;
      EXPECT_EQ(io::parse_json(seen.out, "stdout")["steps"]["count"], 3);
    }
  }
}

}  // namespace
}  // namespace fp8
