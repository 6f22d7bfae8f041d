// SPDX-License-Identifier: Apache-2.0
// A run as a file: what its keys mean, that it can be printed and run again, and what is refused.
#include "fp8/runtime/io/idx/idx.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/io/yaml/yaml.h"
#include "support/golden.h"
#include "support/values.h"
#include "tools/commands/train/train_run.h"

namespace fp8 {
namespace {

/// As LightningCLI writes them: keys that were not set are null.
std::string lightning_file(const fs::path& folder, const std::string& out) {
  std::string text = read_file(FP8_SOURCE_DIR "/tests/tools/commands/train/run/lightning.yaml");
  for (const auto& [word, path] :
       std::map<std::string, fs::path>{{"$OUT", folder / out}, {"$FOLDER", folder}, {"$DATA", test::demo_data()}})
    for (std::size_t at; (at = text.find(word)) != text.npos;) text.replace(at, word.size(), path.string());
  return text;
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
  auto run = succeeded(train(args("--config {} --json", a)));
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
  const auto graphed = value({"validate", "--ckpt_path=last", "--trainer.use_hpu_graphs_for_inference=true"});
  EXPECT_EQ(graphed["metrics"]["val_loss"], fitted);
  EXPECT_GE(graphed["hpu_graphs"]["captured"], 1) << graphed.dump();
  EXPECT_EQ(graphed["hpu_graphs"]["as_they_are"], 0) << graphed.dump();
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
    expect_failed(resumed({other}), {"train.json: key 'run': the run was started with"});
  }
  const auto run = succeeded(resumed({"--trainer.enable_progress_bar=false"}));
  EXPECT_EQ(log_of(folder / "a").size(), 6u);
  EXPECT_EQ(train(args("--config {} --ckpt_path=last --quiet", a)).code, 0);
}

TEST_F(RunFile, FastDevRunLeavesNothingBehind) {
  const auto a = written(folder / "a.yaml", lightning_file(folder.path(), "a"));
  EXPECT_EQ(json_of(train(args("--config {} --trainer.fast_dev_run=2 --json", a)))["steps"], 2);
  EXPECT_FALSE(fs::exists(folder / "a"));
}

TEST_F(RunFile, MistakesAreNamedByPlaceAndKey) {
  const auto file = written(folder / "good.yaml", lightning_file(folder.path(), "out"));
  /// The exit code and what stands on stderr.
  const auto outcome = [&](const test::Words& more) {
    const auto run = train(args("--config {} {}", file, more));
    expect_failed(run, {}, run.code);
    EXPECT_THAT(run.code, testing::AnyOf(1, 2));
    EXPECT_FALSE(fs::exists(folder / "out"));
    return std::to_string(run.code) + ": " + run.err;
  };
  EXPECT_GOLDEN(outcome(args("--config {}", written(folder / "x.yaml", text + "\n"))));
  EXPECT_GOLDEN(outcome(args(text)), " of options");
  EXPECT_THAT(train({"fitt"}).err, HasSubstr("STAGE: found 'fitt', allowed: fit, validate, test, predict"));
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
  expect_values(json["fp8"], {{"keep", io::Json::parse(R"(["lm_head", "layers\\.0\\."])")}, {"lr", 0.001}});
}

// tools/examples/mnist as a run file: a model and data of a user's library through all stages of the program, printed
// and run again, killed and resumed, and what is refused. The same in C++: data_test.

constexpr char kExample[] = FP8_SOURCE_DIR "/tools/examples/mnist/mnist.yaml";

/// The example's file, and what of it is another here in a second file: smaller data, all below `folder`.
std::vector<std::string> arguments_of(const test::TempDir& folder, const std::string& out) {
  const auto file = folder / (out + ".yaml");
  std::ofstream(file) << "trainer:\n  default_root_dir: " << (folder / out).string()
                      << "\n  logger:\n  - class_path: lightning.pytorch.loggers.CSVLogger\n    init_args: {save_dir: "
                      << (folder / out / "csv").string()
                      << "}\ndata: {init_args: {data_dir: " << (folder / "data").string() << ", synthetic: 960}}\n";
  return args("train --load {} --config {} --config {} --precision fp8 --save-every 7 --json", FP8_MNIST_LIBRARY,
              kExample, file);
}

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// The output of a stage.
io::Json result_of(const std::vector<std::string>& arguments) {
  const auto run = succeeded(run_fp8(arguments));
  EXPECT_THAT(run.err, Not(HasSubstr("warning")));
  return run.code == 0 ? io::parse_json(run.out, "stdout") : io::Json::object();
}

std::string state_of(const fs::path& out) {
  return read_file(out / "checkpoints/step-00000084/trainer_state.safetensors");
}

class MnistRun : public test::InFolder {};

TEST_F(MnistRun, AllStagesInFp8AndAgainAfterAKill) {
  const auto whole = arguments_of(folder, "whole");
  const auto fit = result_of(with(whole, {"--trainer.num_sanity_val_steps=1"}));
  ASSERT_TRUE(fit.contains("steps"));
  EXPECT_EQ(fit["steps"], 84);  // 880 images of 960, 32 a batch, 3 epochs
  EXPECT_EQ(fit["modules_fp8"], 2);
  EXPECT_GE(fit["metrics"]["val_acc"], 0.97);
  const auto lines = log_of(folder / "whole");
  ASSERT_EQ(lines.size(), 84u);
  for (const auto& line : lines)  // StepLR, by epoch
    EXPECT_DOUBLE_EQ(line["lr"], std::vector({1e-3, 1e-3 * 0.7, 1e-3 * 0.7 * 0.7}).at(line["epoch"])) << line;
  EXPECT_EQ(lines.back()["eval_loss"], fit["metrics"]["val_loss"]);
  EXPECT_THAT(read_file(folder / "whole/csv/metrics.csv"), HasSubstr("lr-Adam"));
  EXPECT_EQ(names_in(folder / "whole/best").size(), 1u);

  const auto stage = [&](const std::string& name) {
    auto arguments =
        with(whole, args("--ckpt_path {} --trainer.logger=false", folder / "whole/checkpoints/step-00000084"));
    arguments.insert(arguments.begin() + 1, name);
    return result_of(arguments);
  };
  EXPECT_DOUBLE_EQ(stage("validate")["metrics"]["val_loss"], fit["metrics"]["val_loss"]);
  EXPECT_GE(stage("test")["metrics"]["test_acc"], 0.97);
  EXPECT_EQ(stage("predict")["metrics"]["samples"], 240);
  const auto labels = io::read_idx(folder / "data/synthetic-960/t10k-labels-idx1-ubyte").elements;
  const io::Checkpoint predictions(folder / "whole/predictions.safetensors");
  std::size_t right = 0, at = 0;
  for (const auto& name : predictions.names()) {
    std::vector<std::int64_t> classes(static_cast<std::size_t>(predictions.info(name).shape.at(0)));
    predictions.read(name, classes.data());
    for (const auto digit : classes) right += digit == labels.at(at++) ? 1 : 0;
  }
  EXPECT_EQ(at, 240u);
  EXPECT_GE(static_cast<double>(right), 0.97 * 240);

  const auto killed = with(arguments_of(folder, "killed"), {"--trainer.num_sanity_val_steps=1", "--resume"});
  ASSERT_EQ(test::run_and_signal(killed, folder / "killed", 40, SIGKILL), -SIGKILL);
  const auto other = run_fp8(with(killed, {"--clip", "0.5"}));
  EXPECT_EQ(other.code, 1);  // beside what the example says of its pictures
  EXPECT_THAT(other.without("mnist: "), testing::AllOf(testing::StartsWith("fp8: error: "),
                                                       HasSubstr("train.json: key 'run': the run was started with")));
  EXPECT_THAT(result_of(killed)["resumed_from"].get<std::int64_t>(), ::testing::Ge(35));
  EXPECT_EQ(timeless(log_of(folder / "killed")), timeless(lines));
  EXPECT_TRUE(state_of(folder / "killed") == state_of(folder / "whole"));
}

TEST_F(MnistRun, ThePrintedFileIsTheSameRun) {
  const auto a = arguments_of(folder, "a");
  const std::vector<std::string> less =
      args("--trainer.limit_train_batches=6 --trainer.limit_val_batches=0.5 --trainer.accumulate_grad_batches=4");
  EXPECT_EQ(result_of(with(a, less))["steps"], 6);
  auto print = with(a, less);
  std::erase(print, "--json");
  const auto printed = succeeded(run_fp8(with(print, args("--print-config --out {}", folder / "b"))));
  EXPECT_FALSE(fs::exists(folder / "b"));
  EXPECT_THAT(printed.out, HasSubstr("hidden: 128  # " + std::string(kExample) + ":"));
  EXPECT_THAT(printed.out, HasSubstr("limit_train_batches: 6  # command line"));
  const auto b = (folder / "b.yaml").string();
  std::ofstream(b) << printed.out;
  // It loads code, which the file alone does not start.
  const auto unnamed = run_fp8("train --config {} --json", b);
  EXPECT_EQ(unnamed.code, 1);
  EXPECT_THAT(unnamed.err, HasSubstr("fp8.load: found the library '" FP8_MNIST_LIBRARY
                                     "', whose code would run, allowed: one that the command line names as well; if "
                                     "you trust it, add --load '" FP8_MNIST_LIBRARY "'"));
  EXPECT_FALSE(fs::exists(folder / "b"));
  result_of(args("train --config {} --json --load {}", b, FP8_MNIST_LIBRARY));
  const auto lines = timeless(log_of(folder / "b"));
  EXPECT_EQ(lines, timeless(log_of(folder / "a")));
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0]["tokens"], 4 * 32);
  EXPECT_EQ(lines[1]["tokens"], 2 * 32);
}

