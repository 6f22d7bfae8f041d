// SPDX-License-Identifier: Apache-2.0
// A run goes on as what it was started as, or not at all: what --resume compares, what --overwrite leaves alone, and
// precisions that have a state or a setting of their own.
#include <numbers>

#include "support/values.h"
#include "tools/commands/train/train_run.h"

namespace fp8 {
namespace {

class TrainSettings : public test::TrainingFolder {};

TEST_F(TrainSettings, AnotherRunIsNotOverwrittenOrResumed) {
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--steps", "3", "--warmup", "1"});
    return run_train(folder, "run", more);
  };
  ASSERT_EQ(with({}).code, 0);
  auto run = with({});
  expect_failed(run, {"holds a run, allowed: --resume"});
  run = with(args("--resume --lr 0.5"));
  expect_failed(run, {"key 'lr': the run was started with 0.01, --resume found 0.5"});
  EXPECT_EQ(with({"--resume"}).code, 0);
  EXPECT_EQ(with(args("--overwrite --lr 0.5")).code, 0);
  std::ofstream(folder / "init/precious.txt") << "mine";
  auto list = arguments(folder, "init");
  run = run_fp8(list);
  expect_failed(run, {"is not empty and holds no run of fp8 train"});
  EXPECT_EQ(read_file(folder / "init/precious.txt"), "mine");
}

TEST_F(TrainSettings, ChangedInputsAreNamed) {
  const auto config = init / "config.json";
  const auto text = folder / "text.txt", eval = folder / "eval.txt";
  fs::copy_file(demo("kjv_heldout_16k.txt"), text);
  fs::copy_file(demo("kjv_heldout_16k.txt"), eval);
  const auto train = [&] {
    return run_train(folder, "run", "--resume --steps 3 --warmup 1 --data {} --eval {}", text, eval);
  };
  ASSERT_EQ(train().code, 0);
  const auto message_after = [&](const fs::path& file, const std::string& from, const std::string& to) {
    const auto before = read_file(file);
    auto after = before;
    after.replace(after.find(from), from.size(), to);
    std::ofstream(file) << after;
    const auto run = train();
    std::ofstream(file) << before;
    expect_failed(run);
    return run.err;
  };
  EXPECT_THAT(message_after(text, "the", "teh"),
              HasSubstr("train.json: key 'data_fingerprint': the run was started with"));
  EXPECT_THAT(message_after(eval, "the", "teh"), HasSubstr("key 'eval_fingerprint'"));
  EXPECT_THAT(message_after(config, "\"rope_theta\"", "\"rope_theta\": 77.0, \"was\""),
              HasSubstr("key 'config_fingerprint'"));
  auto spaced = io::read_json(config).dump(1);
  std::ofstream(config) << spaced;
  EXPECT_EQ(train().code, 0);  // the same config, written another way
}

TEST_F(TrainSettings, TheSameInputsAtOtherPathsGoOn) {
  io::write_json(folder / "recipe.json", {{"recipe", "current"}});
  const auto train = [&](const fs::path& at, const char* recipe) {
    return run_fp8(
        "train --resume --init {} --data {} --eval {} --out {} --steps 2 --batch 2 --seq-len 32 --precision fp8 "
        "--recipe {} --json",
        at / "init", at / "text.txt", at / "eval.txt", folder / "run", recipe);
  };
  fs::copy_file(demo("kjv_calib.txt"), folder / "text.txt");
  fs::copy_file(demo("kjv_heldout_16k.txt"), folder / "eval.txt");
  auto run = succeeded(train(folder.path(), (folder / "recipe.json").c_str()));
  const auto moved = folder / "moved";
  fs::create_directory(moved);
  for (const char* name : {"init", "text.txt", "eval.txt"}) fs::rename(folder / name, moved / name);
  run = train(moved, "current");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(io::read_json(folder / "run/train.json")["data"], fs::canonical(moved / "text.txt").string());
  fs::copy_file(demo("kjv_heldout_16k.txt"), moved / "text.txt", fs::copy_options::overwrite_existing);
  run = train(moved, "current");
  expect_failed(run, {"key 'chunks'"});
}

/// More steps: as if they had been asked for from the start, but for the learning rate, and that is said.
TEST_F(TrainSettings, MoreStepsGoOnFromTheLast) {
  const auto with = [&](const char* steps, const char* out = "run") {
    return run_train(folder, out, "--resume --steps {}", steps);
  };
  ASSERT_EQ(with("10").code, 0);
  const auto first = log_of(folder / "run");
  auto run = succeeded(with("16"));
  EXPECT_THAT(run.err, HasSubstr("--steps: the run was started with 10, 10 are done, it goes on to 16: the learning "
                                 "rate follows the cosine of 16 steps"));
  EXPECT_EQ(run.error_lines(), 1);
  EXPECT_EQ(io::parse_json(run.out, "stdout")["resumed_from"], 10);
  const auto log = log_of(folder / "run");
  ASSERT_EQ(log.size(), 16u);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(log[i], first[i]);
  for (std::size_t i = 10; i < log.size(); ++i) {
    const double share = (static_cast<double>(i) - 4) / (16 - 4);  // 4 steps of warm-up
    EXPECT_NEAR(log[i]["lr"].get<double>(), 0.01 * 0.5 * (1 + std::cos(std::numbers::pi * share)), 1e-12) << i;
  }
  EXPECT_EQ(io::read_json(folder / "run/train.json")["steps"], 16);
  EXPECT_TRUE(fs::exists(folder / "run/model.safetensors"));
  run = with("16");  // it is what it is now
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.err, "");
  run = with("12");
  expect_failed(run, {"train.json: key 'steps': 16 of 16 steps are done, --resume found 12, allowed: 16 or more"});
  EXPECT_EQ(io::read_json(folder / "run/train.json")["steps"], 16);
}

