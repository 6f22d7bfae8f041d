// SPDX-License-Identifier: Apache-2.0
// A run as a file: what its keys mean, that it can be printed and run again, and what is refused.
#include "fp8/runtime/io/yaml/yaml.h"
#include "support/names_in.h"
#include "tools/commands/train/train_run.h"

namespace fp8 {
namespace {

namespace fs = std::filesystem;
using test::demo;
using test::log_of;
using test::names_in;
using test::timeless;

/// As LightningCLI writes them: keys that were not set are null.
std::string lightning_file(const fs::path& folder, const std::string& out) {
  return "# lightning.pytorch==2.2.0\n"
         "seed_everything: 7\n"
         "trainer:\n"
         "  accelerator: hpu\n"
         "  strategy: hpu_single\n"
         "  devices: 1\n"
         "  num_nodes: 1\n"
         "  precision: null\n"
         "  logger:\n"
         "  - class_path: lightning.pytorch.loggers.CSVLogger\n"
         "    init_args: {save_dir: " +
         (folder / out / "csv").string() +
         "}\n"
         "  callbacks:\n"
         "  - class_path: lightning.pytorch.callbacks.EarlyStopping\n"
         "    init_args: {monitor: val_loss, min_delta: 0.0, patience: 3, verbose: false, mode: min}\n"
         "  - class_path: lightning.pytorch.callbacks.LearningRateMonitor\n"
         "    init_args: {logging_interval: step}\n"
         "  plugins:\n"
         "  - class_path: lightning_habana.pytorch.plugins.precision.HPUPrecisionPlugin\n"
         "    init_args: {precision: bf16-mixed}\n"
         "  - lightning_habana.pytorch.plugins.io_plugin.HPUCheckpointIO\n"
         "  fast_dev_run: false\n"
         "  max_epochs: null\n"
         "  max_steps: 6\n"
         "  limit_train_batches: null\n"
         "  limit_val_batches: 2\n"
         "  val_check_interval: 3\n"
         "  log_every_n_steps: 1\n"
         "  enable_model_summary: null\n"
         "  accumulate_grad_batches: 1\n"
         "  gradient_clip_val: null\n"
         "  detect_anomaly: false\n"
         "  sync_batchnorm: false\n"
         "  default_root_dir: " +
         (folder / out).string() +
         "\n"
         "model:\n"
         "  class_path: fp8.LanguageModel\n"
         "  init_args: {init: " +
         (folder / "init/config.json").string() + ", tokenizer: " + demo("kjv-byte-1.7M") +
         "}\n"
         "data:\n"
         "  class_path: fp8.TextData\n"
         "  init_args:\n"
         "    train: " +
         demo("kjv_calib.txt") +
         "\n"
         "    val: " +
         demo("kjv_heldout_16k.txt") +
         "\n"
         "    test: " +
         demo("kjv_heldout_16k.txt") +
         "\n"
         "    predict: " +
         demo("kjv_heldout_16k.txt") +
         "\n"
         "    batch_size: 2\n"
         "    seq_len: 32\n"
         "optimizer:\n"
         "  class_path: torch.optim.AdamW\n"
         "  init_args: {lr: 0.01, betas: [0.9, 0.98]}\n"
         "ckpt_path: null\n";
}

std::string written(const fs::path& path, const std::string& text) {
  std::ofstream(path) << text;
  return path.string();
}

test::Run train(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"train"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_fp8(all, {.environment = {{"PL_TRAINER__LIMIT_VAL_BATCHES", "1"}}});
}

class RunFile : public test::TrainingFolder {};

TEST_F(RunFile, ALightningFileRunsAndItsPrintedFormIsTheSameRun) {
  const auto a = written(folder / "a.yaml", lightning_file(folder.path(), "a"));
  auto run = train(args("--config {} --json", a));
  ASSERT_EQ(run.code, 0) << run.err;
  const auto json = io::parse_json(run.out, "stdout");
  EXPECT_EQ(json["steps"], 6);
  EXPECT_EQ(json["precision"], "bf16-mixed");  // the plugin's
  const auto lines = timeless(log_of(folder / "a"));
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_TRUE(lines[2].contains("eval_loss"));
  EXPECT_FALSE(lines[3].contains("eval_loss"));
  EXPECT_EQ(lines[0]["lr"], 0.01);
  EXPECT_THAT(names_in(folder / "a/csv"), Contains("metrics.csv"));
  run = train(args("--config {} --eval-every 2 --out {}", a, folder / "each2"));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(log_of(folder / "each2")[1].contains("eval_loss"));  // not the file's val_check_interval
  EXPECT_FALSE(log_of(folder / "each2")[2].contains("eval_loss"));

  run = train(args("--config {} --print-config --out {}", a, folder / "b"));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_FALSE(fs::exists(folder / "b"));
  EXPECT_THAT(run.out, HasSubstr("  max_steps: 6  # " + a + ":23\n"));
  EXPECT_THAT(run.out, HasSubstr((folder / "b").string() + "  # command line\n"));
  EXPECT_THAT(run.out, HasSubstr("  keep_checkpoints: 2  # default\n"));
  const auto b = written(folder / "b.yaml", run.out);
  ASSERT_EQ(train({"--config", b}).code, 0);
  EXPECT_EQ(timeless(log_of(folder / "b")), lines);

  const auto printed = train(args("--config {} --print-config", b));
  EXPECT_EQ(io::parse_yaml(printed.out, "c").value, io::parse_yaml(run.out, "b").value);
}

TEST_F(RunFile, OtherStagesHaveTheirOwnDataAndWrite) {
  const auto a = written(folder / "a.yaml", lightning_file(folder.path(), "a"));
  ASSERT_EQ(train(args("--config {} --trainer.max_steps=3", a)).code, 0);
  const auto checkpoint = (folder / "a/checkpoints/step-00000003").string();
  const auto value = [&](const std::vector<std::string>& arguments) {
    return json_of(train(args("{} --config {} --json --trainer.logger=false --trainer.callbacks=null", arguments, a)));
  };
  const auto fitted = log_of(folder / "a").back()["eval_loss"].get<double>();
  EXPECT_EQ(value({"validate", "--ckpt_path", checkpoint})["metrics"]["val_loss"], fitted);
  EXPECT_NE(value({"validate"})["metrics"]["val_loss"], fitted);
  EXPECT_EQ(value({"validate", "--ckpt_path=last"})["metrics"]["val_loss"], fitted);
  EXPECT_EQ(value({"test", "--ckpt_path=" + checkpoint, "--trainer.limit_test_batches=2"})["metrics"]["test_loss"],
            fitted);
  const auto predicted = value({"predict", "--ckpt_path", checkpoint, "--trainer.limit_predict_batches", "2"});
  EXPECT_EQ(predicted["metrics"]["samples"], 4);
  EXPECT_TRUE(fs::exists(folder / "a/predictions.safetensors"));
}

TEST_F(RunFile, AResumedRunIsTheSameOne) {
  const auto a = written(folder / "a.yaml", lightning_file(folder.path(), "a"));
  const std::vector<std::string> one = args("--config {} --trainer.max_steps=3", a);
  ASSERT_EQ(train(one).code, 0);
  const auto resumed = [&](std::vector<std::string> more) {
    more = args("{} --config {} --resume --quiet", more, a);
    return train(more);
  };
  for (const char* other :
       {"--trainer.limit_val_batches=1", "--trainer.callbacks=null", "--trainer.overfit_batches=2"}) {
    const auto run = resumed({other});
    expect_failed(run, {"train.json: key 'run': the run was started with"});
  }
  const auto run = resumed({"--trainer.enable_progress_bar=false"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(log_of(folder / "a").size(), 6u);
  EXPECT_EQ(train(args("--config {} --ckpt_path=last --quiet", a)).code, 0);
}

TEST_F(RunFile, FastDevRunLeavesNothingBehind) {
  const auto a = written(folder / "a.yaml", lightning_file(folder.path(), "a"));
  EXPECT_EQ(json_of(train(args("--config {} --trainer.fast_dev_run=2 --json", a)))["steps"], 2);
  EXPECT_FALSE(fs::exists(folder / "a"));
}

/// A mistake, the exit code, and what is said.
struct Mistake {
  std::string file, more;
  int code;
  std::string message;
};

const std::vector<Mistake> kMistakes = {
    {"", "--trainer.max_stesp=3", 2, "--trainer.max_stesp: unknown key, the nearest is 'max_steps'"},
    {"", "--trainer.max_steps=many", 2, "--trainer.max_steps: found \"many\", allowed: an integer, at least 1"},
    {"trainer: {max_steps: many}\n", "", 1, "x.yaml:1: trainer.max_steps: found \"many\""},
    {"trainer: {presicion: fp8}\n", "", 1, "x.yaml:1: trainer.presicion: unknown key, the nearest is 'precision'"},
    {"trainer: {precision: fp9}\n", "", 1, "x.yaml:1: trainer.precision: found 'fp9', allowed: 32-true, bf16-mixed"},
    {"trainer: {strategy: hpu_dpd}\n", "", 1, "x.yaml:1: trainer.strategy: found 'hpu_dpd'"},
    {"trainer: {devices: [0, 1]}\n", "", 1, "`devices` for `HPUAccelerator` must be int, string or None."},
    {"trainer: {devices: 2}\n", "", 2, "torchrun --nproc-per-node 2"},
    {"trainer: {devices: 1, num_nodes: 2}\n", "", 2, "torchrun --nnodes 2"},
    {"trainer: {max_steps: 3, max_epochs: 2}\n", "", 1, "x.yaml:1: trainer.max_steps: found beside trainer.max_epochs"},
    {"trainer: {limit_train_batches: 1.5}\n", "", 1, "allowed: a number of batches, or a share of them"},
    {"trainer: {sync_batchnorm: true}\n", "", 1, "x.yaml:1: trainer.sync_batchnorm: found true"},
    {"trainer: {use_hpu_graphs_for_training: true}\n", "", 1,
     "x.yaml:1: trainer.use_hpu_graphs_for_training: found true"},
    {"trainer: {strategy: hpu_deepspeed}\n", "", 1,
     "x.yaml:1: trainer.strategy: found 'hpu_deepspeed', which comes with"},
    {"trainer: {max_time: tomorrow}\n", "", 1, "x.yaml:1: trainer.max_time: found \"tomorrow\""},
    {"trainer:\n  callbacks:\n  - class_path: EarlyStoping\n", "", 1,
     "x.yaml:3: trainer.callbacks.0.class_path: found 'EarlyStoping'"},
    {"trainer:\n  callbacks:\n  - class_path: EarlyStopping\n    init_args:\n      patence: 3\n      monitor: "
     "val_loss\n",
     "", 1, "x.yaml:5: trainer.callbacks.0.init_args.patence: found an argument that EarlyStopping does not have"},
    {"trainer: {callbacks: [my_project.Callback]}\n", "", 1, "a class of Python: python your_training.py fit"},
    {"trainer: {plugins: [AsyncCheckpointIO]}\n", "", 1, "allowed: HPUPrecisionPlugin, HPUCheckpointIO"},
    {"model: {class_path: my_project.Net}\ndata: {class_path: my_project.Data}\n", "", 1,
     "model.class_path: found 'my_project.Net', a class of Python"},
    {"model: {class_path: LanguageModel, init_args: {inti: a}}\n", "", 1, "x.yaml:1: model.init_args.inti"},
    {"data: {class_path: MNISTDataModule}\n", "", 1, "without a model of its own"},
    {"optimizer: {class_path: my_project.AdamW}\n", "", 1, "x.yaml:1: optimizer.class_path: found 'my_project.AdamW'"},
    {"trainer: {accelerator: my_project.HPUAccelerator}\n", "", 1, "x.yaml:1: trainer.accelerator: found"},
    {"trainer: {plugins: [my_project.HPUPrecisionPlugin]}\n", "", 1, "allowed: HPUPrecisionPlugin, HPUCheckpointIO"},
    {"optimizer: {class_path: torch.optim.LBFGS}\n", "", 1,
     "x.yaml:1: optimizer.class_path: found 'torch.optim.LBFGS'"},
    {"ckpt_path: out/checkpoints/step-00000003\n", "", 1,
     "x.yaml:1: ckpt_path: found 'out/checkpoints/step-00000003', allowed for fit: null, or last"},
    {"ckpt_path: best\n", "", 1, "x.yaml:1: ckpt_path: found \"best\""},
    {"fp8: {warmpu: 3}\n", "", 1, "x.yaml:1: fp8.warmpu: there is no option --warmpu"},
    {"trainer:\n\tmax_steps: 3\n", "", 1, "x.yaml:2:"},
    {"trainer: {max_steps: 3}\ntrainer: {max_steps: 4}\n", "", 1, "x.yaml:2:1: duplicate key 'trainer'"}};

TEST_F(RunFile, MistakesAreNamedByPlaceAndKey) {
  const std::string good = lightning_file(folder.path(), "out");
  const auto file = written(folder / "good.yaml", good);
  for (const auto& m : kMistakes) {
    SCOPED_TRACE(m.file);
    const auto more = m.file.empty() ? test::Words() : args("--config {}", written(folder / "x.yaml", m.file));
    expect_failed(train(args("--config {} {} {}", file, more, args(m.more))), {m.message}, m.code);
    EXPECT_FALSE(fs::exists(folder / "out")) << m.file;
  }
  EXPECT_THAT(train({"best"}).err, HasSubstr("STAGE: found 'best', allowed: fit, validate, test, predict"));
}

TEST_F(RunFile, OptionsWinOverFilesAndFilesOverTheEnvironment) {
  const auto a = written(folder / "a.yaml",
                         "trainer: {max_steps: 5, precision: fp8, gradient_clip_val: null}\n"
                         "fp8: {keep: [lm_head, 'layers\\.0\\.'], threads: 1}\n");
  const auto b =
      written(folder / "b.json", "{\"trainer\": {\"max_time\": \"00:01:00:05\"}, \"seed_everything\": true}");
  const auto json = json_of(train(args("--config {} --config {} --steps 9 --print-config --json", a, b)));
  EXPECT_EQ(json["trainer"]["max_steps"], 9);
  EXPECT_EQ(json["trainer"]["limit_val_batches"], 1);  // of the environment
  EXPECT_EQ(json["fp8"]["keep"], io::Json::parse(R"(["lm_head", "layers\\.0\\."])"));
  EXPECT_EQ(json["fp8"]["lr"], 0.001);
}

}  // namespace
}  // namespace fp8
