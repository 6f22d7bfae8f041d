// SPDX-License-Identifier: Apache-2.0
// Everything with a name in a run file runs by that name: every row of every registry, by its short name and by
// Lightning's path, from a file, with the output that it is there for. The rows are those that the program itself lists
// where it refuses an unknown name, so none can be forgotten here.

#include "support/golden.h"
#include "tools/commands/train/train_run.h"

namespace fp8 {
namespace {

using test::Run;

/// A run of three steps whose section `key` of the trainer, or of the file, is `value`.
std::string file_with(const fs::path& folder, const std::string& key, const std::string& value) {
  std::map<std::string, std::string> trainer = {
      {"accelerator", "hpu"},      {"max_steps", "3"},         {"log_every_n_steps", "1"}, {"limit_train_batches", "2"},
      {"val_check_interval", "2"}, {"limit_val_batches", "1"}, {"precision", "32-true"}};
  trainer["default_root_dir"] = (folder / "out").string();
  trainer["logger"] = "[{class_path: CSVLogger, init_args: {save_dir: " + (folder / "out/csv").string() + "}}]";
  std::map<std::string, std::string> file = {
      {"seed_everything", "7"},
      {"model", "{class_path: LanguageModel, init_args: {init: " + (folder / "init").string() + "}}"},
      {"data", "{class_path: TextData, init_args: {train: " + demo("kjv_heldout_16k.txt") +
                   ", val: " + demo("kjv_heldout_16k.txt") + ", batch_size: 2, seq_len: 32}}"},
      {"optimizer", "{class_path: AdamW, init_args: {lr: 0.001}}"}};
  (key.starts_with("trainer.") ? trainer[key.substr(8)] : file[key]) = value;
  std::ofstream out(folder / "run.yaml");
  for (const auto& [name, text] : file) out << name << ": " << text << "\n";
  out << "trainer:\n";
  for (const auto& [name, text] : trainer) out << "  " << name << ": " << text << "\n";
  return (folder / "run.yaml").string();
}

Run run(const fs::path& folder, const std::string& key, const std::string& value) {
  fs::remove_all(folder / "out");
  return run_fp8("train --config {} --json", file_with(folder, key, value));
}

/// All that was written, names and texts.
std::string written(const fs::path& out) {
  std::string all;
  for (const auto& entry : fs::recursive_directory_iterator(out)) {
    all += entry.path().string() + "\n";
    const auto ending = entry.path().extension();
    if (ending == ".csv" || ending == ".jsonl" || ending == ".json" || ending == ".txt") all += read_file(entry.path());
  }
  return all;
}

struct Row {
  std::string arguments = {};  ///< init_args, OUT for the folder
  std::string output = {};     ///< what a file's name or text, or the result, has then
  int code = 0;
};
using Rows = std::map<std::string, Row>;

/// The names that the message about an unknown one lists.
std::set<std::string> listed(const std::string& message) {
  const auto from = message.rfind("allowed");
  std::string list = message.substr(message.find(": ", from) + 2);
  std::istringstream words(list.substr(0, list.find_first_of(";\n")));
  std::set<std::string> names;
  for (std::string word; words >> word;) {
    if (word.ends_with(",")) word.pop_back();
    if (word != "or" && word != "and") names.insert(word);
  }
  return names;
}

/// The arguments of a row, with the output's folder.
std::string arguments_of(const Row& row, const fs::path& out) {
  std::string arguments = row.arguments;
  if (const auto at = arguments.find("OUT"); at != std::string::npos) arguments.replace(at, 3, out.string());
  return "{" + arguments + "}";
}

/// value: of a name and its arguments.
void expect_all_run(const std::string& key, const std::string& path, const Rows& rows,
                    const std::function<std::string(std::string name, std::string arguments)>& value,
                    bool lists = true) {
  const test::TempDir folder;
  test::small_config(folder);
  if (lists) {
    std::set<std::string> known;
    for (const auto& [name, row] : rows) known.insert(name);
    EXPECT_EQ(listed(run(folder.path(), key, value("NoSuchName", "{}")).err), known) << key;
  }
  for (const auto& [name, row] : rows)
    for (const std::string& spelled : path.empty() ? std::vector{name} : std::vector{name, path + name}) {
      const auto ran = run(folder.path(), key, value(spelled, arguments_of(row, folder / "out")));
      EXPECT_EQ(ran.code, row.code) << spelled << ": " << ran.err;
      if (ran.code == row.code) {
        EXPECT_THAT(ran.out + ran.err + written(folder / "out"), HasSubstr(row.output)) << spelled;
      }
    }
}

std::string part(const std::string& name, const std::string& arguments) {
  return "{class_path: " + name + ", init_args: " + arguments + "}";
}
std::string list_of_part(const std::string& name, const std::string& arguments) {
  return "[" + part(name, arguments) + "]";
}

/// Parts of a list of parts in one run, each with its output.
void expect_run_together(const std::string& key, const std::string& path, const Rows& rows) {
  const test::TempDir folder;
  test::small_config(folder);
  for (const std::string& before : {std::string(), path}) {
    std::string list;
    for (const auto& [name, row] : rows)
      list += (list.empty() ? "[" : ", ") + part(before + name, arguments_of(row, folder / "out"));
    const auto ran = succeeded(run(folder.path(), key, list + "]"));
    const std::string all = ran.out + ran.err + written(folder / "out");
    for (const auto& [name, row] : rows) EXPECT_THAT(all, HasSubstr(row.output)) << before << name;
  }
}

using EveryName = InFolder;

TEST_F(EveryName, CallbacksAndLoggers) {
  const Rows ends = {
      {"EarlyStopping", {"monitor: val_loss, stopping_threshold: 100.0", "past stopping_threshold 100.0"}},
      {"Timer", {"duration: '00:00:00:00'", "Timer: 0.0 seconds are over"}}};
  const Rows callbacks = {
      {"ModelCheckpoint", {"monitor: val_loss, filename: '{epoch:02d}-{val_loss:.2f}'", "best/epoch=00-val_loss=5."}},
      {"LearningRateMonitor", {"logging_interval: step", "lr-"}},
      {"GradientNorms", {"", "grad_2.0_norm_total"}},
      {"DeviceStatsMonitor", {"cpu_stats: false", "DeviceStatsMonitor.on_train_batch_start/Limit"}},
      {"MemoryLog", {"logging_steps: 1", "memory_allocated (GB)"}},
      {"StochasticWeightAveraging", {"swa_lrs: 0.01, swa_epoch_start: 1", "n_averaged"}},
      {"ThroughputRows", {"", "train_samples_per_second"}},
      {"ThroughputMonitor", {"window_size: 2", "train/device/batches_per_sec"}},
      {"OnExceptionCheckpoint", {"dirpath: OUT/failed", "\"steps\":3"}},
      {"TQDMProgressBar", {"refresh_rate: 1", "\"steps\":3"}},
      {"RichProgressBar", {"", "\"steps\":3"}},
      {"ProgressBar", {"", "\"steps\":3"}},
      {"ModelSummary", {"max_depth: 1", "\"steps\":3"}},
      {"RichModelSummary", {"", "\"steps\":3"}}};
  const Rows loggers = {{"CSVLogger", {"save_dir: OUT/mine", "mine/metrics.csv"}},
                        {"TensorBoardLogger", {"save_dir: OUT/board", "board/events.out.tfevents"}},
                        {"JsonlLogger", {"save_dir: OUT/mine", "mine/metrics.jsonl"}}};
  test::small_config(folder);
  std::set<std::string> known;
  for (const Rows* rows : {&ends, &callbacks, &loggers})
    for (const auto& [name, row] : *rows) known.insert(name);
  EXPECT_EQ(listed(run(folder.path(), "trainer.callbacks", list_of_part("NoSuchName", "{}")).err), known);
  expect_all_run("trainer.callbacks", "lightning.pytorch.callbacks.", ends, list_of_part, /*lists=*/false);
  expect_run_together("trainer.callbacks", "lightning.pytorch.callbacks.", callbacks);
  expect_run_together("trainer.logger", "lightning.pytorch.callbacks.", loggers);
  // It is another spelling of a key, so that the code that counts steps knows it.
  expect_all_run("trainer.callbacks", "lightning.pytorch.callbacks.",
                 {{"GradientAccumulationScheduler", {"scheduling: {0: 2}", "\"epochs\":3"}}}, list_of_part,
                 /*lists=*/false);
}

TEST_F(EveryName, Strategies) {
  const auto word = [](const std::string& name, const std::string&) { return name; };
  const Row runs{"", "\"steps\":3"};
  expect_all_run("trainer.strategy", "",
                 {{"auto", runs}, {"hpu_single", runs}, {"hpu_parallel", runs}, {"hpu_ddp", runs}, {"fast_ddp", runs}},
                 word,
                 /*lists=*/false);
  expect_all_run("trainer.strategy", "lightning_habana.pytorch.strategies.",
                 {{"SingleHPUStrategy", runs},
                  {"HPUParallelStrategy", runs},
                  {"HPUDDPStrategy", {"find_unused_parameters: true", "\"steps\":3"}}},
                 part, /*lists=*/false);
}

TEST_F(EveryName, PluginsPrecisionsAndProfilers) {
  expect_all_run("trainer.plugins", "lightning_habana.pytorch.plugins.",
                 {{"HPUPrecisionPlugin", {"precision: bf16-mixed", "\"precision\":\"bf16-mixed\""}},
                  {"HPUCheckpointIO", {"", "checkpoints/step-00000003"}}},
                 list_of_part);
  const auto word = [](const std::string& name, const std::string&) { return name; };
  for (const char* name : {"32-true", "bf16-mixed", "16-mixed", "fp8"})
    expect_all_run("trainer.precision", "", {{name, {"", "\"precision\":\"" + std::string(name) + "\""}}}, word, false);
  const Row trace{"dirpath: OUT/trace", "trace/fit."}, table{"dirpath: OUT/times, filename: t", "training_step"};
  expect_all_run("trainer.profiler", "lightning.pytorch.profilers.",
                 {{"SimpleProfiler", table}, {"HPUProfiler", trace}, {"PyTorchProfiler", trace}}, part, false);
  expect_all_run("trainer.profiler", "", {{"simple", {"", "training_step"}}}, word, false);
}

TEST_F(EveryName, TwoLoggersOfAKind) {
  test::small_config(folder);
  const auto logger = [&](const std::string& kind, const std::string& name) {
    return "{class_path: " + kind + ", init_args: {save_dir: " + (folder / "out/logs").string() + ", name: " + name +
           "}}";
  };
  const auto all = [&](const std::string& second) {
    std::string list;
    for (const char* kind : {"CSVLogger", "JsonlLogger", "TensorBoardLogger"})
      list += (list.empty() ? "[" : ", ") + logger(kind, "a") + ", " + logger(kind, second);
    return list + "]";
  };
  EXPECT_EQ(run(folder.path(), "trainer.logger", all("b")).code, 0);
  const auto file = file_with(folder.path(), "trainer.logger", all("b"));
  const auto more = folder / "more.yaml";
  std::ofstream(more) << "trainer: {max_steps: 5}\n";
  const auto resumed = succeeded(run_fp8("train --config {} --config {} --resume --json", file, more));
  for (const char* name : {"metrics.csv", "metrics.jsonl"}) {
    const auto text = read_file(folder / "out/logs/a" / name);
    EXPECT_EQ(text, read_file(folder / "out/logs/b" / name));
    EXPECT_GE(std::count(text.begin(), text.end(), '\n'), 5);
  }
  for (const char* kind : {"CSVLogger", "JsonlLogger", "TensorBoardLogger"}) {
    const auto same = run(folder.path(), "trainer.logger", "[" + logger(kind, "a") + ", " + logger(kind, "a") + "]");
    EXPECT_EQ(same.code, 1) << kind;
    EXPECT_THAT(same.err, HasSubstr("loggers: found two that write " + (folder / "out/logs/a").string())) << kind;
  }
}

TEST_F(EveryName, Data) {
  const auto text = demo("kjv_heldout_16k.txt");
  expect_all_run("data", "fp8.",
                 {{"TextData", {"train: " + text + ", val: " + text + ", batch_size: 2, seq_len: 32", "\"steps\":3"}}},
                 part, /*lists=*/false);
  test::small_config(folder);
  EXPECT_THAT(run(folder.path(), "data", part("NoSuchName", "{}")).err, HasSubstr("allowed: TextData, or model."));
}

TEST_F(EveryName, OptimizersAndSchedulesOfALanguageModel) {
  const Row runs{"", "\"steps\":3"};
  expect_all_run("optimizer", "torch.optim.", {{"AdamW", runs}, {"FusedAdamW", runs}, {"Muon", runs}}, part);
  const Row warm{"warmup: 2", "\"lr\":0.0005"};
  expect_all_run("lr_scheduler", "fp8.",
                 {{"CosineWithWarmup", warm}, {"LinearWithWarmup", warm}, {"ConstantWithWarmup", warm}}, part);
}

/// Models and data of one's own have optimizers and schedules of another table.
TEST_F(EveryName, OptimizersAndSchedulesOfAModelOfOnesOwn) {
  const auto with = [&](const std::string& optimizer, const std::string& schedule,
                        const std::string& data = "MNISTDataModule") {
    const auto file = folder / "own.yaml";
    std::ofstream(file) << "trainer:\n  max_epochs: 2\n  limit_train_batches: 2\n  default_root_dir: "
                        << (folder / "out").string() << "\ndata: {class_path: " << data
                        << ", init_args: {data_dir: " << (folder / "data").string()
                        << ", synthetic: 128}}\noptimizer: {class_path: " << optimizer << "}\n"
                        << (schedule.empty() ? "" : "lr_scheduler: " + schedule + "\n");
    fs::remove_all(folder / "out");
    return run_fp8("train --load {} --config {} --config {} --json", FP8_MNIST_LIBRARY,
                   FP8_SOURCE_DIR "/tools/examples/mnist/mnist.yaml", file);
  };
  EXPECT_EQ(listed(with("Adam", "", "NoSuchName").err), std::set<std::string>{"MNISTDataModule"});
  const std::set<std::string> optimizers = {"Adam", "AdamW", "SGD", "FusedAdamW", "FusedSGD"};
  EXPECT_EQ(listed(with("NoSuchName", "").err), optimizers);
  for (const auto& name : optimizers) EXPECT_EQ(with("torch.optim." + name, "").code, 0) << name;
  EXPECT_EQ(listed(with("Adam", "{class_path: NoSuchName}").err),
            (std::set<std::string>{"StepLR", "CosineWithWarmup"}));
  auto ran = with("Adam", "{class_path: torch.optim.lr_scheduler.StepLR, init_args: {step_size: 1, gamma: 0.5}}");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(log_of(folder / "out").back()["lr"], 0.0005);  // of the second epoch
  ran = with("Adam", "{class_path: CosineWithWarmup, init_args: {steps: 4, warmup: 2}}");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(log_of(folder / "out").front()["lr"], 0.0005);
}

/// Lightning's meaning of lengths, where the rates' schedule depends on it too.
TEST(RunFileLengths, EpochsHaveTheBatchesThatAreLeft) {
  const test::TempDir folder;
  test::small_config(folder);
  const auto steps = [&](const std::string& keys) -> std::string {
    fs::remove_all(folder / "out");
    const auto file = file_with(folder.path(), "trainer.max_steps", "null");
    std::ofstream(folder / "more.yaml") << "trainer: {" << keys << "}\n";
    const auto ran = run_fp8("train --config {} --config {} --json", file, folder / "more.yaml");
    if (ran.code != 0) return ran.err;
    std::string text;
    for (const auto& line : log_of(folder / "out"))
      text += line["epoch"].dump() + (line.contains("eval_loss") ? "v" : "");
    return text;
  };
  EXPECT_GOLDEN(steps(text));
}

}  // namespace
}  // namespace fp8
