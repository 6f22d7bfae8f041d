// SPDX-License-Identifier: Apache-2.0
// The program ends early, keeps its best checkpoints and logs in other forms, and a killed run ends with the files of
// one that was not.

#include "support/values.h"
#include "tools/commands/train/train_run.h"

namespace fp8 {
namespace {

using test::small_config;

/// A rate at which the loss soon stops falling.
const std::vector<std::string> kWatched =
    args("--eval $HELDOUT --eval-every 2 --patience 3 --save-best 2 --lr 0.3 --steps 40 --save-every 3 --logger csv");

/// Step and eval_loss of the lines that have one.
std::vector<std::pair<std::int64_t, double>> evaluations(const fs::path& out) {
  std::vector<std::pair<std::int64_t, double>> all;
  for (const auto& line : log_of(out))
    if (line.contains("eval_loss")) all.emplace_back(line["step"], line["eval_loss"]);
  return all;
}

/// Columns whose values no clock decides.
std::string timeless_csv(const fs::path& file) {
  std::string text;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) text += line.substr(0, line.find(',', line.find(',') + 1)) + "\n";
  return text;
}

class TrainCallbacks : public test::TrainingFolder {};

TEST_F(TrainCallbacks, PatienceEndsTheRunAndTheBestStay) {
  const auto json = json_of(run_train(folder, "run", kWatched));
  auto found = evaluations(folder / "run");
  double best = std::numeric_limits<double>::infinity();
  int wait = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {  // the rule, once more
    wait = found[i].second < best ? 0 : wait + 1;
    best = std::min(best, found[i].second);
    EXPECT_EQ(wait == 3, i + 1 == found.size()) << i;
  }
  EXPECT_LT(json["steps"], 40);
  EXPECT_EQ(json["steps"], found.back().first);
  EXPECT_THAT(json["stop_reason"].get<std::string>(), HasSubstr("'val_loss' was not better than"));
  EXPECT_EQ(json["eval_loss"], found.back().second);

  std::ranges::sort(found, {}, [](const auto& one) { return one.second; });
  const auto kept = names_in(folder / "run/best");
  ASSERT_EQ(kept.size(), 2u);
  for (const auto& [step, loss] : {found[0], found[1]}) {
    const auto start = "step=" + std::to_string(step) + "-val_loss=";
    const auto name = std::ranges::find_if(kept, [&](const auto& one) { return one.starts_with(start); });
    ASSERT_NE(name, kept.end()) << start;
    EXPECT_NEAR(std::stod(name->substr(start.size())), loss, 1e-4);
    EXPECT_TRUE(fs::exists(folder / "run/best" / *name / "model.safetensors"));
  }
  const auto csv = read_file(folder / "run/metrics.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), json["steps"].get<std::int64_t>() + 1);

  for (const std::size_t lines : {1u, 4u, 7u}) {
    const auto list = arguments(folder, "cut", kWatched);
    run_and_signal(list, folder / "cut", lines, SIGKILL);
    auto again = list;
    again.push_back("--resume");
    const auto resumed = succeeded(run_fp8(again));
    EXPECT_EQ(test::timeless(log_of(folder / "cut")), test::timeless(log_of(folder / "run")));
    EXPECT_EQ(timeless_csv(folder / "cut/metrics.csv"), timeless_csv(folder / "run/metrics.csv"));
    EXPECT_EQ(read_file(folder / "cut/model.safetensors"), read_file(folder / "run/model.safetensors"));
    ASSERT_EQ(names_in(folder / "cut/best"), kept);
    for (const auto& name : kept)
      EXPECT_EQ(read_file(folder / "cut/best" / name / "model.safetensors"),
                read_file(folder / "run/best" / name / "model.safetensors"));
    fs::remove_all(folder / "cut");
  }
}

TEST_F(TrainCallbacks, TimeEndsTheRunAsItsStepsWould) {
  const auto json = json_of(run_train(folder, "run", "--max-time 0.001 --eval $HELDOUT --logger tensorboard"));
  expect_values(json, {{"steps", 1}, {"stop_reason", "max_time"}});
  EXPECT_TRUE(json["eval_loss"].is_number());
  EXPECT_TRUE(fs::exists(folder / "run/model.safetensors"));
  EXPECT_EQ(names_in(folder / "run/tensorboard").size(), 1u);
}

// fp8 train --profile: its trace, that it changes no number, what `fp8 inspect` makes of it; evaluate and measure.

std::vector<fs::path> traces_of(const fs::path& folder) {
  return collected(fs::directory_iterator(folder), [](const auto& entry) { return entry.path(); });
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

class TrainProfile : public test::InFolder {};

TEST_F(TrainProfile, OneTraceOfTheScheduledStepsAndTheSameNumbers) {
  small_config(folder);
  const std::vector<std::string> fp8 = args("--steps 6 --warmup 0 --precision fp8");
  const auto run =
      run_train(folder, "run", "{} --profile {} --profile-schedule 1,1,3 --eval $HELDOUT", fp8, folder / "traces");
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(json_of(run_train(folder, "plain", fp8))["loss"], json_of(run)["loss"]);
  const auto traces = traces_of(folder / "traces");
  ASSERT_EQ(traces.size(), 1U);
  EXPECT_THAT(traces[0].filename().string(), ::testing::MatchesRegex("fit\\.[0-9]+\\.pt\\.trace\\.json"));
  EXPECT_GT(check_lane(traces[0]), 100U);
  const auto json = json_of(run_fp8("inspect {} --html {} --json", traces[0].string(), folder / "page.html"));
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

TEST_F(TrainProfile, AFolderThatCannotBeWrittenIsOneWarning) {
  small_config(folder);
  std::ofstream(folder / "file") << "x";
  const auto run = succeeded(run_train(folder, "run", "--steps 5 --warmup 0 --profile {}", folder / "file" / "below"));
  EXPECT_EQ(run.error_lines(), 1) << run.err;
  EXPECT_THAT(run.err, HasSubstr("fp8: warning: nothing is recorded: dirpath"));
}

TEST_F(TrainProfile, SchedulesThatMeanNothingAreRefused) {
  small_config(folder);
  for (const char* schedule : {"0,0,0", "1,1", "1,1,3,1,1", "a,b,c", "-1,1,1", "1,,1"})
    expect_failed(run_train(folder, "run", "--profile {} --profile-schedule {}", folder / "p", schedule),
                  {"--profile-schedule: found '" + std::string(schedule) + "', allowed: WAIT"}, 2);
  expect_failed(run_train(folder, "run", "--profile-schedule 1,1,1"), {"but no --profile"}, 2);
}

TEST_F(TrainProfile, EvaluateAndMeasure) {
  for (const auto& [samples, whole] : {std::pair("5", test::Words{}), std::pair("2", test::Words{"--whole"})})
    for (const std::string command : {"evaluate", "measure"}) {
      const auto out = folder / (command + samples);
      auto line = args("{} --model $DEMO --data $CALIB --samples {} --batch 1 --seq-len 64 --profile {} --json",
                       command, samples, out);
      if (command == "measure") line = args("{} {} --out {}", line, whole, folder / "stats" / samples);
      const auto run = succeeded(run_fp8(line));
      const auto traces = traces_of(out);
      ASSERT_EQ(traces.size(), 1U);
      EXPECT_THAT(traces[0].filename().string(), HasSubstr(command + "."));
      EXPECT_GT(check_lane(traces[0]), 50U);
      // Too short for the schedule: all of it is recorded, and that is said.
      EXPECT_EQ(run.err.find("all of its 2 steps are recorded") != std::string::npos, !whole.empty());
    }
}

/// A name of the file is text, not something the terminal does.
TEST(InspectTrace, ControlCharactersOfNamesAreSpaces) {
  const test::TempDir folder;
  std::ofstream(folder / "a.trace.json")
      << R"({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a\u001b[31mb", "ts": 0, "dur": 5}]})";
  const auto run = succeeded(run_fp8({"inspect", (folder / "a.trace.json").string()}));
  EXPECT_THAT(run.out, HasSubstr("a [31mb"));
  EXPECT_EQ(run.out.find('\x1b'), std::string::npos);
}