/// A run that is cut off and told to end elsewhere, sooner than it was to and later than it got; killed again on its
/// way.
TEST_F(TrainSettings, StepsMayChangeWhileTheyAreNotDone) {
  const auto list = [&](const char* steps) {
    return arguments(folder, "run", "--resume --save-every 3 --steps {}", steps);
  };
  ASSERT_EQ(run_and_signal(list("100000"), folder / "run", 7, SIGKILL), -SIGKILL);
  ASSERT_EQ(run_and_signal(list("200000"), folder / "run", 12, SIGKILL), -SIGKILL);
  EXPECT_EQ(io::read_json(folder / "run/train.json")["steps"], 200000);
  EXPECT_FALSE(fs::exists(folder / "run/model.safetensors"));
  const auto done = log_of(folder / "run").size();
  const auto steps = std::to_string(done + 20);
  EXPECT_THAT(succeeded(run_fp8(list(steps.c_str()))).err, HasSubstr("it goes on to " + steps));
  EXPECT_EQ(log_of(folder / "run").size(), done + 20);
}

/// Both passes of --measurements: the first step is scaled, and the measurement is part of what the run is.
TEST_F(TrainSettings, MeasurementsWarmTheStart) {
  const auto with = [&](const char* out, const std::vector<std::string>& more) {
    auto list = arguments(folder, out, "--precision fp8 --steps 6");
    list = args("{} --recipe nvidia --stats-every 1", list);
    list.insert(list.end(), more.begin(), more.end());
    return run_fp8(list);
  };
  ASSERT_EQ(with("cold", {}).code, 0);
  const auto measured = (folder / "cold/measurements").string();
  auto run = succeeded(with("warm", {"--measurements", measured}));
  EXPECT_EQ(run.err, "");
  const auto underflowed = [&](const char* out) {
    return log_of(folder / out)[0]["fp8"]["underflowed"].get<std::int64_t>();
  };
  EXPECT_LT(underflowed("warm"), underflowed("cold"));  // drawn weights of 0.02 in E4M3: unscaled, many of them are 0
  EXPECT_NE(log_of(folder / "warm")[0]["loss"], log_of(folder / "cold")[0]["loss"]);
  EXPECT_TRUE(io::read_json(folder / "warm/train.json")["warm_start"].is_string());
  EXPECT_EQ(with("warm", args("--resume --measurements {}", measured)).code, 0);
  run = with("warm", {"--resume"});
  expect_failed(run, {"key 'warm_start'"});
  auto old = io::read_json(folder / "cold/train.json");
  old.erase("warm_start");  // as it was written before there was such a key
  io::write_json(folder / "cold/train.json", old);
  EXPECT_EQ(with("cold", {"--resume"}).code, 0);
  run = run_train(folder, "none", "--measurements {}", measured);
  expect_failed(run, {"--measurements: found '" + measured + "' with --precision 32-true, allowed: --precision fp8"},
                2);
  EXPECT_EQ(with("none", {"--measurements", (folder / "nowhere").string()}).code, 1);
  EXPECT_FALSE(fs::exists(folder / "none"));
}

