// SPDX-License-Identifier: Apache-2.0
// Rows of numbers: what DeviceStatsMonitor and MemoryLog write, where, and that test() has hooks of its own.

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "runtime/trainer/toy_task.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::trainer {
namespace {

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
