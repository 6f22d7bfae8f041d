// SPDX-License-Identifier: Apache-2.0
// Against torch.optim.swa_utils by hand: AveragedModel's mean in f64, SWALR's recurrence, update_bn's cumulative
// statistics; and through a checkpoint.
#include "fp8/runtime/trainer/callbacks/stochastic_weight_averaging.h"

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "runtime/trainer/toy_task.h"
#include "support/values.h"

namespace fp8::trainer {
namespace {

using Swa = StochasticWeightAveraging;

/// Weights as each epoch begins.
struct Snapshots : TrainerCallback {
  void on_train_epoch_start(Trainer& trainer, std::int64_t) override {
    auto& now = all.emplace_back();
    for (const auto& p : trainer.network().parameters()) now.push_back(p.detach().cpu().to(at::kDouble));
  }
  std::vector<std::vector<at::Tensor>> all;
};

StochasticWeightAveragingOptions swa_options(std::int64_t start, std::int64_t annealing,
                                             AnnealingStrategy strategy = AnnealingStrategy::cos) {
  return StochasticWeightAveragingOptions{
      .swa_lrs = {0.05}, .swa_epoch_start = start, .annealing_epochs = annealing, .annealing_strategy = strategy};
}

/// torch's AveragedModel.update_parameters: average + (p - average) / (n + 1), from the epochs [first, all.size()).
std::vector<at::Tensor> mean_from(const Snapshots& seen, std::size_t first) {
  auto average = seen.all.at(first);
  for (std::size_t n = 1; first + n < seen.all.size(); ++n)
    for (std::size_t i = 0; i < average.size(); ++i)
      average[i] = average[i] + (seen.all[first + n][i] - average[i]) / static_cast<double>(n + 1);
  return average;
}

TEST(Swa, TheNetworkGetsTheMeanOfTheEpochs) {
  for (const at::Device device : {at::Device(at::kCPU), test::kHpu}) {
    ToyTask task(1, device);
    ToyBatches data(8, 2);
    const auto seen = std::make_shared<Snapshots>();
    const auto swa = std::make_shared<Swa>(swa_options(4, 2));
    Trainer({.max_epochs = 7}, {seen, swa}).fit(task, data);
    EXPECT_EQ(swa->n_averaged(), 4);
    const auto expected = mean_from(*seen, 3);
    const auto found = task.net->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(torch::allclose(found[i].cpu().to(at::kDouble), expected[i], 1e-6, 1e-6)) << i;
  }
}

TEST(Swa, EmaInsteadOfAMean) {
  ToyTask task;
  ToyBatches data(8, 2);
  const auto seen = std::make_shared<Snapshots>();
  auto options = swa_options(2, 0);
  options.ema_decay = 0.75;
  Trainer({.max_epochs = 5}, {seen, std::make_shared<Swa>(options)}).fit(task, data);
  auto average = seen->all.at(1);
  for (std::size_t epoch = 2; epoch < 5; ++epoch)
    for (std::size_t i = 0; i < average.size(); ++i) average[i] = 0.75 * average[i] + 0.25 * seen->all[epoch][i];
  const auto found = task.net->parameters();
  for (std::size_t i = 0; i < average.size(); ++i)
    EXPECT_TRUE(torch::allclose(found[i].to(at::kDouble), average[i], 1e-6, 1e-6)) << i;
}

/// torch's SWALR.get_lr() for one group: the rate of its step `step` from that of the step before.
double swalr(double before, double swa_lr, std::int64_t step, std::int64_t epochs, AnnealingStrategy strategy) {
  const auto anneal = [&](double t) {
    return strategy == AnnealingStrategy::cos ? (1 - std::cos(std::numbers::pi * t)) / 2 : t;
  };
  const auto part = [&](std::int64_t s) {
    return std::max(0.0,
                    std::min(1.0, static_cast<double>(s) / static_cast<double>(std::max<std::int64_t>(1, epochs))));
  };
  const double old = anneal(part(step - 1)), now = anneal(part(step));
  const double first = old == 1 ? swa_lr : (before - old * swa_lr) / (1 - old);
  return swa_lr * now + first * (1 - now);
}

TEST(Swa, RatesAreThoseOfSwaLr) {
  for (const auto strategy : {AnnealingStrategy::cos, AnnealingStrategy::linear}) {
    ToyTask task(1, at::kCPU, ToyOptimizer::sgd);
    task.step_lr = true;  // halves each epoch until epoch 2
    ToyBatches data(4, 2);
    const auto recorder = std::make_shared<Recorder>();
    Trainer({.max_epochs = 8}, {std::make_shared<Swa>(swa_options(3, 3, strategy)), recorder}).fit(task, data);
    std::vector<double> expected = {0.01, 0.005, 0.0025};
    for (std::int64_t step = 1; step < 6; ++step) expected.push_back(swalr(expected.back(), 0.05, step, 3, strategy));
    for (std::size_t epoch = 0; epoch < 8; ++epoch)
      for (std::size_t i = 0; i < 2; ++i)
        EXPECT_NEAR(recorder->reports.at(2 * epoch + i).lr, expected[epoch], 1e-12) << epoch;
    EXPECT_EQ(recorder->reports.back().lr, 0.05);
  }
  ToyTask task(1, at::kCPU, ToyOptimizer::sgd);
  task.lr_factor = [](std::int64_t) { return 0.5; };
  ToyBatches data(4, 2);
  const auto recorder = std::make_shared<Recorder>();
  Trainer({.max_epochs = 3}, {std::make_shared<Swa>(swa_options(2, 0)), recorder}).fit(task, data);
  EXPECT_EQ(recorder->reports[1].lr, 0.005);
  EXPECT_EQ(recorder->reports[2].lr, 0.05) << "no annealing: at once";
}

/// A fraction of max_epochs, as Lightning counts: int(0.8 * 10) is the epoch, from 1.
TEST(Swa, StartsAtAFractionOfTheEpochs) {
  ToyTask task;
  ToyBatches data(2, 2);
  const auto swa = std::make_shared<Swa>(StochasticWeightAveragingOptions{.swa_lrs = {0.05}});
  Trainer({.max_epochs = 10}, {swa}).fit(task, data);
  EXPECT_EQ(swa->n_averaged(), 3);
}

struct NormTask : ToyTask {
  explicit NormTask(at::Device device) : ToyTask(1, device) {
    net->register_module("norm", norm);
    norm->to(device);
  }
  at::Tensor training_step(const Batch& batch, std::int64_t) override {
    const auto device = net->hidden->weight.device();
    const auto inner = norm(net->hidden(batch.tensors[0].to(device)));
    if (!at::GradMode::is_enabled() && net->is_training()) ++passes;
    return torch::mse_loss(net->out(inner), batch.tensors[1].to(device));
  }
  torch::nn::BatchNorm1d norm{torch::nn::BatchNorm1dOptions(8).momentum(0.3)};
  int passes = 0;
};

/// update_bn: each batch counts the same, from nothing.
TEST(Swa, BatchNormStatisticsAreThoseOfTheAverage) {
  for (const at::Device device : {at::Device(at::kCPU), test::kHpu}) {
    NormTask task(device);
    ToyBatches data(12, 4);
    Trainer({.max_epochs = 4}, {std::make_shared<Swa>(swa_options(2, 1))}).fit(task, data);
    EXPECT_EQ(task.passes, 3);
    EXPECT_EQ(task.norm->options.momentum(), 0.3);
    EXPECT_EQ(task.norm->num_batches_tracked.item<std::int64_t>(), 3);
    at::NoGradGuard no_grad;
    at::Tensor mean = torch::zeros({8}, at::kDouble), variance = mean.clone();
    ToyBatches again(12, 4);
    again.seek(4, 0);
    for (int i = 0; i < 3; ++i) {
      const auto inner = task.net->hidden(again.next()->tensors[0].to(device)).cpu().to(at::kDouble);
      mean += inner.mean(0) / 3;
      variance += inner.var(0, /*unbiased=*/true) / 3;
    }
    EXPECT_TRUE(torch::allclose(task.norm->running_mean.cpu().to(at::kDouble), mean, 1e-5, 1e-6));
    EXPECT_TRUE(torch::allclose(task.norm->running_var.cpu().to(at::kDouble), variance, 1e-5, 1e-6));
  }
}

/// Stopped after each of several steps and resumed: the bits of a run that was not.
TEST(Swa, ResumedIsTheSameRun) {
  const auto run = [](const std::filesystem::path& root, std::int64_t stop_at, bool* stopped = nullptr) {
    NormTask task(at::kCPU);
    task.step_lr = true;
    ToyBatches data(8, 2);
    TrainerOptions options{.max_epochs = 5, .checkpoint_root = root, .resume = true};
    std::int64_t steps = 0;
    if (stop_at > 0) options.should_stop = [&] { return ++steps == stop_at; };
    const auto result = Trainer(options, {std::make_shared<Swa>(swa_options(2, 2))}).fit(task, data);
    if (stopped != nullptr) *stopped = result.stopped;
    auto all = collected(task.net->parameters(), [](const auto& p) { return p.detach(); });
    for (const auto& b : task.net->buffers()) all.push_back(b);
    return all;
  };
  const test::TempDir whole;
  const auto expected = run(whole.path(), 0);
  const auto again = run(whole.path(), 0);  // ended: only the average is taken once more
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(again[i], expected[i])) << i;
  for (const std::int64_t stop_at : {3, 4, 5, 8, 11, 16, 19}) {
    const test::TempDir cut;
    bool stopped = false;
    run(cut.path(), stop_at, &stopped);
    EXPECT_TRUE(stopped);
    const auto found = run(cut.path(), 0);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(torch::equal(found[i], expected[i])) << stop_at << " " << i;
  }
}

TEST(Swa, AStoppedRunKeepsItsWeightsAndAnEndedOneHasTheAverage) {
  const auto weights = [](bool stop, std::shared_ptr<Snapshots> seen) {
    ToyTask task;
    ToyBatches data(4, 2);
    TrainerOptions options{.max_epochs = 9};
    if (stop) options.should_stop = [n = 0]() mutable { return ++n == 8; };
    if (!stop) options.max_steps = 8;
    Trainer(options, {seen, std::make_shared<Swa>(swa_options(2, 1))}).fit(task, data);
    return task.net->hidden->weight.detach().clone();
  };
  const auto seen = std::make_shared<Snapshots>(), same = std::make_shared<Snapshots>();
  const auto stopped = weights(true, seen), ended = weights(false, same);
  EXPECT_FALSE(torch::equal(stopped, ended));
  EXPECT_TRUE(torch::allclose(ended.to(at::kDouble), mean_from(*same, 1)[0], 1e-6, 1e-6));
}

TEST(Swa, MistakesAreNamed) {
  const auto thrown = [](auto change) {
    auto o = swa_options(2, 1);
    change(o);
    return error_of([&] { Swa{o}; });
  };
  EXPECT_THAT(thrown([](auto& o) { o.swa_lrs = {}; }), HasSubstr("swa_lrs: found none"));
  EXPECT_THAT(thrown([](auto& o) { o.swa_lrs = {0.1, 0}; }), HasSubstr("swa_lrs: found 0"));
  EXPECT_THAT(thrown([](auto& o) { o.swa_epoch_start = std::int64_t{0}; }), HasSubstr("swa_epoch_start: found 0"));
  EXPECT_THAT(thrown([](auto& o) { o.swa_epoch_start = 1.5; }), HasSubstr("swa_epoch_start: found 1.5"));
  EXPECT_THAT(thrown([](auto& o) { o.annealing_epochs = -1; }), HasSubstr("annealing_epochs: found -1"));
  EXPECT_THAT(thrown([](auto& o) { o.ema_decay = 2; }), HasSubstr("ema_decay: found 2"));
  const auto fit = [](StochasticWeightAveragingOptions options, ToyOptimizer kind, TrainerOptions trainer) {
    ToyTask task(1, test::kHpu, kind);
    ToyBatches data(2, 2);
    return error_of([&] { Trainer(trainer, {std::make_shared<Swa>(options)}).fit(task, data); });
  };
  auto two = swa_options(2, 1);
  two.swa_lrs = {0.1, 0.1};
  EXPECT_THAT(fit(two, ToyOptimizer::adamw, {.max_epochs = 2}),
              HasSubstr("swa_lrs: found 2 rates, allowed: 1, or one"));
  auto share = swa_options(2, 1);
  share.swa_epoch_start = 0.5;
  EXPECT_THAT(fit(share, ToyOptimizer::adamw, {.max_steps = 2}), HasSubstr("a fraction without max_epochs"));
}

TEST(Swa, AnAverageOfAnotherModelIsNamed) {
  const test::TempDir root;
  const auto run = [&] {
    ToyTask task;
    ToyBatches data(4, 2);
    TrainerOptions options{.max_epochs = 4, .checkpoint_root = root.path(), .resume = true};
    return error_of([&] { Trainer(options, {std::make_shared<Swa>(swa_options(1, 1))}).fit(task, data); });
  };
  EXPECT_EQ(run(), "");
  const auto folder = checkpoint_folder(root.path(), 8);
  auto state = HPUCheckpointIO().load_checkpoint(folder);
  EXPECT_EQ(state.tensors.erase("callback.StochasticWeightAveraging.out.bias"), 1u);
  HPUCheckpointIO().save_checkpoint(state, folder);
  EXPECT_THAT(run(), HasSubstr("checkpoint: the average of 'out.bias' is missing"));
}

// Rows of numbers: what DeviceStatsMonitor and MemoryLog write, where, and that test() has hooks of its own.

/// The table of the documents.
const std::set<std::string> kTen = {
    "Limit",        "InUse",        "MaxInUse",          "NumAllocs",        "NumFrees",
    "ActiveAllocs", "MaxAllocSize", "TotalSystemAllocs", "TotalSystemFrees", "TotalActiveAllocs"};

TEST(DeviceStatsMonitor, TenNumbersBeforeAndAfterEveryBatch) {
  ToyTask task(1, test::kHpu);
  ToyBatches train(6, 2), val(4, 2), test_data(2, 2);
  const auto rows = std::make_shared<testing::RowLogger>();
  Trainer trainer({.max_epochs = 1}, {std::make_shared<DeviceStatsMonitor>(), rows});
  trainer.fit(task, train, &val);
  const auto fitted = rows->rows.size();
  trainer.validate(task, val);
  trainer.test(task, test_data);
  trainer.predict(task, test_data);
  std::map<std::string, int> hooks;
  for (const auto& [step, row] : rows->rows) {
    if (row.contains("val_loss") || row.contains("test_loss")) continue;  // of the loops on their own
    std::set<std::string> keys, prefixes;
    for (const auto& [key, value] : row.items()) {
      const auto slash = key.find('/');
      ASSERT_NE(slash, std::string::npos) << key;
      prefixes.insert(key.substr(0, slash));
      keys.insert(key.substr(slash + 1));
      EXPECT_TRUE(value.is_number_integer() && value >= 0) << key;
    }
    EXPECT_EQ(keys, kTen);
    ASSERT_EQ(prefixes.size(), 1u);
    const std::string prefix = *prefixes.begin();
    ++hooks[prefix];
    const auto number = [&](const char* key) { return row.at(prefix + "/" + key).get<std::int64_t>(); };
    EXPECT_EQ(number("Limit"), runtime::memory_stats().Limit);
    EXPECT_GT(number("InUse"), 0);
    EXPECT_LE(number("InUse"), number("MaxInUse"));
    EXPECT_EQ(number("ActiveAllocs"), number("NumAllocs") - number("NumFrees"));
    EXPECT_EQ(number("TotalActiveAllocs"), number("TotalSystemAllocs") - number("TotalSystemFrees"));
  }
  EXPECT_EQ(hooks, (std::map<std::string, int>{{"DeviceStatsMonitor.on_train_batch_start", 3},
                                               {"DeviceStatsMonitor.on_train_batch_end", 3},
                                               {"DeviceStatsMonitor.on_validation_batch_start", 4},
                                               {"DeviceStatsMonitor.on_validation_batch_end", 4},
                                               {"DeviceStatsMonitor.on_test_batch_start", 1},
                                               {"DeviceStatsMonitor.on_test_batch_end", 1},
                                               {"DeviceStatsMonitor.on_predict_batch_start", 1},
                                               {"DeviceStatsMonitor.on_predict_batch_end", 1}}));
  EXPECT_EQ(rows->rows.front().first, 0);
  EXPECT_EQ(rows->rows[2].first, 1) << "one step is done";
  EXPECT_EQ(fitted, 10u);
}

TEST(DeviceStatsMonitor, WithoutALoggerIsAnErrorThatNamesIt) {
  ToyTask task(1, test::kHpu);
  ToyBatches data(4, 2);
  const auto monitor = std::make_shared<DeviceStatsMonitor>();
  Trainer trainer({.max_epochs = 1}, {monitor});
  EXPECT_REFUSED(trainer.fit(task, data), "[DeviceStatsMonitor] loggers: found none");
  EXPECT_REFUSED(trainer.validate(task, data), "[DeviceStatsMonitor]");
  EXPECT_REFUSED(trainer.test(task, data), "[DeviceStatsMonitor]");
  Trainer trial({.max_epochs = 1, .fast_dev_run = 1}, {monitor, std::make_shared<testing::RowLogger>()});
  EXPECT_EQ(trial.fit(task, data).steps, 1) << "a trial has no loggers";
}

TEST(JsonlLogger, WritesALineForEachRow) {
  const test::TempDir folder;
  ToyTask task(1, test::kHpu);
  ToyBatches data(4, 2);
  for (int run = 0; run < 2; ++run) {  // the second one adds to the file
    Trainer trainer({.max_epochs = 1},
                    {std::make_shared<DeviceStatsMonitor>(), std::make_shared<JsonlLogger>(folder / "rows.jsonl")});
    trainer.fit(task, data);
  }
  std::ifstream file(folder / "rows.jsonl");
  std::size_t lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const auto row = io::parse_json(line, "line");
    EXPECT_EQ(row.size(), 11u);
    EXPECT_EQ(row.at("step"), lines % 4 / 2);
  }
  EXPECT_EQ(lines, 8u);
  EXPECT_REFUSED(JsonlLogger(folder / "none/rows.jsonl"), "none/rows.jsonl");
}

