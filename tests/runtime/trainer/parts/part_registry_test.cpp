// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/trainer/callbacks/early_stopping.h"
#include "fp8/runtime/trainer/parts.h"
#include "fp8/runtime/trainer/training_module.h"
#include "runtime/trainer/toy_task.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::trainer {
namespace {

using ::testing::HasSubstr;
using testing::ToyBatches;
using testing::ToyTask;

template <class T>
std::string refusal_of(const Part& part) {
  return test::error_of<io::Error>([&] { make_part<T>(part, {}); });
}

Part part(std::string class_path, const char* arguments = "{}") {
  return {.class_path = std::move(class_path), .init_args = io::Json::parse(arguments), .place = "run.yaml:3"};
}

TEST(PartRegistry, NamesAreOnesOwnAndLightnings) {
  for (const char* name : {"EarlyStopping", "lightning.pytorch.callbacks.EarlyStopping",
                           "pytorch_lightning.callbacks.early_stopping.EarlyStopping", "fp8.EarlyStopping"}) {
    const auto made = make_part<TrainerCallback>(part(name, R"({"monitor": "x"})"), {});
    EXPECT_NE(dynamic_cast<EarlyStopping*>(made.get()), nullptr) << name;
    EXPECT_EQ(made->state_key(), "EarlyStopping.x.min");
  }
  EXPECT_FALSE(is_part<TrainerCallback>("my.EarlyStopping"));
  EXPECT_THAT(refusal_of<TrainerCallback>(part("EarlyStoping")),
              AllOf(HasSubstr("run.yaml:3: found 'EarlyStoping'"), HasSubstr("the nearest is 'EarlyStopping'")));
  EXPECT_THAT(refusal_of<TrainerCallback>(part("my.EarlyStopping")), HasSubstr("a class of Python: python"));
}

TEST(PartRegistry, EveryNameMakesWhatItSays) {
  const test::TempDir folder;
  const std::map<std::string, std::string> needed = {{"EarlyStopping", R"({"monitor": "a"})"},
                                                     {"OnExceptionCheckpoint", R"({"dirpath": "a"})"},
                                                     {"StochasticWeightAveraging", R"({"swa_lrs": 0.01})"}};
  for (const auto& name : part_names<TrainerCallback>()) {
    const auto found = needed.find(name);
    const auto arguments = io::Json::parse(found == needed.end() ? "{}" : found->second);
    const Part made{.class_path = name, .init_args = arguments, .place = "here"};
    EXPECT_NE(make_part<TrainerCallback>(made, {.root = folder.path(), .device = c10::Device(at::kHPU, 0)}), nullptr)
        << name;
    Part wrong = made;
    wrong.init_args["nobody_has_this"] = 1;
    EXPECT_THROW(make_part<TrainerCallback>(wrong, {.root = folder.path(), .device = c10::Device(at::kHPU, 0)}),
                 io::Error)
        << name;
  }
}

TEST(PartRegistry, WhatIsANameLeadsNowhere) {
  const test::TempDir folder;
  const auto root = folder / "root";
  for (const auto& name : part_names<TrainerCallback>()) {
    for (const char* argument : {"name", "version", "filename", "sub_dir", "prefix"}) {
      for (const char* value : {"../climbs", "..", ".", "a/b", "/absolute", "a\\b"}) {
        Part one{.class_path = name, .init_args = {{argument, value}}, .place = "here"};
        if (name == "EarlyStopping") one.init_args["monitor"] = "a";
        if (name == "StochasticWeightAveraging") one.init_args["swa_lrs"] = 0.01;
        EXPECT_THROW(make_part<TrainerCallback>(one, {.root = root, .device = c10::Device(at::kHPU, 0)}), io::Error)
            << name << " " << one.init_args;
      }
    }
  }
  // Arguments that no part reads are found when the rest is made, below the root.
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) EXPECT_EQ(entry.path(), root);
  const Part logger = part("CSVLogger", R"({"name": "..", "save_dir": "x"})");
  EXPECT_EQ(refusal_of<TrainerCallback>(logger),
            "run.yaml:3: name: found \"..\", allowed: a name without '/' that is not '..'");
}

