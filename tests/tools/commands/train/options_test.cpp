// SPDX-License-Identifier: Apache-2.0
// Files of Optimum Habana as options: which of command line and files counts, and what a file is refused for.

#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/train/train_options.h"
#include "fp8/tools/commands/work/snapshots.h"
#include "support/command.h"
#include "support/golden.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

struct GaudiOptions : ::testing::Test {
  std::string write(const char* name, const std::string& text) {
    const auto path = folder_ / name;
    std::ofstream(path) << text;
    return path.string();
  }
  std::string arguments(const std::string& text) { return write("a.json", text); }
  std::string gaudi(const std::string& text) { return write("gaudi_config.json", text); }

  /// Takes these options and those that `fp8 train` needs. Returns the message of the error, or "".
  std::string take(std::vector<std::string> words) {
    app_.emplace("", "train");
    app_->allow_extras();
    options_.emplace(*app_);
    values_ = {};
    context_ = {};
    const Action action = add_train(*options_);
    options_->common(context_);
    words = args("{} --init c.json --data t.txt --out run --quiet", words);
    std::reverse(words.begin(), words.end());  // as CLI11 wants a vector
    train_model.provide([this](const TrainOptions& options, Context&) { values_ = options; });
    return error_of([&] {
      app_->parse(std::move(words));
      options_->check();
      options_->prepared(context_);
      action(context_);
    });
  }
  void TearDown() override { train_model = {}; }

  test::TempDir folder_;
  std::optional<CLI::App> app_;
  std::optional<Options> options_;
  TrainOptions values_;
  Context context_;
};

TEST_F(GaudiOptions, WithoutFilesNothingChanges) {
  EXPECT_EQ(take({"--batch", "3"}), "");
  EXPECT_EQ(values_.batch, 3);
  EXPECT_EQ(values_.optimizer.lr, 1e-3);
  EXPECT_EQ(values_.precision, "bf16-mixed");
}

TEST_F(GaudiOptions, ArgumentsAndTheirDefaultsCount) {
  const auto file = arguments(R"({"per_device_train_batch_size": 4, "use_habana": true, "max_steps": 7})");
  EXPECT_EQ(take({"--training-args", file}), "");
  EXPECT_EQ(values_.batch, 4);
  EXPECT_EQ(values_.optimizer.steps, 7);
  EXPECT_EQ(values_.optimizer.lr, 5e-5);
  EXPECT_EQ(values_.optimizer.eps, 1e-6);
  EXPECT_EQ(values_.optimizer.schedule, OptimizerSettings::Schedule::linear);
  EXPECT_EQ(values_.optimizer.warmup_from, 0);
  EXPECT_EQ(values_.precision, "32-true");
  EXPECT_EQ(context_.seed, 42u);
  EXPECT_TRUE(values_.whole_time);
  EXPECT_EQ(options_->source_of("--batch"), file + ": key 'per_device_train_batch_size'");
  EXPECT_EQ(options_->source_of("--lr"), file + ": key 'learning_rate' (default)");
}

TEST_F(GaudiOptions, TheCommandLineWins) {
  const auto file = arguments(R"({"per_device_train_batch_size": 4, "learning_rate": 0.5, "save_strategy": "epoch",
      "fp8": true, "minimize_memory": true, "ddp_bucket_cap_mb": 25, "resume_from_checkpoint": true})");
  EXPECT_EQ(take(args("--training-args {} --batch 9 --steps 5 --save-every 2 --precision bf16-mixed --strategy "
                      "hpu_parallel --overwrite --seed 3",
                      file)),
            "");
  EXPECT_EQ(values_.batch, 9);
  EXPECT_EQ(values_.optimizer.lr, 0.5);
  EXPECT_EQ(values_.epochs, 0);  // --steps instead
  EXPECT_FALSE(values_.save_each_epoch);
  EXPECT_EQ(values_.recipe, "");  // of fp8
  EXPECT_FALSE(values_.minimize_memory);
  EXPECT_EQ(options_->source_of("--bucket-cap-mb"), "default");
  EXPECT_FALSE(values_.resume);
  EXPECT_EQ(context_.seed, 3u);
}