TEST(Trainer, TestHasItsOwnStepsHooksAndLimit) {
  struct Task : ToyTask {
    at::Tensor validation_step(const Batch&, std::int64_t) override { return torch::ones({}) * 7; }
    at::Tensor test_step(const Batch& batch, std::int64_t index) override {
      EXPECT_FALSE(net->is_training());
      EXPECT_FALSE(at::GradMode::is_enabled());
      return torch::ones({}) * static_cast<double>(batch.samples + index);
    }
  } task;
  struct Hooks : Recorder {
    void on_test_start(Trainer&) override { add("start"); }
    void on_test_batch_start(Trainer&, const Batch&, std::int64_t index) override { add("s" + std::to_string(index)); }
    void on_test_batch_end(Trainer&, const Batch&, std::int64_t index, double loss) override {
      add("e" + std::to_string(index) + " " + std::to_string(static_cast<int>(loss)));
    }
    void on_test_end(Trainer&, double) override { add("end"); }
  };
  const auto hooks = std::make_shared<Hooks>();
  ToyBatches data(5, 2);  // 2 2 1
  EXPECT_DOUBLE_EQ(Trainer({.max_epochs = 1}, {hooks}).test(task, data).loss, (2 * 2 + 3 * 2 + 3 * 1) / 5.0);
  EXPECT_THAT(hooks->events, ElementsAre("start", "s0", "e0 2", "s1", "e1 3", "s2", "e2 3", "end"));
  EXPECT_TRUE(task.net->is_training());
  EXPECT_DOUBLE_EQ(Trainer({.max_epochs = 1, .limit_test_batches = 1}).test(task, data).loss, 2);
  EXPECT_REFUSED(Trainer({.max_epochs = 1, .limit_test_batches = -1}), "limit_test_batches: found -1");
  ToyBatches none(0, 2);
  EXPECT_REFUSED(Trainer({.max_epochs = 1}).test(task, none), "test data: found no batch");
  ToyTask plain;
  EXPECT_DOUBLE_EQ(Trainer({.max_epochs = 1}).test(plain, data).loss,
                   Trainer({.max_epochs = 1}).validate(plain, data).loss);
}

