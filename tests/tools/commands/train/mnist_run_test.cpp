// SPDX-License-Identifier: Apache-2.0
// tools/examples/mnist as a run file: a model and data of a user's library through all stages of the program, printed
// and run again, killed and resumed, and what is refused. The same in C++: mnist_test.
#include "fp8/runtime/io/idx/idx.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "support/names_in.h"
#include "tools/commands/train/train_run.h"

namespace fp8 {
namespace {

namespace fs = std::filesystem;
using test::log_of;
using test::names_in;
using test::timeless;

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
  const auto run = run_fp8(arguments);
  EXPECT_EQ(run.code, 0) << run.err;
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
  ASSERT_TRUE(WIFSIGNALED(test::run_and_signal(killed, folder / "killed", 40, SIGKILL)));
  expect_failed(run_fp8(with(killed, {"--clip", "0.5"})), {"train.json: key 'run': the run was started with"});
  const auto again = result_of(killed);
  EXPECT_THAT(again["resumed_from"].get<std::int64_t>(), ::testing::Ge(35));
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
  const auto printed = run_fp8(with(print, args("--print-config --out {}", folder / "b")));
  ASSERT_EQ(printed.code, 0) << printed.err;
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
  EXPECT_EQ(fit["steps"], 2);
  EXPECT_EQ(fit["epochs"], 1);
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