TEST_F(GaudiOptions, ARunFileWins) {
  const auto run = write("run.yaml", "trainer:\n  max_steps: 5\nfp8:\n  batch: 9\n");
  const auto file = arguments(R"({"per_device_train_batch_size": 4, "learning_rate": 0.5, "num_train_epochs": 2})");
  EXPECT_EQ(take({"--training-args", file, "--config", run}), "");
  EXPECT_EQ(values_.batch, 9);
  EXPECT_EQ(values_.optimizer.steps, 5);
  EXPECT_EQ(values_.epochs, 0);
  EXPECT_EQ(values_.optimizer.lr, 0.5);
}

TEST_F(GaudiOptions, Fp8HasOptimumsRecipe) {
  EXPECT_EQ(take({"--training-args", arguments(R"({"fp8": true, "minimize_memory": true})")}), "");
  EXPECT_EQ(values_.precision, "fp8");
  EXPECT_THAT(values_.recipe, HasSubstr("\"interval\": 16"));
  EXPECT_TRUE(values_.minimize_memory);
}

TEST_F(GaudiOptions, EitherFileTurnsAutocastOn) {
  const auto config = gaudi(R"({"use_torch_autocast": true, "use_fused_adam": true})");
  EXPECT_EQ(take({"--gaudi-config", config}), "");
  EXPECT_EQ(values_.precision, "bf16-mixed");
  EXPECT_EQ(values_.optimizer.eps_mode, OptimizerSettings::EpsMode::habana);
  EXPECT_EQ(values_.optimizer.eps, 1e-6);
  EXPECT_EQ(values_.optimizer.lr, 1e-3);  // no training arguments
  EXPECT_EQ(take(args("--gaudi-config {} --training-args {}", folder_.path(),
                      arguments(R"({"adam_epsilon": 1e-8, "bf16": false})"))),
            "");
  EXPECT_EQ(values_.precision, "bf16-mixed");
  EXPECT_EQ(values_.optimizer.eps, 1e-8);
  EXPECT_EQ(take({"--gaudi-config", config, "--training-args", arguments(R"({"fp8": true})")}), "");
  EXPECT_EQ(values_.precision, "fp8");
  EXPECT_EQ(take({"--gaudi-config", config, "--precision", "32-true"}), "");
  EXPECT_EQ(values_.precision, "32-true");
  EXPECT_EQ(take({"--gaudi-config", config, "--training-args", arguments(R"({"use_cpu": true})")}), "");
  EXPECT_EQ(values_.precision, "32-true");
  EXPECT_EQ(values_.optimizer.eps_mode, OptimizerSettings::EpsMode::torch);
  EXPECT_EQ(context_.device, "cpu");
}

TEST_F(GaudiOptions, TheListsOfAutocast) {
  const std::string lists = R"("autocast_bf16_ops": ["mm", "add"], "autocast_fp32_ops": ["pow"])";
  EXPECT_EQ(take({"--gaudi-config", gaudi("{" + lists + R"(, "use_torch_autocast": true})")}), "");
  ASSERT_TRUE(values_.autocast_ops);
  EXPECT_THAT(values_.autocast_ops->bf16, ElementsAre("mm", "add"));
  EXPECT_THAT(values_.autocast_ops->fp32, ElementsAre("pow"));
  EXPECT_EQ(take({"--gaudi-config", gaudi("{" + lists + "}"), "--precision", "32-true"}), "");
  EXPECT_FALSE(values_.autocast_ops);
  setenv("LOWER_LIST", "lists.txt", 1);
  EXPECT_EQ(take({"--gaudi-config", gaudi("{" + lists + "}")}), "");
  unsetenv("LOWER_LIST");
  EXPECT_FALSE(values_.autocast_ops);
}