TEST(MemoryLog, ThreeRowsOfOptimumEverySoManySteps) {
  const at::Tensor held = at::empty({40 << 20}, test::on_hpu(at::kByte));
  ToyTask task(1, test::kHpu);
  ToyBatches data(14, 2);
  const auto rows = std::make_shared<testing::RowLogger>();
  const auto limit = runtime::memory_stats().Limit;
  runtime::set_memory_limit((std::int64_t{5} << 30) / 8 + 10000000);  // 0.6343 GB
  runtime::reset_peak_memory_stats();
  Trainer({.max_epochs = 1}, {std::make_shared<MemoryLog>(MemoryLogOptions{.logging_steps = 3}), rows}).fit(task, data);
  runtime::set_memory_limit(limit);
  ASSERT_EQ(rows->rows.size(), 2u);
  EXPECT_EQ(rows->rows[0].first, 3);
  EXPECT_EQ(rows->rows[1].first, 6);
  EXPECT_EQ(rows->rows[0].second, (io::Json{{"memory_allocated (GB)", 0.04},  // 40 MiB = 0.039 GB
                                            {"max_memory_allocated (GB)", 0.04},
                                            {"total_memory_available (GB)", 0.63}}));
  EXPECT_EQ(kLoggingSteps, 500);
  EXPECT_REFUSED(MemoryLog({.logging_steps = 0}), "[MemoryLog] logging_steps: found 0");
  EXPECT_REFUSED(MemoryLog({.gather = Gather::max}), "without a group");
  EXPECT_REFUSED(Trainer({.max_epochs = 1}, {std::make_shared<MemoryLog>()}).fit(task, data),
                 "[MemoryLog] loggers: found none");
}

