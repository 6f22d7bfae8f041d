// SPDX-License-Identifier: Apache-2.0
// Runs of files of Optimum Habana, as its documents show them: the same as those of the options that they come to.
#include <cmath>

#include "support/names_in.h"
#include "tools/commands/train/train_run.h"

namespace fp8 {
namespace {

std::string write(const fs::path& path, const std::string& text) {
  std::ofstream(path) << text;
  return path.string();
}

/// Options that no file of Optimum's sets.
std::vector<std::string> start(const test::TempDir& folder, const char* out, std::vector<std::string> more) {
  return args("train --init {} --data $HELDOUT --out {} --seq-len 64 --threads 1 --json {}", folder / "init",
              folder / out, more);
}

class TrainGaudi : public test::TrainingFolder {};

TEST_F(TrainGaudi, TheDocumentsExampleRunsAsItsOptions) {
  // The document on accelerating training, with a rate that a small model learns at.
  const auto config = write(folder / "gaudi_config.json",
                            R"({"use_fused_adam": true, "use_fused_clip_norm": true, "use_torch_autocast": true})");
  const auto args_file =
      write(folder / "args.json", R"({"use_habana": true, "use_lazy_mode": true, "gaudi_config_name": ")" + config +
                                      R"(", "dataloader_num_workers": 1,
      "throughput_warmup_steps": 3, "bf16": true, "half_precision_backend": "hpu_amp",
      "use_hpu_graphs_for_training": true, "pipelining_fwd_bwd": true, "non_blocking_data_copy": true,
      "logging_steps": 5, "max_steps": 12, "learning_rate": 0.01, "per_device_train_batch_size": 4,
      "warmup_steps": 4, "dataloader_drop_last": true})");
  const auto run = run_fp8(start(folder, "file", {"--training-args", args_file}));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const auto log = log_of(folder / "file");
  ASSERT_EQ(log.size(), 12u);
  for (std::size_t i = 0; i < log.size(); ++i) {
    const double expected = i < 4 ? 0.01 * static_cast<double>(i) / 4 : 0.01 * static_cast<double>(12 - i) / 8;
    EXPECT_NEAR(log[i]["lr"].get<double>(), expected, 1e-15) << i;
    EXPECT_EQ(log[i].contains("memory_allocated (GB)"), (i + 1) % 5 == 0) << i;
  }
  EXPECT_LT(log.back()["loss"].get<double>(), log[0]["loss"].get<double>() - 0.3);

  const auto options = run_fp8(start(
      folder, "options",
      args(
          "--precision bf16-mixed --eps-mode habana --batch 4 --lr 0.01 --steps 12 --schedule linear --warmup 4 --clip "
          "1 --beta2 0.999 --eps 1e-6 --seed 42 --weight-decay 0 --warmup-from 0 --drop-last --logging-steps 5")));
  ASSERT_EQ(options.code, 0) << options.err;
  EXPECT_EQ(timeless(log_of(folder / "options")), timeless(log));
  EXPECT_EQ(read_file(folder / "options/model.safetensors"), read_file(folder / "file/model.safetensors"));

  // Another formula of AdamW is other numbers; the command line wins.
  const auto other =
      run_fp8(start(folder, "other", {"--training-args", args_file, "--eps-mode", "torch", "--eps", "0.01"}));
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_NE(log_of(folder / "other").back()["loss"], log.back()["loss"]);
}

TEST_F(TrainGaudi, WhatIsPrintedRunsAgainAsTheSameRun) {
  const auto config = write(folder / "gaudi_config.json", R"({"use_torch_autocast": true, "use_fused_adam": true})");
  const auto args_file =
      write(folder / "args.json", R"({"use_habana": true, "num_train_epochs": 0.3, "warmup_ratio": 0.5,
      "per_device_train_batch_size": 32, "learning_rate": 0.01, "gaudi_config_name": ")" +
                                      config + "\"}");
  const auto list = start(folder, "run", {"--training-args", args_file, "--lr", "0.02"});
  auto print = list;
  std::ranges::replace(print, std::string("--json"), std::string("--print-config"));
  const auto printed = run_fp8(print);
  ASSERT_EQ(printed.code, 0) << printed.err;
  EXPECT_THAT(printed.out, HasSubstr("args.json: key 'weight_decay' (default)"));
  const auto file = write(folder / "run.yaml", printed.out);
  ASSERT_EQ(run_fp8(list).code, 0);
  const auto again = run_fp8("train --config {} --out {}", file, folder / "again");
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(timeless(log_of(folder / "again")), timeless(log_of(folder / "run")));
}