TEST_F(GaudiOptions, TheNameOfAGaudiConfigIsAPath) {
  const auto config = gaudi(R"({"use_fused_adam": true})");
  const auto named = [&](const std::string& name) {
    return take({"--training-args", arguments(R"({"use_habana": true, "gaudi_config_name": ")" + name + "\"}")});
  };
  EXPECT_EQ(named(config), "");
  EXPECT_EQ(values_.optimizer.eps_mode, OptimizerSettings::EpsMode::habana);
  EXPECT_EQ(named(folder_.path().string()), "");
  EXPECT_EQ(values_.optimizer.eps_mode, OptimizerSettings::EpsMode::habana);
  EXPECT_EQ(named("Habana/gpt2"), (folder_ / "a.json").string() +
                                      ": key 'gaudi_config_name': found 'Habana/gpt2', allowed: a file, or a folder "
                                      "with gaudi_config.json; nothing is fetched over a network");
  // The command line's instead of it.
  EXPECT_EQ(take(args("--training-args {} --gaudi-config {}",
                      arguments(R"({"use_habana": true, "gaudi_config_name": "Habana/gpt2"})"), config)),
            "");
}

TEST_F(GaudiOptions, WhatDoesNotFitTheRestNamesFileAndKey) {
  EXPECT_EQ(take({"--training-args", arguments(R"({"warmup_steps": 9})"), "--steps", "5"}),
            (folder_ / "a.json").string() + ": key 'warmup_steps': found 9, allowed: at most --steps 5");
  EXPECT_GOLDEN(take(args(text)));
}

TEST_F(GaudiOptions, WhatIsWrongNamesFileAndKey) {
  EXPECT_GOLDEN(take({"--training-args", arguments(text)}));
  EXPECT_EQ(take({"--training-args", arguments(R"({"eval_strategy": "epoch"})"), "--eval", "t.txt"}), "");
  EXPECT_TRUE(values_.eval_each_epoch);
  EXPECT_THAT(take({"--gaudi-config", gaudi(R"({"use_fused_adam": 1})")}),
              HasSubstr("gaudi_config.json: key 'use_fused_adam': found 1, allowed: true, false"));
  EXPECT_THAT(take(args("--gaudi-config {} --training-args {}", gaudi(R"({"use_fused_adam": true})"),
                        arguments(R"({"optim": "muon"})"))),
              HasSubstr("a.json: key 'optim': found \"muon\" beside use_fused_adam of "));
  EXPECT_THAT(take({"--training-args", (folder_ / "none.json").string()}), HasSubstr("none.json"));
}

TEST(TrainRows, OptionsThatOthersNameHaveARow) {
  const auto expect_row = [](const std::string& text, const std::string& by) {
    if (text.empty()) return;
    EXPECT_NE(find_option(text.substr(0, text.find_first_of(" ="))), nullptr) << text << " of " << by;
  };
  for (const auto& rows : {configs::training_argument_keys(), configs::gaudi_config_keys()})
    for (const auto& key : rows) expect_row(key.flag, key.path);
  for (const TrainRow& row : train_table()) {
    expect_row(row.columns.needs, row.name);
    expect_row(row.columns.instead_of, row.name);
  }
}

/// Epochs of so many steps.
std::function<std::int64_t(double)> epochs_of(std::int64_t steps) {
  return [steps](double epochs) { return static_cast<std::int64_t>(std::ceil(epochs * static_cast<double>(steps))); };
}

TEST(TrainLength, PartsOfStepsAreWhole) {
  TrainOptions o{.epochs = 1.5, .warmup_ratio = 0.1};
  o.eval_each_epoch = o.save_each_epoch = true;
  count_steps(o, epochs_of(3));
  EXPECT_EQ(o.optimizer.steps, 5);
  EXPECT_EQ(o.optimizer.warmup, 1);
  EXPECT_EQ(o.eval_every, 3);
  EXPECT_EQ(o.save_every, 3);
}

TEST(TrainLength, WithoutEpochsTheStepsAreThoseGiven) {
  TrainOptions o;
  o.optimizer.warmup = 7;
  count_steps(o, epochs_of(21));
  EXPECT_EQ(o.optimizer.steps, 1000);
  EXPECT_EQ(o.optimizer.warmup, 7);
  EXPECT_EQ(o.eval_every, 0);
  EXPECT_EQ(o.save_every, 0);
  o.epochs = 1e-6;
  o.optimizer.warmup = 0;
  count_steps(o, epochs_of(21));
  EXPECT_EQ(o.optimizer.steps, 1);
}

