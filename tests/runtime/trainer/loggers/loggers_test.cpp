// SPDX-License-Identifier: Apache-2.0
// Values that modules log, and their destinations: rows of steps, means of epochs, CSV, JSONL and TensorBoard's
// records. CRC-32C by RFC 3720's examples, protocol buffers by hand.
#include "fp8/runtime/trainer/loggers.h"

#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "runtime/trainer/toy_task.h"
#include "support/values.h"

namespace fp8::trainer {
namespace {

/// Logs the number of the batch in each way.
struct LoggingTask : ToyTask {
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    if (network().is_training()) {
      log("batch", static_cast<double>(index));
      log("both", static_cast<double>(index), {.on_step = true, .on_epoch = true});
      log("mean", static_cast<double>(index), {.on_epoch = true});
    }
    return ToyTask::training_step(batch, index);
  }
  at::Tensor validation_step(const Batch& batch, std::int64_t index) override {
    log("val", static_cast<double>(index) + 1);
    log("val_each", static_cast<double>(index), {.on_step = true});
    return ToyTask::training_step(batch, index);
  }
};

TEST(Metrics, RowsOfStepsAndWeightedMeansOfEpochs) {
  LoggingTask task;
  ToyBatches train(5, 2), val(3, 2);  // 2, 2, 1 samples; 2, 1
  const auto logger = std::make_shared<RowLogger>();
  Trainer trainer({.max_epochs = 1, .log_every_n_steps = 2}, {logger});
  trainer.fit(task, train, &val);
  const double mean = (2 * 0 + 2 * 1 + 1 * 2) / 5.0, of_val = (2 * 1 + 1 * 2) / 3.0;
  const std::vector<std::pair<std::int64_t, io::Json>> rows = {{2, {{"batch", 1.0}, {"both_step", 1.0}, {"epoch", 0}}},
                                                               {3, {{"val", of_val}}},
                                                               {3, {{"both_epoch", mean}, {"mean", mean}}}};
  EXPECT_EQ(logger->rows, rows);
  EXPECT_EQ(trainer.callback_metrics().at("val_each"), 1);
  EXPECT_TRUE(std::isfinite(trainer.callback_metrics().at("train_loss")));
  EXPECT_EQ(trainer.validate(task, val).loss, trainer.callback_metrics().at("val_loss"));
}

TEST(Metrics, MistakesAreNamed) {
  LoggingTask task;
  EXPECT_REFUSED(task.log("x", 1), "log(\"x\"): found no trainer that runs this module");
  Metrics metrics;
  EXPECT_REFUSED(metrics.log("x", 1, {}), "called outside of a step");
  metrics.begin(Metrics::Stage::train, 1);
  EXPECT_REFUSED(metrics.log("", 1, {}), "found the name \"\"");
  EXPECT_REFUSED(metrics.log("epoch", 1, {}), "found the name \"epoch\"");
  EXPECT_REFUSED(metrics.log("x", 1, {false, false}), "neither on_step nor on_epoch");
  metrics.log("x", 1, {});
  EXPECT_EQ(metrics.take_step(), io::Json({{"x", 1.0}}));
  EXPECT_REFUSED(metrics.log("x", 1, {}), "called outside of a step");
  Trainer trainer({.max_steps = 1});
  EXPECT_REFUSED(trainer.stop("x"), "[trainer] stop: called outside of fit()");
  EXPECT_REFUSED(trainer.save_checkpoint("x"), "save_checkpoint: called outside of fit()");
}

TEST(Metrics, StateHoldsTheMiddleOfAnEpoch) {
  const double inf = std::numeric_limits<double>::infinity();
  Metrics a, b;
  const auto half = [&](Metrics& m, double value) {
    m.begin(Metrics::Stage::train, 2);
    m.log("m", value, {.on_epoch = true});
    m.log("s", value, {});
  };
  half(a, 1);
  b.load(io::Json::parse(a.state().dump()));
  for (Metrics* m : {&a, &b}) half(*m, 4);
  EXPECT_EQ(a.take_means(Metrics::Stage::train, nullptr), b.take_means(Metrics::Stage::train, nullptr));
  EXPECT_EQ(b.known().at("m"), 2.5);
  EXPECT_EQ(a.take_step(), b.take_step());
  half(a, inf);
  b.load(io::Json::parse(a.state().dump()));
  EXPECT_EQ(b.known().at("s"), inf);
  EXPECT_EQ(a.state(), b.state());
}

TEST(CsvLogger, AddsColumnsAndQuotes) {
  const test::TempDir folder;
  const auto file = folder / "metrics.csv";
  Trainer trainer({.max_steps = 1});
  {
    CsvLogger logger(file);
    logger.log_metrics({{"loss", 5.5}, {"epoch", 0}}, 1);
    logger.log_metrics({{"lr", 1e-5}}, 1);  // of the same step
    logger.log_metrics({{"loss", std::nan("")}, {"epoch", 0}, {"lr", -std::numeric_limits<double>::infinity()}}, 2);
    logger.log_metrics({{"a,\"b\"", "x\ny"}}, 3);
    logger.finalize();
  }
  EXPECT_EQ(read_file(file), "step,epoch,loss,lr,\"a,\"\"b\"\"\"\n1,0,5.5,1e-05,\n2,0,nan,-inf,\n3,,,,x y\n");
  CsvLogger more(file);
  more.log_metrics({{"loss", 1}}, 4);
  more.finalize();
  EXPECT_THAT(read_file(file), ::testing::EndsWith("x y\n4,,1,,\n"));
  std::ofstream(folder / "other.csv") << "a,b\n";
  EXPECT_REFUSED(CsvLogger(folder / "other.csv"), "line 1: found 'a,b'");
}

TEST(EventFile, Crc32cIsThatOfTheRfc) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string up(32, '\0');
  for (std::size_t i = 0; i < up.size(); ++i) up[i] = static_cast<char>(i);
  EXPECT_EQ(crc32c(up), 0x46dd794eu);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
}