FP8_TEST_RANKS(MemoryLog, OfSeveralRanksTheFirstWrites, 2) {
  const auto group = test::rank_group();
  const at::Tensor held = at::empty({(group->rank() + 1) * (std::int64_t{100} << 20)}, test::on_hpu(at::kByte));
  ToyTask task(1, test::kHpu);
  ToyBatches data(4, 2);
  for (const Gather gather : {Gather::none, Gather::max}) {
    const auto rows = std::make_shared<testing::RowLogger>();
    Trainer({.max_epochs = 1},
            {std::make_shared<MemoryLog>(MemoryLogOptions{.logging_steps = 2, .group = group, .gather = gather}), rows})
        .fit(task, data);
    if (group->rank() > 0) {
      EXPECT_TRUE(rows->rows.empty());
      continue;
    }
    ASSERT_EQ(rows->rows.size(), 1u);
    EXPECT_EQ(rows->rows[0].second.at("memory_allocated (GB)"), gather == Gather::max ? 0.2 : 0.1);
  }
  const test::TempDir folder;
  JsonlLogger(folder / "rows").log_metrics({{"x", 1}}, 1);
  EXPECT_EQ(std::filesystem::exists(folder / "rows"), group->rank() == 0) << "only rank 0 writes";
}

}  // namespace
}  // namespace fp8::trainer
