// SPDX-License-Identifier: Apache-2.0
// tools/examples/mnist, which a user's program would be: every precision learns a set that can be told apart, the loops
// take as many batches as they are told, and threads of the loader change no bit. Run files: mnist_run_test.
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <map>

#include "fp8/runtime/data/image_folder.h"
#include "fp8/runtime/io/idx/idx.h"
#include "fp8/runtime/trainer/parts.h"
#include "fp8/tools/examples/mnist/lit_classifier.h"
#include "fp8/tools/examples/mnist/mnist_data_module.h"
#include "fp8/transformer_engine/convert/precision_plugin.h"
#include "fp8/transformer_engine/trainer.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8 {
namespace {

/// The calls that a trainer received.
struct Counts : te::TrainerCallback {
  std::int64_t train = 0, val = 0, test = 0, predict = 0;
  std::vector<std::int64_t> batches;  ///< of each step
  std::map<std::int64_t, double> lr;  ///< by epoch
  void on_train_batch_end(te::Trainer&, const te::Batch&, std::int64_t, double) override { ++train; }
  void on_validation_batch_end(te::Trainer&, const te::Batch&, std::int64_t, double) override { ++val; }
  void on_test_batch_end(te::Trainer&, const te::Batch&, std::int64_t, double) override { ++test; }
  void on_predict_batch_end(te::Trainer&, const te::Batch&, std::int64_t, const std::vector<at::Tensor>&) override {
    ++predict;
  }
  void on_step_end(te::Trainer&, const te::StepReport& report) override {
    batches.push_back(report.batches);
    lr[report.epoch] = report.lr;
  }
};

/// A classifier, data and a trainer on hpu, in a precision.
struct Training {
  Training(const std::filesystem::path& folder, te::TrainerOptions options, const std::string& precision = "32-true",
           int workers = 0)
      : plugin(precision),
        data({.data_dir = folder, .num_workers = workers, .seed = 1, .synthetic = 960, .device = at::Device("hpu")}) {
    at::manual_seed(1);
    model = std::make_unique<mnist::LitClassifier>(mnist::LitClassifierOptions{.hidden = 64, .gamma = 0.5});
    model->network().to(at::Device("hpu"));
    data.prepare_data();
    data.setup();
    if (precision == "fp8") plugin.convert_modules(model->network(), {.replace_layers = true});
    trainer = std::make_unique<te::Trainer>(te::with_precision(plugin, std::move(options)),
                                            std::vector<std::shared_ptr<te::TrainerCallback>>{counts});
  }
  te::FitResult fit() { return trainer->fit(*model, *data.train_dataloader(), data.val_dataloader().get()); }

  te::HPUPrecisionPlugin plugin;
  mnist::MNISTDataModule data;
  std::unique_ptr<mnist::LitClassifier> model;
  std::shared_ptr<Counts> counts = std::make_shared<Counts>();
  std::unique_ptr<te::Trainer> trainer;
};

class MnistPrecision : public ::testing::TestWithParam<const char*> {};

/// The classes that predict() gives are judged by the file of labels itself.
TEST_P(MnistPrecision, LearnsASeparableSet) {
  const test::TempDir folder;
  Training s(folder.path(), {.max_epochs = 3}, GetParam());
  const auto fit = s.fit();
  EXPECT_EQ(fit.steps, 3 * 28);  // 880 images of 960, 32 a batch
  const auto val = s.trainer->validate(*s.model, *s.data.val_dataloader());
  const auto test = s.trainer->test(*s.model, *s.data.test_dataloader());
  EXPECT_GE(val.metrics.at("val_acc"), 0.97);
  EXPECT_GE(test.metrics.at("test_acc"), 0.97);
  EXPECT_LT(test.loss, 0.3);

  const auto labels = io::read_idx(s.data.folder() / "t10k-labels-idx1-ubyte").elements;
  const auto predicted = s.trainer->predict(*s.model, *s.data.predict_dataloader());
  std::string classes;
  for (const auto& batch : predicted.predictions) {
    const at::Tensor here = batch.tensors.at(0).cpu();
    for (std::int64_t i = 0; i < here.size(0); ++i) classes.push_back(static_cast<char>(here[i].item<std::int64_t>()));
  }
  ASSERT_EQ(classes.size(), labels.size());
  std::size_t right = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) right += classes[i] == labels[i] ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(right) / static_cast<double>(labels.size()), test.metrics.at("test_acc"), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(All, MnistPrecision, ::testing::Values("32-true", "bf16-mixed", "fp8"));

class Mnist : public test::InFolder {};

TEST_F(Mnist, FastDevRunTakesNBatchesOfEachLoop) {
  Training s(folder.path(), {.max_epochs = 5, .fast_dev_run = 2, .checkpoint_root = folder / "none"});
  s.fit();
  s.trainer->test(*s.model, *s.data.test_dataloader());
  s.trainer->predict(*s.model, *s.data.predict_dataloader());
  EXPECT_EQ(s.counts->train, 2);
  EXPECT_EQ(s.counts->val, 2);
  EXPECT_EQ(s.counts->test, 2);
  EXPECT_EQ(s.counts->predict, 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "none"));
}