std::uint64_t fixed(const std::string& bytes, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(bytes.at(at + i));
  return value;
}

/// The events of whole records, their checksums checked.
std::vector<std::string> events_of(const std::string& file) {
  const auto masked = [](const std::string& bytes) {
    const std::uint32_t crc = crc32c(bytes);
    return static_cast<std::uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8u);
  };
  std::vector<std::string> events;
  for (std::size_t at = 0; at < file.size();) {
    const auto size = fixed(file, at, 8);
    EXPECT_EQ(fixed(file, at + 8, 4), masked(file.substr(at, 8)));
    events.push_back(file.substr(at + 12, size));
    EXPECT_EQ(fixed(file, at + 12 + size, 4), masked(events.back()));
    at += 16 + size;
  }
  return events;
}

TEST(EventFile, RecordsAreProtocolBuffers) {
  const auto events = events_of(version_record(1.0) + scalars_record(2.0, 300, {{"a", 1.5f}}));
  ASSERT_EQ(events.size(), 2u);
  const std::string one("\x09\0\0\0\0\0\0\xf0\x3f", 9), two("\x09\0\0\0\0\0\0\0\x40", 9);
  EXPECT_EQ(events[0], one +
                           "\x1a\x0d"
                           "brain.Event:2");
  const std::string value(
      "\x0a\x01"
      "a"
      "\x15\0\0\xc0\x3f",
      8);
  EXPECT_EQ(events[1], two +
                           "\x10\xac\x02"
                           "\x2a\x0a"
                           "\x0a\x08" +
                           value);
}

/// The one file in a folder.
std::filesystem::path only_file(const std::filesystem::path& folder) {
  auto found = collected(std::filesystem::directory_iterator(folder), [](const auto& entry) { return entry.path(); });
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? folder : found.front();
}

/// An event without its time.
std::string timeless(const std::string& event) { return event.substr(9); }

TEST(Loggers, AResumedRunHasTheRowsOfOneThatWasNot) {
  const auto run = [](const std::filesystem::path& folder, std::int64_t stop_at) {
    LoggingTask task;
    ToyBatches train(5, 2), val(3, 2);
    TrainerOptions options{.max_epochs = 3,
                           .log_every_n_steps = 1,
                           .checkpoint_root = folder / "checkpoints",
                           .save_every_n_steps = 2,
                           .resume = true};
    std::int64_t steps = 0;
    const auto end = [&] { return ++steps == stop_at; };
    if (stop_at > 0) options.should_stop = end;
    Trainer trainer(options, {std::make_shared<CsvLogger>(folder / "metrics.csv"),
                              std::make_shared<JsonlLogger>(folder / "rows.jsonl"),
                              std::make_shared<TensorBoardLogger>(folder / "events"),
                              std::make_shared<LearningRateMonitor>(), std::make_shared<GradientNorms>()});
    trainer.fit(task, train, &val);
  };
  constexpr int kInValidation = 5, kAfterStep5 = 7;  // each batch of the validation after step 3 is asked too
  const test::TempDir whole;
  run(whole.path(), 0);
  for (const int stop_at : {kInValidation, kAfterStep5}) {
    SCOPED_TRACE(stop_at);
    const test::TempDir cut;
    run(cut.path(), stop_at);
    // Killed a moment later: what is in the files behind the checkpoint has to go.
    std::ofstream(cut / "metrics.csv", std::ios::app) << "6,1\n";
    std::ofstream(cut / "rows.jsonl", std::ios::app) << "{\"step\": 6";
    std::ofstream(only_file(cut / "events"), std::ios::app) << scalars_record(0, 6, {{"x", 1}}).substr(0, 9);
    run(cut.path(), 0);
    // A checkpoint ends a row: what the validation brings then stands in the next one of the same step.
    if (stop_at == kAfterStep5) {
      EXPECT_EQ(read_file(cut / "metrics.csv"), read_file(whole / "metrics.csv"));
    }
    EXPECT_EQ(read_file(cut / "rows.jsonl"), read_file(whole / "rows.jsonl"));
    auto events = events_of(read_file(only_file(cut / "events"))),
         expected = events_of(read_file(only_file(whole / "events")));
    for (auto* all : {&events, &expected}) std::ranges::transform(*all, all->begin(), timeless);
    EXPECT_EQ(events, expected);
    EXPECT_EQ(expected.size(), 1 + 3 * 9u + 2 * 3u);  // rates, norms, numbers of 9 steps; validation, means of 3 epochs
  }
}

