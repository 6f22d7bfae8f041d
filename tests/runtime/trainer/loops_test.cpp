// SPDX-License-Identifier: Apache-2.0
// Results and files of validate(), test() and predict(): results against numbers that the module says, exact counts of
// batches, the file of predictions, rows of speed, a profiler's file for each loop. Several ranks: trainer_ranks_test.

#include "fp8/runtime/trainer/callbacks/model_checkpoint.h"
#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "runtime/trainer/toy_task.h"

namespace fp8::trainer {
namespace {

/// Losses and accuracies by the number of the batch; predictions of two tensors.
struct CountingTask : ToyTask {
  using ToyTask::ToyTask;
  at::Tensor validation_step(const Batch&, std::int64_t index) override {
    log("val_acc", static_cast<double>(index));
    return torch::ones({}) * static_cast<double>(10 * index);
  }
  at::Tensor test_step(const Batch&, std::int64_t index) override {
    log("acc", static_cast<double>(index));
    log("last", static_cast<double>(index), {.on_step = true});
    return torch::ones({}) * static_cast<double>(100 * index);
  }
  std::vector<at::Tensor> predict_step(const Batch& batch, std::int64_t index) override {
    EXPECT_FALSE(net->is_training());
    EXPECT_FALSE(at::GradMode::is_enabled());
    auto outputs = ToyTask::predict_step(batch, index);
    outputs.push_back(torch::full({1}, index, at::kLong));
    return outputs;
  }
};

using Loops = InFolder;

/// 2, 2 and 1 samples: means are weighted by them.
TEST_F(Loops, ResultsAreReturnedAndLogged) {
  CountingTask task;
  ToyBatches data(5, 2);
  const auto rows = std::make_shared<RowLogger>();
  Trainer trainer({.max_steps = 1}, {rows});
  const auto test = trainer.test(task, data), val = trainer.validate(task, data);
  const double mean = (2 * 0 + 2 * 1 + 1 * 2) / 5.0;
  using Numbers = std::map<std::string, double>;
  EXPECT_EQ(test.metrics, (Numbers{{"acc", mean}, {"test_loss", 100 * mean}}));
  EXPECT_EQ(val.metrics, (Numbers{{"val_acc", mean}, {"val_loss", 10 * mean}}));
  EXPECT_EQ(test.loss, 100 * mean);
  const std::vector<std::pair<std::int64_t, io::Json>> expected = {{0, {{"acc", mean}, {"test_loss", 100 * mean}}},
                                                                   {0, {{"val_acc", mean}, {"val_loss", 10 * mean}}}};
  EXPECT_EQ(rows->rows, expected);
  EXPECT_EQ(rows->ends, 2);
  EXPECT_EQ(trainer.callback_metrics().at("test_loss"), test.loss);
  EXPECT_EQ(trainer.callback_metrics().at("last"), 2);
}

/// A number of the module's own that is called val_loss is what counts.
TEST_F(Loops, TheModulesOwnLossGoesBefore) {
  struct Task : ToyTask {
    at::Tensor validation_step(const Batch&, std::int64_t) override {
      log("val_loss", 3);
      return torch::ones({});
    }
  } task;
  ToyBatches data(2, 2);
  Trainer trainer({.max_steps = 1});
  const auto result = trainer.validate(task, data);
  EXPECT_EQ(result.loss, 1);
  EXPECT_EQ(result.metrics.at("val_loss"), 3);
  EXPECT_EQ(trainer.callback_metrics().at("val_loss"), 3);
}

TEST_F(Loops, AfterATrainingRowsHaveItsStep) {
  CountingTask task;
  ToyBatches train(6, 2), data(2, 2);
  const auto rows = std::make_shared<RowLogger>();
  Trainer trainer({.max_epochs = 2}, {rows, std::make_shared<CsvLogger>(folder / "rows.csv")});
  trainer.fit(task, train);
  rows->rows.clear();
  trainer.test(task, data);
  ASSERT_EQ(rows->rows.size(), 1u);
  EXPECT_EQ(rows->rows[0].first, 6);
  std::ifstream csv(folder / "rows.csv");
  std::string names, line;
  std::getline(csv, names);
  std::getline(csv, line);
  EXPECT_EQ(names, "step,acc,test_loss");
  EXPECT_EQ(line, "6,0.0,0.0");
}

TEST(Predict, TensorsOfEachBatchInOrder) {
  CountingTask task;
  ToyBatches data(5, 2);
  struct Hooks : TrainerCallback {
    void on_predict_start(Trainer&) override { events.push_back("start"); }
    void on_predict_batch_start(Trainer&, const Batch& batch, std::int64_t index) override {
      events.push_back("s" + std::to_string(index) + " " + std::to_string(batch.samples));
    }
    void on_predict_batch_end(Trainer&, const Batch&, std::int64_t index, const std::vector<at::Tensor>& o) override {
      events.push_back("e" + std::to_string(index) + " " + std::to_string(o.size()));
    }
    void on_predict_end(Trainer&) override { events.push_back("end"); }
    std::vector<std::string> events;
  };
  const auto hooks = std::make_shared<Hooks>();
  Trainer trainer({.max_steps = 1}, {hooks});
  const auto result = trainer.predict(task, data);
  EXPECT_THAT(hooks->events, ElementsAre("start", "s0 2", "e0 2", "s1 2", "e1 2", "s2 1", "e2 2", "end"));
  EXPECT_TRUE(task.net->is_training());
  EXPECT_EQ(result.batches, 3);
  EXPECT_EQ(result.samples, 5);
  ASSERT_EQ(result.predictions.size(), 3u);
  task.net->eval();
  ToyBatches again(5, 2);
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto& of = result.predictions[static_cast<std::size_t>(i)];
    EXPECT_EQ(of.batch, i);
    EXPECT_TRUE(torch::equal(of.tensors.at(0), task.net(again.next()->tensors[0])));
    EXPECT_EQ(of.tensors.at(1).item<std::int64_t>(), i);
  }
  EXPECT_TRUE(trainer.predict(task, data, /*return_predictions=*/false).predictions.empty());
}

TEST(Predict, LimitIsACountOrAFraction) {
  const auto taken = [](BatchLimit limit) {
    ToyTask task;
    ToyBatches data(20, 2);
    const auto result = Trainer({.max_steps = 1, .limit_predict_batches = limit}).predict(task, data);
    EXPECT_EQ(result.predictions.size(), data.seen.size());
    EXPECT_EQ(result.samples, 2 * result.batches);
    return static_cast<std::int64_t>(data.seen.size());
  };
  EXPECT_EQ(taken(1.0), 10);
  EXPECT_EQ(taken(0.1), 1);
  EXPECT_EQ(taken(0.55), 5);  // rounded down
  EXPECT_EQ(taken(std::int64_t{1}), 1);
  EXPECT_EQ(taken(std::int64_t{3}), 3);
  EXPECT_EQ(taken(std::int64_t{99}), 10);
  EXPECT_REFUSED(taken(0.05),
                 "limit_predict_batches: found 0.05, which leaves none of 10 batches, allowed: 0, or 0.1 or more");
  EXPECT_REFUSED(taken(std::int64_t{0}), "prediction data: found no batch");
  EXPECT_REFUSED(taken(1.5), "limit_predict_batches: found 1.5");
}

TEST(Predict, AModuleWithoutPredictStepIsNamed) {
  struct Task : ToyTask {
    std::vector<at::Tensor> predict_step(const Batch& batch, std::int64_t index) override {
      return TrainingModule::predict_step(batch, index);
    }
  } task;
  ToyBatches data(2, 2);
  EXPECT_REFUSED(Trainer({.max_steps = 1}).predict(task, data), "[trainer] predict: the module has no predict_step");
}

TEST(PredictionWriter, AFileInTheOrderOfTheBatches) {
  const test::TempDir folder;
  CountingTask task(1, test::kHpu);
  ToyBatches data(5, 2);
  const auto file = folder / "out" / "predictions.safetensors";
  Trainer trainer({.max_steps = 1}, {std::make_shared<PredictionWriter>(file)});
  const auto result = trainer.predict(task, data);
  const auto found = read_tensors(file);
  ASSERT_EQ(found.size(), 6u);
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t k = 0; k < 2; ++k) {
      const auto name = "batch.0000000" + std::to_string(i) + "." + std::to_string(k);
      EXPECT_TRUE(torch::equal(found.at(name), result.predictions[i].tensors[k].cpu())) << name;
    }
  EXPECT_THAT(test::names_in(folder / "out"), ElementsAre("predictions.safetensors"));
  ToyBatches bad(5, 2);
  bad.end_early_at = 1;
  EXPECT_REFUSED(trainer.predict(task, bad), "prediction data: ended after 1 of 3 batches");
  EXPECT_EQ(read_tensors(file).size(), 6u) << "an error leaves the old file";
  trainer.predict(task, data);
  EXPECT_EQ(read_tensors(file).size(), 6u);
  EXPECT_REFUSED(PredictionWriter(""), "[PredictionWriter] file: found none");
}