TEST_F(TrainGaudi, EpochsEvaluationsAndCheckpoints) {
  const auto args_file = write(folder / "args.json", R"({"num_train_epochs": 1.5, "per_device_train_batch_size": 32,
      "gradient_accumulation_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch", "save_total_limit": 1,
      "warmup_ratio": 0.5, "lr_scheduler_type": "constant_with_warmup", "learning_rate": 0.01,
      "report_to": ["tensorboard"], "use_habana": true, "use_lazy_mode": false})");
  const auto list = start(folder, "run", {"--training-args", args_file, "--eval", demo("kjv_heldout_16k.txt")});
  const auto run = run_fp8(list);
  ASSERT_EQ(run.code, 0) << run.err;
  const auto settings = io::read_json(folder / "run/train.json");
  const auto chunks = settings["chunks"].get<std::int64_t>();
  const std::int64_t epoch = ((chunks + 31) / 32 + 1) / 2, steps = (3 * epoch + 1) / 2;
  const auto log = log_of(folder / "run");
  ASSERT_EQ(static_cast<std::int64_t>(log.size()), steps);
  for (std::int64_t i = 0; i < steps; ++i) {
    const auto& line = log[static_cast<std::size_t>(i)];
    EXPECT_EQ(line.contains("eval_loss"), (i + 1) % epoch == 0 || i + 1 == steps) << i;
    const auto warmup = static_cast<double>((steps + 1) / 2);
    EXPECT_NEAR(line["lr"].get<double>(), 0.01 * std::min(1.0, static_cast<double>(i) / warmup), 1e-15) << i;
  }
  EXPECT_EQ(settings["steps"], steps);
  EXPECT_TRUE(fs::exists(folder / "run/tensorboard"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "run/checkpoints"), fs::directory_iterator()), 1);
  auto again = list;
  again.push_back("--resume");
  EXPECT_EQ(run_fp8(again).code, 0);
  expect_failed(run_fp8(start(folder, "none", {"--training-args", args_file})),
                {"args.json: key 'eval_strategy': found 'epoch', but no --eval"});
  EXPECT_FALSE(fs::exists(folder / "none"));
}

TEST_F(TrainGaudi, ListsOfAutocastCount) {
  const auto losses = [&](const char* out, const std::string& text) {
    const auto run = run_fp8(start(
        folder, out, {"--gaudi-config", write(folder / "gaudi_config.json", text), "--steps", "3", "--batch", "4"}));
    EXPECT_EQ(run.code, 0) << run.err;
    return std::pair(timeless(log_of(folder / out)), run.err);
  };
  const auto [usual, nothing] = losses("usual", R"({"use_torch_autocast": true})");
  EXPECT_EQ(nothing, "");
  // The lists of Optimum's documents, for an attention of separate operators.
  const auto [bert, quiet] = losses("bert", R"({"use_torch_autocast": true,
      "autocast_bf16_ops": ["add", "addmm", "bmm", "div", "dropout", "gelu", "iadd", "linear", "layer_norm", "matmul",
                            "mm", "rsub", "softmax", "truediv"],
      "autocast_fp32_ops": ["embedding", "nll_loss", "log_softmax"]})");
  for (std::size_t i = 0; i < bert.size(); ++i)
    EXPECT_NEAR(bert[i]["loss"].get<double>(), usual[i]["loss"].get<double>(), 0.02);
  // Nothing in bf16: the numbers of f32.
  const auto [none, said] = losses("none", R"({"use_torch_autocast": true, "autocast_bf16_ops": [],
      "autocast_fp32_ops": ["pow.Scalar"]})");
  EXPECT_NE(none, usual);
  EXPECT_THAT(said, HasSubstr("gaudi_config.json"));
  EXPECT_THAT(said, HasSubstr("pow.Scalar"));
  const auto plain = run_fp8(start(folder, "plain", {"--steps", "3", "--batch", "4", "--precision", "32-true"}));
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(timeless(log_of(folder / "plain")), none);
}

TEST_F(TrainGaudi, TheBestModelIsLoadedAtTheEnd) {
  // A rate that rises until the loss does.
  const auto args_file = write(folder / "args.json", R"({"use_habana": true, "max_steps": 12, "learning_rate": 3,
      "warmup_steps": 12, "lr_scheduler_type": "constant_with_warmup", "per_device_train_batch_size": 4,
      "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 1,
      "load_best_model_at_end": true})");
  const auto run = run_fp8(start(folder, "run", {"--training-args", args_file, "--eval", demo("kjv_heldout_16k.txt")}));
  ASSERT_EQ(run.code, 0) << run.err;
  double best = INFINITY, last = 0;
  for (const auto& line : log_of(folder / "run")) {
    if (!line.contains("eval_loss")) continue;
    last = line["eval_loss"];
    best = std::min(best, last);
  }
  ASSERT_GT(last, best + 0.01);
  const double perplexity =
      json_of(run_fp8("evaluate --model {} --data $HELDOUT --seq-len 64 --json", folder / "run"))["perplexity"];
  EXPECT_NEAR(std::log(perplexity), best, 0.01);  // weights are stored in bf16
}

