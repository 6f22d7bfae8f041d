// SPDX-License-Identifier: Apache-2.0
// Batches of chunks: every chunk once an epoch, another order in each, any place can be gone back to. The loss by its
// formula in f64.
#include <ATen/ops/full.h>
#include <torch/torch.h>

#include "fp8/runtime/data/image_folder.h"
#include "fp8/runtime/lazy/lazy_mode.h"
#include "fp8/tools/commands/train/train_run.h"
#include "fp8/tools/examples/mnist/lit_classifier.h"
#include "fp8/tools/examples/mnist/mnist_data_module.h"
#include "fp8/transformer_engine/trainer.h"
#include "support/enum_names.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"
#include "support/values.h"

namespace fp8::commands {
namespace {

/// Chunk i is [10 i, 10 i + 1, 10 i + 2].
text::Chunks chunks(std::int64_t count) {
  text::Chunks result{.count = count, .length = 3};
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t k = 0; k < 3; ++k) result.ids.push_back(10 * i + k);
  return result;
}

std::vector<std::int64_t> first_ids(TextBatches& batches) {
  std::vector<std::int64_t> found;
  while (const auto batch = batches.next()) {
    const auto& ids = batch->tensors[0];
    EXPECT_EQ(ids.size(0), batch->samples);
    EXPECT_EQ(batch->tokens, batch->samples * 3);
    for (std::int64_t i = 0; i < ids.size(0); ++i) {
      found.push_back(ids[i][0].item<std::int64_t>() / 10);
      EXPECT_EQ(ids[i][2].item<std::int64_t>(), 10 * found.back() + 2);
    }
  }
  return found;
}

TEST(TextBatches, InOrderWithARaggedLast) {
  TextBatches batches(chunks(7), 3, /*shuffle=*/false, 0, at::kCPU);
  EXPECT_EQ(batches.batches(), 3);
  batches.seek(0, 0);
  EXPECT_THAT(first_ids(batches), ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6));
  batches.seek(1, 2);
  EXPECT_THAT(first_ids(batches), ::testing::ElementsAre(6));
  batches.seek(1, 3);
  EXPECT_TRUE(first_ids(batches).empty());
}

TEST(TextBatches, AMultipleLeavesOutTheRest) {
  TextBatches batches(chunks(7), 2, /*shuffle=*/false, 0, at::kCPU, trainer::LastBatch::drop, /*multiple=*/4);
  EXPECT_EQ(batches.batches(), 2);
  batches.seek(0, 0);
  EXPECT_THAT(first_ids(batches), ::testing::ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(batches.deal(1, 0, 1, 2)->samples, 2);  // two ranks, one whole group
  EXPECT_EQ(batches.deal(1, 2, 0, 2)->samples, 0);
  TextBatches drawn(chunks(7), 4, /*shuffle=*/true, 3, at::kCPU, trainer::LastBatch::drop, /*multiple=*/4);
  std::vector<bool> met(7);
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    drawn.seek(epoch, 0);
    const auto ids = first_ids(drawn);
    EXPECT_EQ(ids.size(), 4u);
    for (const auto id : ids) met[static_cast<std::size_t>(id)] = true;
  }
  EXPECT_EQ(std::count(met.begin(), met.end(), true), 7);  // another rest in each epoch
}

/// --non-blocking: the copy of a batch is a call that waits, in eager mode it is there.
TEST(TextBatches, ACopyFromPinnedMemoryWaitsInLazyMode) {
  const auto queued = [](bool non_blocking) {
    TextBatches batches(chunks(8), 2, /*shuffle=*/false, 0, at::kHPU, trainer::LastBatch::keep, 1, non_blocking);
    std::vector<at::Tensor> all;
    const auto before = runtime::lazy_counts().queued;
    while (const auto batch = batches.next()) all.push_back(batch->tensors[0]);
    const auto count = runtime::lazy_counts().queued - before;
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(all[i].is_hpu());
      EXPECT_EQ(all[i].cpu()[1][2].item<std::int64_t>(), 20 * static_cast<std::int64_t>(i) + 12);
    }
    EXPECT_EQ(all.size(), 4u);
    return count;
  };
  EXPECT_EQ(queued(true), 0);
  runtime::set_lazy_mode(true);
  EXPECT_EQ(queued(false), 0);
  EXPECT_EQ(queued(true), 4);
  runtime::set_lazy_mode(false);
}

TEST(TextBatches, EveryEpochIsAnotherOrderOfAll) {
  TextBatches a(chunks(100), 8, true, 3, at::kCPU), b(chunks(100), 8, true, 3, at::kCPU),
      other(chunks(100), 8, true, 4, at::kCPU);
  a.seek(0, 0);
  const auto first = first_ids(a);
  a.seek(1, 0);
  const auto second = first_ids(a);
  EXPECT_NE(first, second);
  other.seek(0, 0);
  EXPECT_NE(first_ids(other), first);
  auto sorted = second;
  std::sort(sorted.begin(), sorted.end());
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(sorted[static_cast<std::size_t>(i)], i);
  b.seek(1, 5);  // without having seen epoch 0
  EXPECT_EQ(first_ids(b), std::vector<std::int64_t>(second.begin() + 40, second.end()));
}

