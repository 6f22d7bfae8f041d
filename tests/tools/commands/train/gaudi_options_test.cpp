// SPDX-License-Identifier: Apache-2.0
// Files of Optimum Habana as options: which of command line and files counts, and what a file is refused for.
#include <optional>

#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/train/train_options.h"
#include "support/command.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

class GaudiOptions : public ::testing::Test {
 protected:
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
  EXPECT_EQ(take({"--steps", "5", "--epochs", "1"}), "--steps and --epochs: found both, allowed: one of them");
  EXPECT_EQ(take({"--resume", "--overwrite"}), "--resume and --overwrite: found both, allowed: one of them");
  EXPECT_EQ(take({"--warmup", "9", "--steps", "5"}), "--warmup: found 9, allowed: at most --steps 5");
  EXPECT_EQ(take({"--min-lr", "1e-4", "--schedule", "constant"}),
            "--min-lr: found 0.0001 with --schedule constant, allowed: cosine, linear");
  EXPECT_EQ(take({"--load-best"}), "--load-best: found, but no --save-best");
  EXPECT_EQ(take({"--eval-each-epoch"}), "--eval-each-epoch: found, but no --eval");
  EXPECT_EQ(take({"--minimize-memory"}),
            "--minimize-memory: found with --precision bf16-mixed, allowed: --precision fp8");
}

TEST_F(GaudiOptions, WhatIsWrongNamesFileAndKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"deepspeed": "ds.json"})",
       "a.json: key 'deepspeed': found \"ds.json\", allowed: null; DeepSpeed runs from "},
      {R"({"learning_rat": 1})", "a.json: unknown key 'learning_rat', did you mean 'learning_rate'?"},
      {R"({"learning_rate": "1"})", "a.json: key 'learning_rate': found \"1\", allowed: a number from 0 to 100"},
      {R"({"fp16": true, "tf32": true})", "(fp8 config check "},
      {R"({"eval_strategy": "steps"})",
       "a.json: key 'eval_strategy': found 'steps', but no --eval, allowed: with --eval FILE"},
      {R"([1])", "a.json: found an array, allowed: an object"},
      {R"({"seed": 1, "seed": 2})", "duplicate key 'seed'"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_THAT(take({"--training-args", arguments(text)}), HasSubstr(expected)) << text;
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

}  // namespace
}  // namespace fp8::commands