TEST(Monitors, RatesAndNormsByLightningsNames) {
  ToyTask task;
  task.step_lr = true;
  task.interval = ScheduleInterval::step;
  ToyBatches train(4, 2);
  const auto logger = std::make_shared<RowLogger>();
  TrainerOptions options{.max_steps = 2};
  options.log_every_n_steps = 1;
  Trainer(options, {logger, std::make_shared<LearningRateMonitor>(), std::make_shared<GradientNorms>()})
      .fit(task, train);
  ASSERT_EQ(logger->rows.size(), 4u);
  EXPECT_EQ(logger->rows[0].second, (io::Json{{"lr-AdamW", 0.01}}));
  EXPECT_EQ(logger->rows[2].second, (io::Json{{"lr-AdamW", 0.005}}));
  const auto& norms = logger->rows[1].second;
  EXPECT_EQ(norms.size(), 5u);
  double total = 0;
  for (const char* name : {"hidden.weight", "hidden.bias", "out.weight", "out.bias"})
    total += std::pow(norms.at(std::string("grad_2.0_norm/") + name).get<double>(), 2);
  EXPECT_NEAR(norms.at("grad_2.0_norm_total").get<double>(), std::sqrt(total), 1e-12);
  EXPECT_THROW(GradientNorms(0), std::invalid_argument);
  EXPECT_REFUSED(Trainer(options, {std::make_shared<LearningRateMonitor>()}).fit(task, train),
                 "[LearningRateMonitor] loggers: found none");
}

TEST(Trainer, ClipsByValueAndEndsInTime) {
  ToyTask task(1, at::kCPU, testing::ToyOptimizer::sgd);
  task.lr = 1;
  ToyBatches train(8, 2);
  TrainerOptions options{.max_steps = 1};
  options.gradient_clip_val = 1e-3;
  options.gradient_clip_algorithm = GradientClip::value;
  const auto before = task.net->out->weight.detach().clone();
  Trainer(options).fit(task, train);
  const auto moved = (task.net->out->weight.detach() - before).abs();
  EXPECT_NEAR(moved.max().item<double>(), 1e-3, 1e-7);  // x, not x times a common factor
  EXPECT_NEAR(moved.min().item<double>(), 1e-3, 1e-7);

  TrainerOptions timed{.max_time = 1e-9};
  const auto result = Trainer(timed).fit(task, train);
  EXPECT_EQ(result.steps, 1);
  EXPECT_EQ(result.stop_reason, "max_time");
  EXPECT_FALSE(result.stopped);
  timed.max_time = -1;
  EXPECT_REFUSED(Trainer{timed}, "max_time: found -1");
}

/// A run that was killed before its first checkpoint has left rows of steps that it makes again; one that had ended
/// with an epoch has left the epoch's row behind its last checkpoint.
TEST(Loggers, ARunThatStartsOverOrHadEndedLeavesTheSameFiles) {
  struct Killed : TrainerCallback {
    void on_step_end(Trainer&, const StepReport& report) override {
      if (report.step == at) throw std::runtime_error("killed");
    }
    std::int64_t at = 0;
  };
  const auto run = [](const std::filesystem::path& folder, std::int64_t killed_at, bool resume) {
    LoggingTask task;
    ToyBatches train(6, 2);
    TrainerOptions options{
        .max_steps = 6, .log_every_n_steps = 1, .checkpoint_root = folder / "checkpoints", .resume = resume};
    const auto killed = std::make_shared<Killed>();
    killed->at = killed_at;
    Trainer trainer(options, {std::make_shared<JsonlLogger>(folder / "rows.jsonl"),
                              std::make_shared<CsvLogger>(folder / "rows.csv"), killed});
    return error_of([&] { trainer.fit(task, train); });
  };
  const test::TempDir whole, cut;
  EXPECT_EQ(run(whole.path(), 0, true), "");
  const auto jsonl = read_file(whole / "rows.jsonl"), csv = read_file(whole / "rows.csv");
  EXPECT_THAT(jsonl, HasSubstr("both_epoch"));
  EXPECT_EQ(run(cut.path(), 5, true), "killed");
  EXPECT_FALSE(read_file(cut / "rows.jsonl").empty());
  for (const auto* folder : {&cut, &whole}) {  // starts over, and had ended
    EXPECT_EQ(run(folder->path(), 0, true), "");
    EXPECT_EQ(read_file(*folder / "rows.jsonl"), jsonl);
    EXPECT_EQ(read_file(*folder / "rows.csv"), csv);
  }
  const test::TempDir other;  // rows of another program stay where no run has begun
  std::ofstream(other / "rows.jsonl") << "{}\n";
  EXPECT_EQ(run(other.path(), 0, true), "");
  EXPECT_EQ(read_file(other / "rows.jsonl"), "{}\n" + jsonl);
}

}  // namespace
}  // namespace fp8::trainer