/// torch: list(DistributedSampler(range(13), 2, rank)) is order[rank::2], and then repeats the first to fill up.
TEST(TextBatches, AreDealtAsDistributedSamplerDoes) {
  TextBatches alone(chunks(13), 3, true, 3, at::kCPU), dealt(chunks(13), 3, true, 3, at::kCPU);
  alone.seek(1, 0);
  const auto order = first_ids(alone);
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::int64_t> found, expected, sizes;
    for (std::int64_t batch = 0; batch < 6; batch += 2) {
      const auto part = dealt.deal(1, batch, rank, 2);
      ASSERT_TRUE(part.has_value());
      sizes.push_back(part->samples);
      EXPECT_EQ(part->tokens, 3 * part->samples);
      for (std::int64_t i = 0; i < part->samples; ++i)
        found.push_back(part->tensors[0][i][0].item<std::int64_t>() / 10);
    }
    for (std::size_t i = static_cast<std::size_t>(rank); i < order.size(); i += 2) expected.push_back(order[i]);
    EXPECT_EQ(found, expected);
    EXPECT_THAT(sizes, ::testing::ElementsAre(3, 3, rank == 0 ? 1 : 0));
  }
  EXPECT_EQ(dealt.deal(1, 3, 0, 2)->samples, 2);  // from batch 3 on, 4 chunks are left
}

TEST(TextBatches, TheFingerprintIsThatOfTheText) {
  auto changed = chunks(5);
  changed.ids.back() += 1;
  const TextBatches a(chunks(5), 2, true, 0, at::kCPU), b(chunks(5), 3, false, 9, at::kCPU),
      c(changed, 2, true, 0, at::kCPU);
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  EXPECT_NE(a.fingerprint(), c.fingerprint());
}

TEST(OptimizerSettings, KindsHaveNames) { test::check_names<OptimizerSettings::Kind>(); }

TEST(NextTokenLoss, IsTheMeanOverPredictedTokens) {
  const auto logits = at::arange(2 * 4 * 5, at::kFloat).sin().mul(3).view({2, 4, 5});
  const auto ids = at::arange(2 * 4, at::kLong).mul(3).remainder(5).view({2, 4});
  double sum = 0;
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t i = 0; i + 1 < 4; ++i) {
      double total = 0;
      for (std::int64_t v = 0; v < 5; ++v) total += std::exp(static_cast<double>(logits[b][i][v].item<float>()));
      sum -= static_cast<double>(logits[b][i][ids[b][i + 1].item<std::int64_t>()].item<float>()) - std::log(total);
    }
  EXPECT_NEAR(next_token_loss(logits, ids).item<double>(), sum / 6, 1e-6);
  EXPECT_EQ(next_token_loss(logits.to(at::kBFloat16), ids).scalar_type(), at::kFloat);
  EXPECT_NEAR(next_token_loss(logits.to(at::kBFloat16), ids).item<double>(), sum / 6, 2e-2);
}

/// Samples [3] that hold their number, but one of them another.
class Numbered : public data::Dataset {
 public:
  explicit Numbered(std::int64_t changed = -1) : changed_(changed) {}
  std::int64_t size() const override { return 10; }
  std::vector<at::Tensor> get(std::int64_t index, data::SampleRandom&) const override {
    return {at::full({3}, static_cast<double>(index == changed_ ? -1 : index))};
  }

 private:
  std::int64_t changed_;
};

io::Json facts_of_loader(std::int64_t changed, std::int64_t batch = 4) {
  data::DataLoader loader(std::make_shared<Numbered>(changed), {.batch_size = batch});
  const auto facts = facts_of(loader);
  EXPECT_EQ(loader.next()->tensors[0][0][0].item<float>(), changed == 0 ? -1 : 0);  // at the beginning
  return facts;
}

io::Json facts_of_text(std::vector<std::int64_t> ids, std::int64_t batch = 1) {
  TextBatches text({std::move(ids), 4, 2}, batch, /*shuffle=*/false, 0, at::kCPU);
  return facts_of(text);
}

TEST(SourceFacts, OtherSamplesAreOtherFacts) {
  const auto facts = facts_of_loader(-1);
  EXPECT_EQ(facts["batches"], 3);
  EXPECT_EQ(facts["first batch"][0], 4);
  EXPECT_EQ(facts["last batch"][0], 2);
  EXPECT_EQ(facts_of_loader(-1), facts);
  EXPECT_NE(facts_of_loader(0)["first batch"], facts["first batch"]);
  EXPECT_NE(facts_of_loader(9)["last batch"], facts["last batch"]);
  EXPECT_NE(facts_of_loader(-1, 3), facts);
}

TEST(SourceFacts, OfATextAllOfItIsCompared) {
  const std::vector<std::int64_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  auto other = ids;
  other[2] = 9;
  EXPECT_EQ(facts_of_text(ids), facts_of_text(ids));
  EXPECT_NE(facts_of_text(ids)["text"], facts_of_text(other)["text"]);
  EXPECT_NE(facts_of_text(ids), facts_of_text(ids, 2));
}

}  // namespace
}  // namespace fp8::commands

// tools/examples/mnist, which a user's program would be: every precision learns a set that can be told apart, the loops
// take as many batches as they are told, and threads of the loader change no bit. Run files: run_file_test.
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
    auto weights = collected(s.model->network().parameters(), [](const auto& p) { return p.detach().cpu(); });
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