/// Modules that stayed in bf16 in training were not measured: they stay so in the checkpoint, with the reason.
TEST_F(TrainSettings, WhatWasKeptIsLeftOutWhenTheMeasurementQuantizes) {
  const auto run = succeeded(
      run_train(folder, "run", "--precision fp8 --recipe nvidia --steps 4 --keep lm_head --keep layers\\.0\\."));
  const auto json = json_of(run_fp8("quantize --model {} --measurements {} --out {} --json", folder / "run",
                                    folder / "run/measurements", folder / "fp8"));
  EXPECT_EQ(json["modules_quantized"], 7);
  int left = 0;
  for (const auto& m : json["modules_skipped"])
    left += m["reason"] == "no measurement of its input, which was not to be measured";
  EXPECT_EQ(left, 7);
}

TEST_F(TrainSettings, PlanTellsAndChangesNothing) {
  auto run = succeeded(run_fp8(
      "train --dry-run --init {} --precision fp8 --recipe nvidia --keep lm_head --keep layers\\.0\\. --json", init));
  const auto json = io::parse_json(run.out, "stdout");
  ASSERT_EQ(json["modules"].size(), 7u);
  for (const auto& m : json["modules"]) {
    EXPECT_EQ(m["name"].get<std::string>().rfind("model.layers.1.", 0), 0u);
    EXPECT_GT(m["flops_per_row"].get<double>(), 0);
    EXPECT_LT(m["operand_bytes"].get<std::int64_t>(), m["bytes"].get<std::int64_t>());  // f32 -> codes along both ways
    EXPECT_GT(m["expected_error"].get<double>(), 0.01);
    EXPECT_LT(m["expected_error"].get<double>(), 0.1);
  }
  EXPECT_GE(json["kept"].size(), 8u);
  run = run_fp8("train --dry-run --init {} --precision fp8", init);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("converted  model.layers.0.self_attn.q_proj (Linear)"));
  run = run_fp8("train --dry-run --init {}", init);
  expect_failed(run, {"--dry-run: found with --precision bf16-mixed, allowed: --precision fp8"}, 2);
  EXPECT_EQ(run_train(folder, "run", "--dry-run --precision fp8").code, 0);
  EXPECT_FALSE(fs::exists(folder / "run"));
  run = run_fp8("train --init {} --out {}", init, folder / "run");
  expect_failed(run, {"train: --data is required"}, 2);
}

TEST_F(TrainSettings, OverwriteLeavesARunThatIsGoingOnAlone) {
  test::Fp8Process running(arguments(folder, "run", "--steps 100000"));
  test::wait_for([&] { return test::steps_logged(folder / "run") >= 3; });
  expect_failed(run_train(folder, "run", "--overwrite --steps 5"), {"log.jsonl: another run is writing it"});
  EXPECT_GE(log_of(folder / "run").size(), 3u);
  running.send(SIGTERM);
  EXPECT_EQ(running.wait().code, 143);
  EXPECT_EQ(fs::exists(folder / "run/checkpoints"), true);  // the first run could save
}

TEST_F(TrainSettings, LossScalingOf16MixedIsLoggedAndResumed) {
  const std::vector<std::string> more = args("--precision 16-mixed --save-every 7");
  ASSERT_EQ(run_train(folder, "whole", more).code, 0);
  const auto log = log_of(folder / "whole");
  for (const auto& line : log) {
    EXPECT_GE(line.at("loss_scale").get<double>(), 1);
    EXPECT_EQ(line.contains("skipped"), line["grad_norm"].is_null());
  }
  auto list = arguments(folder, "cut", more);
  list.push_back("--resume");
  ASSERT_EQ(run_and_signal(list, folder / "cut", 18, SIGKILL), -SIGKILL);
  ASSERT_EQ(run_fp8(list).code, 0);
  expect_same_run(folder / "whole", folder / "cut");
  const auto state = io::read_json(folder / "cut/checkpoints/step-00000040/trainer_state.json");
  EXPECT_EQ(state.at("grad_scaler").at("scale"), log.back()["loss_scale"]);
}