TEST_F(MnistRun, ATrialLeavesNothing) {
  const auto fit = result_of(with(arguments_of(folder, "trial"), {"--trainer.fast_dev_run=2"}));
  expect_values(fit, {{"steps", 2}, {"epochs", 1}});
  EXPECT_FALSE(fs::exists(folder / "trial"));
}

TEST_F(MnistRun, RefusesByName) {
  const auto refused = [&](const std::vector<std::string>& more, int code, const std::vector<std::string>& words) {
    const auto run = run_fp8(with(arguments_of(folder, "no"), more));
    EXPECT_EQ(run.code, code) << run.err;
    EXPECT_EQ(run.error_lines(), 1) << run.err;
    for (const auto& word : words) EXPECT_THAT(run.err, HasSubstr(word));
    EXPECT_FALSE(fs::exists(folder / "no"));
  };
  refused({"--model.class_path=my_project.models.Net"}, 1,
          {"model.class_path: found 'my_project.models.Net', a class of Python: python your_training.py fit --config"});
  refused({"--model.class_path=LitClasifier"}, 1, {"which is not a model", "LitClassifier"});
  refused({"--model.hiden=3"}, 1, {"model.init_args.hiden: found an argument that LitClassifier does not have"});
  refused({"--data.batch_size=none"}, 1, {"data.init_args.batch_size: found \"none\", allowed: an integer"});
  refused({"--model.gamma=0"}, 1, {"gamma: found 0"});
  refused({"--data.class_path=fp8.TextData"}, 1,
          {"which is not a data module that is known, allowed: MNISTDataModule"});
  refused({"--lr", "0.1"}, 2, {"--lr: has no effect with model LitClassifier"});
  expect_failed(run_fp8("train --config {} --out {}", kExample, folder / "no"),
                {"mnist.yaml:33: model.class_path: found 'LitClassifier', which is not a model that is known, allowed: "
                 "what a library that --load loads makes known"});
}

TEST_F(MnistRun, DoctorSaysWhatTheLibraryHas) {
  const auto extension = json_of(run_fp8("doctor --load {} --json", FP8_MNIST_LIBRARY))["extensions"].at(0);
  EXPECT_EQ(extension["parts"], io::Json::array({"data MNISTDataModule", "model LitClassifier"}));
  EXPECT_TRUE(extension["ops"].empty());
}

}  // namespace
}  // namespace fp8