TEST_F(Loops, EndWhereTheyAreAskedTo) {
  CountingTask task;
  ToyBatches data(20, 2);
  const auto rows = std::make_shared<RowLogger>();
  int asked = 0;
  TrainerOptions options{.max_steps = 1, .should_stop = [&] { return ++asked % 4 == 0; }};
  Trainer trainer(options, {rows, std::make_shared<PredictionWriter>(folder / "predictions")});
  EXPECT_TRUE(trainer.test(task, data).stopped);
  EXPECT_TRUE(trainer.predict(task, data).stopped);
  EXPECT_EQ(data.seen.size(), 8u);
  EXPECT_TRUE(rows->rows.empty());
  EXPECT_FALSE(std::filesystem::exists(folder / "predictions"));
  EXPECT_TRUE(task.net->is_training());
}

TEST_F(Loops, AProfilersFileForEach) {
  CountingTask task;
  ToyBatches train(2, 2), data(4, 2);
  const auto profiler = std::make_shared<runtime::SimpleProfiler>(
      runtime::SimpleProfilerOptions{.dirpath = folder.path().string(), .filename = "times"});
  Trainer trainer({.max_steps = 1, .profiler = profiler});
  trainer.fit(task, train, &data);
  trainer.validate(task, data);
  trainer.test(task, data);
  trainer.predict(task, data);
  EXPECT_THAT(test::names_in(folder.path()),
              ElementsAre("fit-times.txt", "predict-times.txt", "test-times.txt", "validate-times.txt"));
  EXPECT_EQ(profiler->durations().at("predict_step").size(), 2u);
  EXPECT_EQ(profiler->durations().at("test_step").size(), 2u);
}

