// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/trainer/parts/part_spec.h"
#include "fp8/tools/commands/train/run/run_keys.h"

namespace fp8::commands {
namespace {

using ::testing::HasSubstr;

TEST(TrainerKeys, SecondsOfMaxTime) {
  const auto seconds = [](const char* text) { return trainer::seconds_of(io::Json::parse(text), "a.yaml:1"); };
  EXPECT_EQ(seconds("90"), 90);
  EXPECT_EQ(seconds(R"("01:02:03:04")"), 86400 + 2 * 3600 + 3 * 60 + 4);
  EXPECT_EQ(seconds(R"({"weeks": 1, "days": 2, "hours": 3, "minutes": 4, "seconds": 5.5})"),
            7 * 86400 + 2 * 86400 + 3 * 3600 + 4 * 60 + 5.5);
  for (const char* bad : {R"("12:00")", R"("1:2:3:x")", R"("1:2:3:4:5")", R"({"years": 1})", R"({"days": "1"})", "[1]"})
    EXPECT_THROW(seconds(bad), io::Error) << bad;
}

TEST(TrainerKeys, TextOfScalars) {
  EXPECT_EQ(option_text(5, ""), "5");
  EXPECT_EQ(option_text(true, ""), "true");
  EXPECT_EQ(option_text(1e-8, ""), "1e-08");
  EXPECT_EQ(option_text(0.1, ""), "0.1");
  EXPECT_EQ(option_text("a b", ""), "a b");
  EXPECT_THROW(option_text(nullptr, ""), io::Error);
  EXPECT_THROW(option_text(io::Json::array(), ""), io::Error);
}

TEST(TrainerKeys, OwnClass) {
  EXPECT_EQ(trainer::own_name("fp8.LanguageModel"), kLanguageModel);
  EXPECT_EQ(trainer::own_name("LanguageModel"), kLanguageModel);
  EXPECT_EQ(trainer::own_name("other.LanguageModel"), "other.LanguageModel");
}

/// Every key of Lightning's Trainer (2.2) and what a full file of its command line holds for each.
constexpr const char* kEveryKey = R"(
trainer:
  accelerator: auto
  strategy: auto
  devices: auto
  num_nodes: 1
  precision: null
  logger: null
  callbacks: null
  fast_dev_run: false
  max_epochs: null
  min_epochs: null
  max_steps: -1
  min_steps: null
  max_time: null
  limit_train_batches: null
  limit_val_batches: null
  limit_test_batches: 3
  limit_predict_batches: 0.5
  overfit_batches: 0.0
  val_check_interval: null
  check_val_every_n_epoch: 1
  num_sanity_val_steps: null
  log_every_n_steps: 50
  enable_checkpointing: null
  enable_progress_bar: null
  enable_model_summary: null
  accumulate_grad_batches: {0: 2, 4: 8}
  gradient_clip_val: null
  gradient_clip_algorithm: null
  deterministic: warn
  benchmark: null
  inference_mode: true
  use_distributed_sampler: true
  profiler: null
  detect_anomaly: false
  barebones: false
  plugins: null
  sync_batchnorm: false
  reload_dataloaders_every_n_epochs: 0
  default_root_dir: null
)";

TEST(TrainerKeys, AFileWithEveryKeyOfLightningsTrainerIsTaken) {
  CLI::App app("", "train");
  Options options(app);
  std::string text;
  std::vector<std::string> list;
  for (const char* name : {"--device", "--strategy", "--precision", "--out", "--steps", "--epochs", "--max-time",
                           "--grad-accum", "--clip", "--clip-by", "--profile", "--profile-schedule", "--recipe"})
    options.text(name, text, "");
  options.list("--keep", list, "");
  app.parse(std::vector<std::string>{});
  RunTree tree;
  tree.merge(io::parse_yaml(kEveryKey, "a.yaml"), "fit");
  RunSettings run;
  take_trainer(tree, options, run);
  EXPECT_EQ(options.source_of("--precision"), "a.yaml:7: trainer.precision");
  EXPECT_EQ(options.source_of("--clip"), "a.yaml:29: trainer.gradient_clip_val");
  EXPECT_EQ(options.source_of("--steps"), "default");
  EXPECT_EQ(std::get<std::int64_t>(*run.trainer.limit_test_batches), 3);
  EXPECT_EQ(std::get<double>(*run.trainer.limit_predict_batches), 0.5);
  EXPECT_EQ(run.trainer.accumulate_grad_batches, (std::map<std::int64_t, std::int64_t>{{0, 2}, {4, 8}}));
  EXPECT_EQ(run.trainer.deterministic, "warn");
  EXPECT_FALSE(run.trainer.limit_train_batches);
}

}  // namespace
}  // namespace fp8::commands