// Optimum's rows of device memory in the log of fp8 train, and what it says where the device's memory is too small.

constexpr const char* kRows[] = {"memory_allocated (GB)", "max_memory_allocated (GB)", "total_memory_available (GB)"};

TEST(TrainMemory, ThreeRowsEveryLoggingSteps) {
  const test::TempDir folder;
  small_config(folder);
  const auto run = succeeded(run_fp8(arguments(folder, "run", "--steps 7 --logging-steps 3 --precision fp8"),
                                     {.environment = {{"FP8_HPU_MEMORY", "1.5G"}}}));
  const auto log = log_of(folder / "run");
  ASSERT_EQ(log.size(), 7u);
  for (std::size_t i = 0; i < log.size(); ++i) {
    for (const char* row : kRows) EXPECT_EQ(log[i].contains(row), i == 2 || i == 5) << row << " of step " << i + 1;
    if (!log[i].contains(kRows[0])) continue;
    const auto gb = [&](const char* key) {
      return std::round(log[i]["memory"][key].get<double>() / (1024.0 * 1024 * 1024) * 100) / 100;
    };
    EXPECT_DOUBLE_EQ(log[i][kRows[0]].get<double>(), gb("in_use"));
    EXPECT_DOUBLE_EQ(log[i][kRows[1]].get<double>(), gb("max"));
    EXPECT_DOUBLE_EQ(log[i][kRows[2]].get<double>(), 1.5);
  }
  const auto on_cpu = succeeded(run_train(folder, "cpu", "--steps 4 --logging-steps 2 --device cpu"));
  for (const auto& entry : log_of(folder / "cpu")) EXPECT_FALSE(entry.contains(kRows[0]));
}

TEST(TrainMemory, HelpNamesTheOption) {
  EXPECT_THAT(run_fp8({"train", "--help-all"}).out, AllOf(HasSubstr("--logging-steps"), HasSubstr("500")));
  expect_failed(run_fp8("train --logging-steps 0"), {"--logging-steps"}, 2);
}

TEST(TrainMemory, WhereItEndsTheLargestOwnersAreNamed) {
  const test::TempDir folder;
  small_config(folder);
  const auto run = run_fp8(arguments(folder, "run", "--batch 64"), {.environment = {{"FP8_HPU_MEMORY", "20M"}}});
  expect_failed(run);
  EXPECT_THAT(run.err, AllOf(HasSubstr("out of memory on hpu:0: tried to allocate"), HasSubstr("largest owners: "),
                             HasSubstr(" MiB in ")));
}

}  // namespace
}  // namespace fp8