/// 28 batches to train, 3 to validate, 8 to test and predict. What is left over of an epoch is a step, too.
TEST_F(Mnist, LimitsAndAccumulationCountExactly) {
  Training s(folder.path(), {.max_epochs = 2,
                             .accumulate_grad_batches = std::int64_t{3},
                             .limit_train_batches = 0.25,
                             .limit_val_batches = std::int64_t{1},
                             .limit_test_batches = std::int64_t{5},
                             .limit_predict_batches = 0.5});
  EXPECT_EQ(s.fit().steps, 6);
  s.trainer->test(*s.model, *s.data.test_dataloader());
  s.trainer->predict(*s.model, *s.data.predict_dataloader());
  EXPECT_THAT(s.counts->batches, ElementsAre(3, 3, 1, 3, 3, 1));
  EXPECT_EQ(s.counts->train, 14);
  EXPECT_EQ(s.counts->val, 2);
  EXPECT_EQ(s.counts->test, 5);
  EXPECT_EQ(s.counts->predict, 4);
}

TEST_F(Mnist, TheRateFallsOnceAnEpoch) {
  Training s(folder.path(), {.max_epochs = 3, .limit_train_batches = std::int64_t{2}});
  s.fit();
  EXPECT_THAT(s.counts->lr, ElementsAre(std::pair(0, 1e-3), std::pair(1, 1e-3 * 0.5), std::pair(2, 1e-3 * 0.5 * 0.5)));
}

TEST_F(Mnist, ThreadsOfTheLoaderChangeNoBit) {
  std::vector<at::Tensor> first;
  for (const int workers : {0, 2}) {
    Training s(folder.path(), {.max_epochs = 2, .limit_train_batches = std::int64_t{9}}, "bf16-mixed", workers);
    s.fit();
    std::vector<at::Tensor> weights;
    for (const auto& p : s.model->network().parameters()) weights.push_back(p.detach().cpu());
    if (workers == 0) first = weights;
    ASSERT_EQ(weights.size(), 4u);
    for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(at::equal(weights[i], first[i])) << i;
  }
}

/// Some of MNIST's files are not replaced by others; arguments are named.
TEST_F(Mnist, RefusesByName) {
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"})
    std::ofstream(folder / name) << std::string("\0\0\x08\1\0\0\0\1\0", 9);
  mnist::MNISTDataModule half({.data_dir = folder.path()});
  half.prepare_data();
  EXPECT_TRUE(throws_with({"train-images-idx3-ubyte", "sizes"}, [&] { half.setup(); }));
  EXPECT_TRUE(throws_with({"setup() comes first"}, [&] { half.train_dataloader(); }));
  EXPECT_TRUE(throws_with({"val_share: found 1.0"}, [] { mnist::MNISTDataModule({.val_share = 1}); }));
  EXPECT_TRUE(throws_with({"gamma: found 0.0"}, [] { mnist::LitClassifier({.gamma = 0}); }));
  trainer::Part part{"LitClassifier", {{"hiden", 3}}, "run.yaml:4: model"};
  EXPECT_TRUE(throws_with({"run.yaml:4: model: hiden", "the nearest is 'hidden'"},
                          [&] { trainer::make_part<trainer::TrainingModule>(part, {}); }));
}

}  // namespace
}  // namespace fp8
