// SPDX-License-Identifier: Apache-2.0
// fp8 train --profile: its trace, that it changes no number, what `fp8 inspect` makes of it; evaluate and measure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "support/temp_dir.h"
#include "support/test_data.h"
#include "tools/commands/train/train_run.h"

namespace fp8 {
namespace {

namespace fs = std::filesystem;
using test::arguments;
using test::demo;
using test::run_fp8;
using test::small_config;
using ::testing::HasSubstr;

std::vector<fs::path> traces_of(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path());
  return found;
}

/// Each event of the lane belongs to something and takes time. Returns how many there are.
std::size_t check_lane(const fs::path& trace) {
  std::size_t count = 0;
  const auto json = io::read_json(trace);
  for (const auto& event : json["traceEvents"]) {
    if (event.value("cat", "") != "hpu_op") continue;
    ++count;
    const auto& args = event["args"];
    EXPECT_FALSE(args["module"].get<std::string>().empty() && args["phase"].get<std::string>().empty()) << event;
    EXPECT_GE(event["dur"].get<double>(), 0) << event;
  }
  return count;
}

TEST(TrainProfile, OneTraceOfTheScheduledStepsAndTheSameNumbers) {
  const test::TempDir folder;
  small_config(folder);
  const std::vector<std::string> fp8 = {"--steps", "6", "--warmup", "0", "--precision", "fp8"};
  auto profiled = fp8;
  profiled.insert(profiled.end(), {"--profile", (folder / "traces").string(), "--profile-schedule", "1,1,3", "--eval",
                                   demo("kjv_heldout_16k.txt")});
  const auto plain = run_fp8(arguments(folder, "plain", fp8)), run = run_fp8(arguments(folder, "run", profiled));
  ASSERT_EQ(plain.code, 0) << plain.err;
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(io::parse_json(plain.out, "stdout")["loss"], io::parse_json(run.out, "stdout")["loss"]);
  const auto traces = traces_of(folder / "traces");
  ASSERT_EQ(traces.size(), 1U);
  EXPECT_THAT(traces[0].filename().string(), ::testing::MatchesRegex("fit\\.[0-9]+\\.pt\\.trace\\.json"));
  EXPECT_GT(check_lane(traces[0]), 100U);
  const auto seen = run_fp8({"inspect", traces[0].string(), "--html", (folder / "page.html").string(), "--json"});
  ASSERT_EQ(seen.code, 0) << seen.err;
  const auto json = io::parse_json(seen.out, "stdout");
  EXPECT_EQ(json["steps"]["count"], 3);
  std::set<std::string> modules, phases;
  for (const auto& row : json["modules"]) modules.insert(row["name"].get<std::string>());
  for (const auto& row : json["phases"]) phases.insert(row["name"].get<std::string>());
  EXPECT_THAT(modules, ::testing::IsSupersetOf({"model.layers.1.mlp.down_proj", "model.layers.0.self_attn",
                                                "model.layers.0.mlp", "model.layers.1.input_layernorm",
                                                "model.layers.1.post_attention_layernorm", "model.layers.0"}));
  EXPECT_THAT(phases, ::testing::IsSupersetOf({"forward", "backward", "clip", "optimizer"}));
  EXPECT_GT(fs::file_size(folder / "page.html"), 4000U);
  EXPECT_THAT(run_fp8({"inspect", traces[0].string()}).out, HasSubstr("hpu::fp8_gemm_v2"));
}

TEST(TrainProfile, AFolderThatCannotBeWrittenIsOneWarning) {
  const test::TempDir folder;
  small_config(folder);
  std::ofstream(folder / "file") << "x";
  const auto run = run_fp8(
      arguments(folder, "run", {"--steps", "5", "--warmup", "0", "--profile", (folder / "file" / "below").string()}));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.error_lines(), 1) << run.err;
  EXPECT_THAT(run.err, HasSubstr("fp8: warning: nothing is recorded: dirpath"));
}

TEST(TrainProfile, SchedulesThatMeanNothingAreRefused) {
  const test::TempDir folder;
  small_config(folder);
  for (const char* schedule : {"0,0,0", "1,1", "1,1,3,1,1", "a,b,c", "-1,1,1", "1,,1"}) {
    const auto run =
        run_fp8(arguments(folder, "run", {"--profile", (folder / "p").string(), "--profile-schedule", schedule}));
    EXPECT_EQ(run.code, 2) << schedule;
    EXPECT_THAT(run.err, HasSubstr("--profile-schedule: found '" + std::string(schedule) + "', allowed: WAIT"));
  }
  const auto run = run_fp8(arguments(folder, "run", {"--profile-schedule", "1,1,1"}));
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr("but no --profile"));
}

TEST(TrainProfile, EvaluateAndMeasure) {
  const test::TempDir folder;
  for (const std::string command : {"evaluate", "measure"}) {
    std::vector<std::string> line = {command,
                                     "--model",
                                     demo("kjv-byte-1.7M"),
                                     "--data",
                                     demo("kjv_calib.txt"),
                                     "--samples",
                                     "5",
                                     "--batch",
                                     "1",
                                     "--seq-len",
                                     "64",
                                     "--profile",
                                     (folder / command).string(),
                                     "--json"};
    if (command == "measure") line.insert(line.end(), {"--out", (folder / "stats").string()});
    const auto run = run_fp8(line);
    ASSERT_EQ(run.code, 0) << run.err;
    const auto traces = traces_of(folder / command);
    ASSERT_EQ(traces.size(), 1U);
    EXPECT_THAT(traces[0].filename().string(), HasSubstr(command + "."));
    EXPECT_GT(check_lane(traces[0]), 50U);
  }
}

TEST(TrainProfile, ShortEvaluationsAreRecordedWhole) {
  const test::TempDir folder;
  for (const std::string command : {"evaluate", "measure"}) {
    std::vector<std::string> line = {command, "--model", demo("kjv-byte-1.7M"), "--data", demo("kjv_calib.txt")};
    line.insert(line.end(), {"--samples", "2", "--batch", "1", "--seq-len", "64"});
    line.insert(line.end(), {"--profile", (folder / command).string(), "--json"});
    if (command == "measure") line.insert(line.end(), {"--whole", "--out", (folder / "stats").string()});
    const auto run = run_fp8(line);
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_THAT(run.err, HasSubstr("all of its 2 steps are recorded"));
    const auto traces = traces_of(folder / command);
    ASSERT_EQ(traces.size(), 1U);
    EXPECT_GT(check_lane(traces[0]), 50U);
  }
}

/// A name of the file is text, not something the terminal does.
TEST(InspectTrace, ControlCharactersOfNamesAreSpaces) {
  const test::TempDir folder;
  std::ofstream(folder / "a.trace.json")
      << R"({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a\u001b[31mb", "ts": 0, "dur": 5}]})";
  const auto run = run_fp8({"inspect", (folder / "a.trace.json").string()});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("a [31mb"));
  EXPECT_EQ(run.out.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace fp8