/// The numbers are those of transformers' own Trainer: transformers_runs.py trains.
TEST_F(TrainGaudi, RunsAreThoseOfTransformers) {
  const auto text = write(folder / "text.txt", read_file(demo("kjv_heldout_16k.txt")).substr(0, 38 * 64));
  const auto rows = io::read_json(fs::path(FP8_SOURCE_DIR) / "tests/tools/commands/train/transformers_runs.json");
  ASSERT_EQ(rows.size(), 43u);
  for (const auto& row : rows) {
    io::Json options = {{"learning_rate", 0.01}, {"per_device_train_batch_size", 4}, {"use_habana", true}};
    options.update(row["options"]);
    fs::remove_all(folder / "run");
    auto command = start(folder, "run", {"--training-args", write(folder / "args.json", options.dump())});
    *(std::find(command.begin(), command.end(), "--data") + 1) = text;
    if (options.value("eval_strategy", "no") != "no") command.insert(command.end(), {"--eval", text});
    const auto run = run_fp8(command);
    if (row.contains("key")) {
      EXPECT_EQ(run.code, 1) << options;
      EXPECT_THAT(run.err, HasSubstr("key '" + row["key"].get<std::string>() + "'")) << options;
      continue;
    }
    ASSERT_EQ(run.code, 0) << options << run.err;
    const auto log = log_of(folder / "run");
    ASSERT_EQ(log.size(), row["rates"].size()) << options;
    io::Json evaluations = io::Json::array(), checkpoints = io::Json::array();
    for (std::size_t i = 0; i < log.size(); ++i) {
      EXPECT_NEAR(log[i]["lr"].get<double>(), row["rates"][i].get<double>(), 1e-9) << options << i;
      if (log[i].contains("eval_loss")) evaluations.push_back(log[i]["step"]);
    }
    EXPECT_EQ(evaluations, row["evaluations"]) << options;
    for (const auto& name : test::names_in(folder / "run/checkpoints"))
      checkpoints.push_back(std::stoi(name.substr(5)));
    EXPECT_EQ(checkpoints, row["checkpoints"]) << options;
  }
}

TEST_F(TrainGaudi, AutocastOfTheCpu) {
  const auto losses = [&](const char* out, const std::string& more) {
    const auto args_file = write(folder / "args.json", R"({"use_cpu": true, "max_steps": 3, "learning_rate": 0.01,
        "per_device_train_batch_size": 4)" + more + "}");
    const auto run = run_fp8(start(folder, out, {"--training-args", args_file}));
    EXPECT_EQ(run.code, 0) << run.err;
    std::vector<double> found;
    for (const auto& line : log_of(folder / out)) found.push_back(line["loss"]);
    return found;
  };
  const auto plain = losses("plain", ""),
             bf16 = losses("bf16", R"(, "bf16": true, "half_precision_backend": "cpu_amp")");
  ASSERT_EQ(bf16.size(), 3u);
  EXPECT_NE(bf16, plain);
  for (std::size_t i = 0; i < bf16.size(); ++i) EXPECT_NEAR(bf16[i], plain[i], 0.02);
  expect_failed(run_fp8(start(folder, "none", {"--device", "cpu", "--precision", "bf16-mixed"})),
                {"allowed: 32-true, or bf16-mixed with --half-precision-backend cpu_amp"}, 2);
}

TEST_F(TrainGaudi, Fp8RunsOptimumsRecipe) {
  const auto args_file = write(folder / "args.json", R"({"fp8": true, "bf16": true, "use_habana": true, "max_steps": 2,
      "per_device_train_batch_size": 4, "minimize_memory": true, "gradient_checkpointing": true})");
  const auto run = run_fp8(start(folder, "run", {"--training-args", args_file}));
  ASSERT_EQ(run.code, 0) << run.err;
  const auto recipe = io::read_json(folder / "run/train.json")["recipe_values"];
  EXPECT_EQ(recipe["fp8_format"], "HYBRID");
  EXPECT_EQ(recipe["interval"], 16);
  EXPECT_EQ(recipe["amax_history_len"], 1);
  EXPECT_EQ(recipe["reduce_amax"], false);
}

}  // namespace
}  // namespace fp8