/// E4M3 reaches 240 on one device and 448 on the other: other scales, other codes.
TEST_F(TrainSettings, TheDialectIsPartOfTheRun) {
  const auto losses = [&](const char* out, std::vector<std::string> more) {
    more = args("{} --precision fp8 --recipe nvidia --steps 6", more);
    const auto run = succeeded(run_train(folder, out, more));
    return collected(log_of(folder / out), [&](const auto& line) { return line["loss"].template get<double>(); });
  };
  const auto plain = losses("plain", {});
  EXPECT_EQ(losses("gaudi3", {"--dialect", "gaudi3"}), plain);
  EXPECT_EQ(losses("ocp", {"--dialect", "ocp"}), plain);
  const auto gaudi2 = losses("gaudi2", {"--dialect", "gaudi2"});
  ASSERT_EQ(gaudi2.size(), plain.size());
  EXPECT_NE(gaudi2, plain);
  EXPECT_NEAR(gaudi2.back() / plain.back(), 1, 0.01);
  const auto run = run_train(folder, "gaudi2", "--resume --precision fp8 --recipe nvidia --steps 6");
  expect_failed(run, {"key 'dialect': the run was started with \"gaudi2\", --resume found \"gaudi3\""});
}

// Runs of files of Optimum Habana, as its documents show them: the same as those of the options that they come to.

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
  EXPECT_EQ(succeeded(run_fp8(start(folder, "file", {"--training-args", args_file}))).err, "");
  const auto log = log_of(folder / "file");
  ASSERT_EQ(log.size(), 12u);
  for (std::size_t i = 0; i < log.size(); ++i) {
    const double expected = i < 4 ? 0.01 * static_cast<double>(i) / 4 : 0.01 * static_cast<double>(12 - i) / 8;
    EXPECT_NEAR(log[i]["lr"].get<double>(), expected, 1e-15) << i;
    EXPECT_EQ(log[i].contains("memory_allocated (GB)"), (i + 1) % 5 == 0) << i;
  }
  EXPECT_LT(log.back()["loss"].get<double>(), log[0]["loss"].get<double>() - 0.3);

  const auto options = succeeded(run_fp8(start(
      folder, "options",
      args(
          "--precision bf16-mixed --eps-mode habana --batch 4 --lr 0.01 --steps 12 --schedule linear --warmup 4 --clip "
          "1 --beta2 0.999 --eps 1e-6 --seed 42 --weight-decay 0 --warmup-from 0 --drop-last --logging-steps 5"))));
  EXPECT_EQ(timeless(log_of(folder / "options")), timeless(log));
  EXPECT_EQ(read_file(folder / "options/model.safetensors"), read_file(folder / "file/model.safetensors"));

  // Another formula of AdamW is other numbers; the command line wins.
  const auto other = succeeded(
      run_fp8(start(folder, "other", {"--training-args", args_file, "--eps-mode", "torch", "--eps", "0.01"})));
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
  const auto printed = succeeded(run_fp8(print));
  EXPECT_THAT(printed.out, HasSubstr("args.json: key 'weight_decay' (default)"));
  const auto file = write(folder / "run.yaml", printed.out);
  ASSERT_EQ(run_fp8(list).code, 0);
  const auto again = succeeded(run_fp8("train --config {} --out {}", file, folder / "again"));
  EXPECT_EQ(timeless(log_of(folder / "again")), timeless(log_of(folder / "run")));
}

TEST_F(TrainGaudi, EpochsEvaluationsAndCheckpoints) {
  const auto args_file = write(folder / "args.json", R"({"num_train_epochs": 1.5, "per_device_train_batch_size": 32,
      "gradient_accumulation_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch", "save_total_limit": 1,
      "warmup_ratio": 0.5, "lr_scheduler_type": "constant_with_warmup", "learning_rate": 0.01,
      "report_to": ["tensorboard"], "use_habana": true, "use_lazy_mode": false})");
  const auto list = start(folder, "run", {"--training-args", args_file, "--eval", demo("kjv_heldout_16k.txt")});
  const auto run = succeeded(run_fp8(list));
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
    const auto run = succeeded(run_fp8(start(
        folder, out, {"--gaudi-config", write(folder / "gaudi_config.json", text), "--steps", "3", "--batch", "4"})));
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
  EXPECT_THAT(said, AllOf(HasSubstr("gaudi_config.json"), HasSubstr("pow.Scalar")));
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
    const auto run = succeeded(run_fp8(start(folder, out, {"--training-args", args_file})));
    return collected(log_of(folder / out), [](const auto& line) { return line["loss"].template get<double>(); });
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
  const auto run = succeeded(run_fp8(start(folder, "run", {"--training-args", args_file})));
  const auto recipe = io::read_json(folder / "run/train.json")["recipe_values"];
  expect_values(recipe, {{"fp8_format", "HYBRID"}, {"interval", 16}, {"amax_history_len", 1}, {"reduce_amax", false}});
}

}  // namespace
}  // namespace fp8