TEST(PartRegistry, ArgumentsAreNamedByPlace) {
  EXPECT_THAT(refusal_of<TrainerCallback>(part("EarlyStopping")), HasSubstr("run.yaml:3: monitor: is required"));
  EXPECT_THAT(refusal_of<TrainerCallback>(part("EarlyStopping", R"({"monitor": "a", "patience": "3"})")),
              HasSubstr("run.yaml:3: patience: found \"3\", allowed: an integer, at least 0"));
  EXPECT_THAT(refusal_of<TrainerCallback>(part("EarlyStopping", R"({"monitor": "a", "mode": "least"})")),
              HasSubstr("mode: found \"least\", allowed: min, max"));
  EXPECT_THAT(refusal_of<TrainerCallback>(part("EarlyStopping", R"({"monitor": "a", "patense": 3})")),
              HasSubstr("the nearest is 'patience'"));
  Part placed = part("EarlyStopping", R"({"monitor": 5})");
  placed.places["monitor"] = "run.yaml:9: trainer.callbacks.0.init_args.monitor";
  EXPECT_EQ(refusal_of<TrainerCallback>(placed),
            "run.yaml:9: trainer.callbacks.0.init_args.monitor: found 5, allowed: a text");
  EXPECT_THAT(refusal_of<TrainerCallback>(part("ModelCheckpoint", R"({"save_weights_only": true})")),
              HasSubstr("save_weights_only: found true, allowed: false: a checkpoint has all"));
  EXPECT_THAT(
      refusal_of<TrainerCallback>(part("EarlyStopping", R"({"monitor": "a", "patience": 18446744073709551615})")),
      HasSubstr("patience"));
}

TEST(PartRegistry, OnesOwnIsKnownWhileItsRegistrationLives) {
  EXPECT_THAT(refusal_of<TrainingModule>(part("Toy")), HasSubstr("what a library that --load loads makes known"));
  {
    const PartRegistration<TrainingModule> toy("Toy", [](PartArguments& a) {
      return std::make_shared<ToyTask>(static_cast<std::uint64_t>(a.integer("seed", 1, 0)));
    });
    EXPECT_THROW(PartRegistration<TrainingModule>("Toy", [](PartArguments&) { return nullptr; }),
                 std::invalid_argument);
    EXPECT_THAT(part_names<TrainingModule>(), ::testing::ElementsAre("Toy"));
    EXPECT_NE(make_part<TrainingModule>(part("Toy", R"({"seed": 3})"), {}), nullptr);
    EXPECT_THAT(refusal_of<TrainingModule>(part("Toy", R"({"sede": 3})")), HasSubstr("the nearest is 'seed'"));
    EXPECT_THAT(refusal_of<TrainingModule>(part("Toi")), HasSubstr("the nearest is 'Toy'"));
  }
  EXPECT_TRUE(part_names<TrainingModule>().empty());
}

// Behind an adapter a module's own log() reaches the trainer, and what is overridden counts.
TEST(ModuleAdapter, IsTheModuleButForWhatItOverrides) {
  struct Logging : ToyTask {
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      log("seen", static_cast<double>(index));
      return ToyTask::training_step(batch, index);
    }
  };
  struct Slower : ModuleAdapter {
    explicit Slower(ToyTask& task) : ModuleAdapter(task), task(task) {}
    Optimizers configure_optimizers() override {
      task.lr = 0;
      return ModuleAdapter::configure_optimizers();
    }
    ToyTask& task;
  };
  Logging logging;
  const auto before = logging.net->out->weight.detach().clone();
  Slower slower(logging);
  ToyBatches batches(8, 2);
  Trainer trainer({.max_steps = 4});
  trainer.fit(slower, batches);
  EXPECT_EQ(trainer.callback_metrics().at("seen"), 3);
  EXPECT_TRUE(torch::equal(before, logging.net->out->weight));
}

}  // namespace
}  // namespace fp8::trainer