TEST(TrainLength, WhatDoesNotFitNamesTheOption) {
  const auto message = [](TrainOptions o) -> std::string {
    return error_of<UsageError>([&] { count_steps(o, epochs_of(10)); });
  };
  TrainOptions o{.throughput_warmup = 5, .epochs = 0.5};
  EXPECT_EQ(message(o), "--throughput-warmup: found 5, allowed: fewer than --steps 5, which --epochs 0.5 come to");
  o.throughput_warmup = 0;
  o.optimizer.warmup = 6;
  EXPECT_EQ(message(o), "--warmup: found 6, allowed: at most --steps 5, which --epochs 0.5 come to");
}

// Learning rates against those of transformers' get_scheduler (5.23) of 10 steps with 4 of warm-up.

using Schedule = OptimizerSettings::Schedule;

void expect_factors(const OptimizerSettings& settings, const std::vector<double>& expected) {
  const auto factor = lr_factor(settings);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(factor(static_cast<std::int64_t>(i)), expected[i], 1e-15) << i;
}

TEST(LrSchedule, AsTransformersHasThem) {
  OptimizerSettings s{.lr = 1, .schedule = Schedule::linear, .warmup = 4, .warmup_from = 0, .steps = 10};
  expect_factors(s, {0.0, 0.25, 0.5, 0.75, 1.0, 0.8333333333333334, 0.6666666666666666, 0.5, 0.3333333333333333,
                     0.16666666666666666});
  s.schedule = Schedule::cosine;
  expect_factors(s,
                 {0.0, 0.25, 0.5, 0.75, 1.0, 0.9330127018922194, 0.75, 0.5, 0.2500000000000001, 0.06698729810778065});
  s.min_lr = 0.25;
  expect_factors(
      s, {0.0, 0.25, 0.5, 0.75, 1.0, 0.9497595264191645, 0.8125, 0.625, 0.4375000000000001, 0.3002404735808355});
  s.schedule = Schedule::constant;
  expect_factors(s, {0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0});
}

TEST(LrSchedule, TheRiseBeginsAboveZeroUnlessToldOtherwise) {
  expect_factors({.lr = 2, .min_lr = 0.5, .warmup = 2, .steps = 4}, {0.5, 1.0, 1.0, 0.25 + 0.75 * 0.5, 0.25, 0.25});
}

TEST(LrSchedule, OfNoStepsOrNoRate) {
  expect_factors({.lr = 0, .schedule = Schedule::linear, .steps = 2}, {1.0, 0.5, 0.0});
  expect_factors({.lr = 1, .schedule = Schedule::linear, .warmup = 2, .steps = 2}, {0.5, 1.0, 0.0});
}

std::filesystem::path log_of(const test::TempDir& folder, const std::string& text) {
  std::ofstream(folder / "log.jsonl") << text;
  return folder / "log.jsonl";
}

TEST(TrainLogFile, IsReadLineByLineAndALastOneCutShortIsLeftOut) {
  const test::TempDir folder;
  const auto entries = read_log(log_of(folder, "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"loss\": null}\n{\"st"));
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0]["loss"], 2.5);
  EXPECT_TRUE(entries[1]["loss"].is_null());
}

TEST(TrainLogFile, EndsWhereTheCallerHasSeenEnough) {
  const test::TempDir folder;
  const std::string first = "{\"step\": 1, \"loss\": 2}\n";
  std::size_t calls = 0, end = 0;
  for_each_step(log_of(folder, first + "no step\n"), [&](const io::Json&, std::size_t behind) {
    ++calls;
    end = behind;
    return false;
  });
  EXPECT_EQ(calls, 1u);
  EXPECT_EQ(end, first.size());
}

TEST(TrainLogFile, AnythingElseIsRefusedWithFileAndLine) {
  const test::TempDir folder;
  for (const char* line : {"{\"step\": 1}", "[]", "{\"step\": 1.5, \"loss\": 2}", "step"}) {
    const auto path = log_of(folder, std::string("{\"step\": 1, \"loss\": 2}\n") + line + "\n");
    EXPECT_ERROR(io::Error, read_log(path), "log.jsonl, line 2");
  }
}

}  // namespace
}  // namespace fp8::commands
