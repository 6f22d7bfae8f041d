// SPDX-License-Identifier: Apache-2.0
// A run goes on as what it was started as, or not at all: what --resume compares, what --overwrite leaves alone, and
// precisions that have a state or a setting of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/commands/train_run.h"

namespace fp8 {
namespace {

namespace fs = std::filesystem;
using test::arguments;
using test::demo;
using test::expect_same_run;
using test::log_of;
using test::read_file;
using test::run_and_signal;
using test::run_fp8;
using test::small_config;
using ::testing::HasSubstr;

TEST(TrainSettings, AnotherRunIsNotOverwrittenOrResumed) {
  const test::TempDir folder;
  small_config(folder);
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--steps", "3", "--warmup", "1"});
    return run_fp8(arguments(folder, "run", more));
  };
  ASSERT_EQ(with({}).code, 0);
  auto run = with({});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("holds a run, allowed: --resume"));
  run = with({"--resume", "--lr", "0.5"});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("key 'lr': the run was started with 0.01, --resume found 0.5"));
  EXPECT_EQ(with({"--resume"}).code, 0);
  EXPECT_EQ(with({"--overwrite", "--lr", "0.5"}).code, 0);
  std::ofstream(folder / "init/precious.txt") << "mine";
  auto list = arguments(folder, "init");
  run = run_fp8(list);
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("is not empty and holds no run of fp8 train"));
  EXPECT_EQ(read_file(folder / "init/precious.txt"), "mine");
}

/// What is behind a path may change while the path stays.
TEST(TrainSettings, ChangedInputsAreNamed) {
  const test::TempDir folder;
  const auto config = small_config(folder) / "config.json";
  const auto text = folder / "text.txt", eval = folder / "eval.txt";
  fs::copy_file(demo("kjv_heldout_16k.txt"), text);
  fs::copy_file(demo("kjv_heldout_16k.txt"), eval);
  const auto train = [&] {
    return run_fp8(arguments(folder, "run",
                             {"--resume", "--steps", "3", "--warmup", "1", "--data", text.string(), "--eval", eval.string()}));
  };
  ASSERT_EQ(train().code, 0);
  const auto message_after = [&](const fs::path& file, const std::string& from, const std::string& to) {
    const auto before = read_file(file);
    auto after = before;
    after.replace(after.find(from), from.size(), to);
    std::ofstream(file) << after;
    const auto run = train();
    std::ofstream(file) << before;
    EXPECT_EQ(run.code, 1);
    EXPECT_EQ(run.error_lines(), 1) << run.err;
    return run.err;
  };
  EXPECT_THAT(message_after(text, "the", "teh"), HasSubstr("train.json: key 'data_fingerprint': the run was started with"));
  EXPECT_THAT(message_after(eval, "the", "teh"), HasSubstr("key 'eval_fingerprint'"));
  EXPECT_THAT(message_after(config, "\"rope_theta\"", "\"rope_theta\": 77.0, \"was\""), HasSubstr("key 'config_fingerprint'"));
  auto spaced = io::read_json(config).dump(1);
  std::ofstream(config) << spaced;
  EXPECT_EQ(train().code, 0);  // the same config, written another way
}

TEST(TrainSettings, OverwriteLeavesARunThatIsGoingOnAlone) {
  const test::TempDir folder;
  small_config(folder);
  const auto list = arguments(folder, "run", {"--steps", "100000"});
  const test::TempDir streams;
  const pid_t child = fork();
  if (child == 0) test::become_fp8(list, {}, (streams / "out").string(), (streams / "err").string());
  for (int i = 0; i < 12000 && log_of(folder / "run").size() < 3; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto other = run_fp8(arguments(folder, "run", {"--overwrite", "--steps", "5"}));
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("log.jsonl: another run is writing it"));
  EXPECT_GE(log_of(folder / "run").size(), 3u);
  kill(child, SIGTERM);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(fs::exists(folder / "run/checkpoints"), true);  // the first run could save
}

TEST(TrainSettings, LossScalingOf16MixedIsLoggedAndResumed) {
  const test::TempDir folder;
  small_config(folder);
  const std::vector<std::string> more = {"--precision", "16-mixed", "--save-every", "7"};
  ASSERT_EQ(run_fp8(arguments(folder, "whole", more)).code, 0);
  const auto log = log_of(folder / "whole");
  for (const auto& line : log) {
    EXPECT_GE(line.at("loss_scale").get<double>(), 1);
    EXPECT_EQ(line.contains("skipped"), line["grad_norm"].is_null());
  }
  auto list = arguments(folder, "cut", more);
  list.push_back("--resume");
  ASSERT_TRUE(WIFSIGNALED(run_and_signal(list, folder / "cut", 18, SIGKILL)));
  ASSERT_EQ(run_fp8(list).code, 0);
  expect_same_run(folder / "whole", folder / "cut");
  const auto state = io::read_json(folder / "cut/checkpoints/step-00000040/trainer_state.json");
  EXPECT_EQ(state.at("grad_scaler").at("scale"), log.back()["loss_scale"]);
}

/// E4M3 reaches 240 on one device and 448 on the other: other scales, other codes.
TEST(TrainSettings, TheDialectIsPartOfTheRun) {
  const test::TempDir folder;
  small_config(folder);
  const auto losses = [&](const char* out, std::vector<std::string> more) {
    more.insert(more.end(), {"--precision", "fp8", "--recipe", "nvidia", "--steps", "6"});
    const auto run = run_fp8(arguments(folder, out, more));
    EXPECT_EQ(run.code, 0) << run.err;
    std::vector<double> found;
    for (const auto& line : log_of(folder / out)) found.push_back(line["loss"].get<double>());
    return found;
  };
  const auto plain = losses("plain", {});
  EXPECT_EQ(losses("gaudi3", {"--dialect", "gaudi3"}), plain);
  EXPECT_EQ(losses("ocp", {"--dialect", "ocp"}), plain);
  const auto gaudi2 = losses("gaudi2", {"--dialect", "gaudi2"});
  ASSERT_EQ(gaudi2.size(), plain.size());
  EXPECT_NE(gaudi2, plain);
  EXPECT_NEAR(gaudi2.back() / plain.back(), 1, 0.01);
  const auto run = run_fp8(arguments(folder, "gaudi2", {"--resume", "--precision", "fp8", "--recipe", "nvidia", "--steps", "6"}));
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("key 'dialect': the run was started with \"gaudi2\", --resume found \"gaudi3\""));
}

}  // namespace
}  // namespace fp8
