// SPDX-License-Identifier: Apache-2.0
// The program ends early, keeps its best checkpoints and logs in other forms, and a killed run ends with the files of
// one that was not.
#include <limits>

#include "support/names_in.h"
#include "tools/commands/train/train_run.h"

namespace fp8 {
namespace {

namespace fs = std::filesystem;
using test::arguments;
using test::log_of;
using test::names_in;
using test::run_and_signal;
using test::run_train;

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
  const auto run = run_train(folder, "run", kWatched);
  const auto json = json_of(run);
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
    const auto resumed = run_fp8(again);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
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
  const auto run = run_train(folder, "run", "--max-time 0.001 --eval $HELDOUT --logger tensorboard");
  const auto json = json_of(run);
  EXPECT_EQ(json["steps"], 1);
  EXPECT_EQ(json["stop_reason"], "max_time");
  EXPECT_TRUE(json["eval_loss"].is_number());
  EXPECT_TRUE(fs::exists(folder / "run/model.safetensors"));
  EXPECT_EQ(names_in(folder / "run/tensorboard").size(), 1u);
}

TEST_F(TrainCallbacks, WhatCannotBeIsRefused) {
  const auto refused = [&](const std::vector<std::string>& more) {
    const auto run = run_train(folder, "run", more);
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_FALSE(fs::exists(folder / "run"));
    return run.err;
  };
  EXPECT_THAT(refused({"--patience", "3"}), HasSubstr("--patience: found 3, but no --eval"));
  EXPECT_THAT(refused({"--save-best", "3"}), HasSubstr("--save-best: found 3, but no --eval"));
  EXPECT_THAT(refused({"--logger", "wandb"}), HasSubstr("--logger: found 'wandb', allowed: csv, tensorboard"));
  EXPECT_THAT(refused(args("--clip-by value --clip 0")), HasSubstr("--clip-by: found value with --clip 0"));
}

}  // namespace
}  // namespace fp8
