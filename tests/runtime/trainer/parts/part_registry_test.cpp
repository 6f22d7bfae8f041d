// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/trainer/callbacks/early_stopping.h"
#include "fp8/runtime/trainer/parts.h"
#include "runtime/trainer/toy_task.h"
#include "support/launchers.h"

namespace fp8::trainer {
namespace {

using runtime::DeviceKind;

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
  for (const auto& name : part_names<TrainerCallback>())
    for (const char* argument : {"name", "version", "filename", "sub_dir", "prefix"})
      for (const char* value : {"../climbs", "..", ".", "a/b", "/absolute", "a\\b"}) {
        Part one{.class_path = name, .init_args = {{argument, value}}, .place = "here"};
        if (name == "EarlyStopping") one.init_args["monitor"] = "a";
        if (name == "StochasticWeightAveraging") one.init_args["swa_lrs"] = 0.01;
        EXPECT_THROW(make_part<TrainerCallback>(one, {.root = root, .device = c10::Device(at::kHPU, 0)}), io::Error)
            << name << " " << one.init_args;
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

// HPUAccelerator as lightning-habana's tests ask it, and names as Lightning registers them.

TEST(HpuAccelerator, CountsWhatTheEnvironmentSays) {
  EXPECT_TRUE(HPUAccelerator::is_available());
  EXPECT_EQ(HPUAccelerator::auto_device_count(), runtime::device_count());
  EXPECT_FALSE(HPUAccelerator::is_lazy());
}

TEST(HpuAccelerator, ParsesWhatATrainerIsGiven) {
  EXPECT_EQ(HPUAccelerator::parse_devices({}), std::nullopt);
  EXPECT_EQ(HPUAccelerator::parse_devices(2), 2);
  EXPECT_EQ(HPUAccelerator::parse_devices("2"), 2);
  EXPECT_EQ(HPUAccelerator::parse_devices("16"), 16);
  EXPECT_EQ(HPUAccelerator::parse_devices("auto"), HPUAccelerator::auto_device_count());
  for (const std::vector<int>& list : {std::vector<int>{1}, {0, 1}, {}})
    EXPECT_EQ(test::error_of([&] { HPUAccelerator::parse_devices(list); }),
              "`devices` for `HPUAccelerator` must be int, string or None.");
  for (const int wrong : {0, -1, 17})
    EXPECT_REFUSED(HPUAccelerator::parse_devices(wrong),
                   "devices: found " + std::to_string(wrong) + ", allowed: 1 to 16, \"auto\"");
  for (const char* wrong : {"", "two", "2,3", "1.5", " 2", "-1", "0", "17", "99999999999", "Auto"})
    EXPECT_REFUSED(HPUAccelerator::parse_devices(wrong),
                   std::string("devices: found '") + wrong + "', allowed: 1 to 16, \"auto\"");
}

TEST(HpuAccelerator, DevicesOfProcesses) {
  EXPECT_EQ(HPUAccelerator::get_parallel_devices(3), std::vector<c10::Device>(3, c10::Device(c10::kHPU)));
  EXPECT_REFUSED(HPUAccelerator::get_parallel_devices(0), "found 0, allowed: 1 to 16");
  EXPECT_REFUSED(HPUAccelerator::get_parallel_devices(17), "found 17");
}

TEST(HpuAccelerator, NamesTheGenerationAndWhatItHas) {
  for (const auto& [kind, name] :
       {std::pair{DeviceKind::gaudi, "GAUDI"}, {DeviceKind::gaudi2, "GAUDI2"}, {DeviceKind::gaudi3, "GAUDI3"}}) {
    const runtime::DeviceKindScope scope(kind);
    EXPECT_EQ(HPUAccelerator::get_device_name(), name);
    EXPECT_EQ(HPUAccelerator::is_fp8_available().available, kind != DeviceKind::gaudi);
    EXPECT_EQ(HPUAccelerator::is_fp16_available().available, kind != DeviceKind::gaudi);
    EXPECT_EQ(HPUAccelerator::is_fp8_available().reason,
              kind == DeviceKind::gaudi ? "FP8 not supported on Gaudi, Gaudi2 or higher required" : "");
  }
}

TEST(HpuAccelerator, StatisticsAreTheDevicesTen) {
  const at::Tensor held = at::zeros({1000}, test::on_hpu());
  const auto stats = HPUAccelerator::get_device_stats(kHpu);
  std::set<std::string> names;
  for (const auto& [name, value] : stats) names.insert(name);
  EXPECT_EQ(names,
            (std::set<std::string>{"Limit", "InUse", "MaxInUse", "NumAllocs", "NumFrees", "ActiveAllocs",
                                   "MaxAllocSize", "TotalSystemAllocs", "TotalSystemFrees", "TotalActiveAllocs"}));
  EXPECT_GE(stats.at("InUse"), 4000u);
  EXPECT_EQ(stats.at("ActiveAllocs"), stats.at("NumAllocs") - stats.at("NumFrees"));
  EXPECT_EQ(HPUAccelerator::get_device_stats().at("InUse"), stats.at("InUse"));
  EXPECT_REFUSED(HPUAccelerator::get_device_stats(c10::Device(c10::kCPU)), "Device should be HPU, got cpu instead.");
}

TEST(HpuAccelerator, SetsUpNoOtherDevice) {
  HPUAccelerator::setup_device(c10::Device(c10::kHPU));
  HPUAccelerator::setup_device(kHpu);
  EXPECT_EQ(runtime::current_device(), 0);
  EXPECT_EQ(test::error_of([] { HPUAccelerator::setup_device(c10::Device(c10::kCPU)); }),
            "Device should be HPU, got cpu instead.");
  EXPECT_REFUSED(HPUAccelerator::setup_device(c10::Device(c10::kHPU, 1)),
                 "Invalid device id: hpu:1, the machine emulates 1 hpu");
}

TEST(Accelerators, ByName) {
  EXPECT_EQ(device_of(accelerator_named("accelerator", "auto")), c10::Device(c10::kHPU));
  EXPECT_EQ(device_of(accelerator_named("accelerator", "hpu")), c10::Device(c10::kHPU));
  EXPECT_EQ(device_of(accelerator_named("accelerator", "cpu")), c10::Device(c10::kCPU));
  EXPECT_EQ(test::error_of([] { accelerator_named("trainer.accelerator", "hpux"); }),
            "trainer.accelerator: found 'hpux', allowed: auto, hpu, cpu; did you mean 'hpu'?");
}

/// Lightning: one device, SingleHPUStrategy; several, HPUParallelStrategy.
TEST(Strategies, AutoFollowsTheDevices) {
  const StrategyKind automatic = strategy_named("strategy", "auto");
  EXPECT_EQ(resolve_strategy(automatic, 1), StrategyKind::hpu_single);
  EXPECT_EQ(resolve_strategy(automatic, 2), StrategyKind::hpu_parallel);
}

TEST(Strategies, ByName) {
  for (const auto& row : enum_names<StrategyKind>) EXPECT_EQ(strategy_named("strategy", row.name), row.value);
  EXPECT_EQ(test::error_of([] { strategy_named("trainer.strategy", "hpu_dpd"); }),
            "trainer.strategy: found 'hpu_dpd', allowed: auto, hpu_single, hpu_parallel, hpu_ddp, fast_ddp; did you "
            "mean 'hpu_ddp'?");
  EXPECT_REFUSED(strategy_named("strategy", "hpu_deepspeed_stage_3_ofload"),
                 "did you mean 'hpu_deepspeed_stage_3_offload'?");
  for (const std::string engine : {"hpu_deepspeed", "hpu_deepspeed_stage_1", "hpu_deepspeed_stage_2_offload",
                                   "hpu_deepspeed_stage_3_offload_nvme", "hpu_fsdp"})
    EXPECT_REFUSED(strategy_named("strategy", engine),
                   "strategy: found '" + engine + "', which comes with a package of Python: torchrun ",
                   engine == "hpu_fsdp" ? "fully_shard" : "deepspeed.initialize", "allowed here: auto");
}

io::GetVariable from(const test::Variables& variables) {
  return [&variables](const char* name) {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
}

TEST(Ranks, AloneNeedsNoLauncher) {
  const test::Variables none;
  for (const std::optional<std::int64_t> devices : {std::optional<std::int64_t>(), std::optional<std::int64_t>(1)})
    EXPECT_EQ(test::error_of([&] { require_ranks(devices, 1, "fp8 train ...", from(none)); }), "");
}

TEST(Ranks, WithoutALauncherTheLineIsNamed) {
  const test::Variables none;
  EXPECT_EQ(test::error_of([&] { require_ranks(2, 1, "fp8 train --config a.yaml", from(none)); }),
            "devices: found 2, which is more than this process, and a launcher starts them: torchrun --nproc-per-node "
            "2 --no-python fp8 train --config a.yaml");
  EXPECT_REFUSED(require_ranks(8, 2, "fp8 train ...", from(none)), "devices: found 8 with num_nodes 2",
                 "torchrun --nnodes 2 --node-rank $NODE_RANK "
                 "--master-addr $MASTER_ADDR --master-port $MASTER_PORT --nproc-per-node 8 --no-python");
  EXPECT_REFUSED(require_ranks(std::nullopt, 2, "fp8 train ...", from(none)), "devices: found auto with num_nodes 2",
                 "--nproc-per-node 1");
}

TEST(Ranks, NumbersOutOfRange) {
  const test::Variables none;
  for (const std::int64_t devices : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{17}, std::int64_t{1} << 32})
    EXPECT_EQ(test::error_of([&] { require_ranks(devices, 1, "fp8", from(none)); }),
              "devices: found " + std::to_string(devices) + ", allowed: 1 to 16");
  for (const std::int64_t nodes : {std::int64_t{0}, std::int64_t{1} << 32, INT64_MAX})
    EXPECT_EQ(test::error_of([&] { require_ranks(std::nullopt, nodes, "fp8", from(none)); }),
              "num_nodes: found " + std::to_string(nodes) + ", allowed: 1 to 65536");
}

TEST(Ranks, ALauncherStartedAsManyOrOthers) {
  for (const auto& [launcher, variables] : test::launchers(1, 4)) {
    for (const auto& [devices, nodes] :
         {std::pair{std::optional(4), 1}, {std::optional(2), 2}, {std::optional<int>(), 2}})
      EXPECT_EQ(test::error_of([&] { require_ranks(devices, nodes, "fp8", from(variables)); }), "") << launcher;
    EXPECT_REFUSED(require_ranks(2, 1, "fp8", from(variables)),
                   "devices: found 2, allowed: what makes 4 processes, for this is rank 1 of 4, as ");
    EXPECT_REFUSED(require_ranks(1, 1, "fp8", from(variables)), "found 1, allowed");
    EXPECT_REFUSED(require_ranks(std::nullopt, 3, "fp8", from(variables)), "found auto with num_nodes 3");
  }
}

}  // namespace
}  // namespace fp8::trainer