TEST_F(Loops, AFastDevRunIsOneOfAllLoops) {
  CountingTask task;
  ToyBatches train(20, 2), data(20, 2);
  EarlyStoppingOptions never{.monitor = "nothing"};
  ModelCheckpointOptions best;
  best.dirpath = folder / "best";
  const auto rows = std::make_shared<RowLogger>();
  Trainer trainer({.max_steps = 100, .fast_dev_run = 2},
                  {rows, std::make_shared<EarlyStopping>(never), std::make_shared<ModelCheckpoint>(best)});
  const auto taken = [&](auto&& loop) {
    data.seen.clear();
    loop();
    return data.seen.size();
  };
  EXPECT_EQ(taken([&] { EXPECT_EQ(trainer.fit(task, train, &data).steps, 2); }), 2u);
  EXPECT_EQ(taken([&] { trainer.validate(task, data); }), 2u);
  EXPECT_EQ(taken([&] { trainer.test(task, data); }), 2u);
  EXPECT_EQ(taken([&] { trainer.predict(task, data); }), 2u);
  EXPECT_TRUE(rows->rows.empty());
  EXPECT_FALSE(std::filesystem::exists(folder / "best"));
}

/// Batches 0 and 1 take long and are the warm-up. Speeds are of the other three, 5 samples: against a clock of our own
/// around them.
TEST(ThroughputRows, WarmUpIsLeftOut) {
  struct Task : CountingTask {
    std::vector<at::Tensor> predict_step(const Batch& batch, std::int64_t index) override {
      wait(index);
      return CountingTask::predict_step(batch, index);
    }
    at::Tensor test_step(const Batch& batch, std::int64_t index) override {
      wait(index);
      return CountingTask::test_step(batch, index);
    }
    static void wait(std::int64_t index) { std::this_thread::sleep_for(std::chrono::milliseconds(index < 2 ? 60 : 5)); }
  } task;
  ToyBatches data(9, 2), train(4, 2);
  const auto rows = std::make_shared<RowLogger>();
  Trainer trainer({.max_steps = 2, .throughput_warmup_steps = 2}, {rows, std::make_shared<ThroughputRows>()});
  const auto predicted = trainer.predict(task, data);
  const auto tested = trainer.test(task, data);
  for (const auto& [speed, split] :
       {std::pair(predicted.speed, std::string("predict")), std::pair(tested.speed, std::string("test"))}) {
    EXPECT_GE(speed.at(split + "_runtime").get<double>(), 0.135) << split;  // whole
    const double samples = speed.at(split + "_samples_per_second"), steps = speed.at(split + "_steps_per_second");
    EXPECT_GT(steps, 20) << split;  // with the warm-up: at most 5 / 0.135 = 37; 3 / 0.15 on a slow machine
    EXPECT_LE(steps, 200) << split;
    EXPECT_NEAR(samples / steps, 5.0 / 3, 0.01) << split;
  }
  ASSERT_EQ(rows->rows.size(), 3u);  // test_loss has a row of its own
  EXPECT_EQ(rows->rows[0].second, predicted.speed);
  EXPECT_EQ(rows->rows[2].second, tested.speed);
  rows->rows.clear();
  const auto fitted = trainer.fit(task, train, &data);
  ASSERT_GE(rows->rows.size(), 2u);
  EXPECT_EQ(rows->rows.back().second, fitted.speed);
  EXPECT_TRUE(fitted.speed.contains("train_samples_per_second"));
  bool evaluated = false;
  for (const auto& [step, row] : rows->rows) evaluated |= row.contains("eval_samples_per_second");
  EXPECT_TRUE(evaluated);
  Trainer silent({.max_steps = 1}, {std::make_shared<ThroughputRows>()});
  EXPECT_REFUSED(silent.predict(task, data), "[ThroughputRows] loggers: found none");
}

TEST(ThroughputRows, AdjustedOrNot) {
  struct Slow : TrainerCallback {
    void on_step_end(Trainer&, const StepReport&) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
    }
  };
  const auto runtime_of = [](bool adjust) {
    ToyTask task;
    ToyBatches train(8, 2);
    const auto speed =
        Trainer({.max_steps = 4, .adjust_throughput = adjust}, {std::make_shared<Slow>()}).fit(task, train).speed;
    EXPECT_GE(speed.at("train_runtime").get<double>(), 0.16);
    return 4 / speed.at("train_steps_per_second").get<double>();
  };
  EXPECT_GE(runtime_of(false), 0.15);
  EXPECT_LT(runtime_of(true), 0.15);
}

}  // namespace
}  // namespace fp8::trainer
