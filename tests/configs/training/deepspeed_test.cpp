// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's JSON: what is right, and every problem with its text.

#include "fp8/configs/training/deepspeed_config.h"
#include "fp8/runtime/trainer/registry.h"
#include "support/golden.h"
#include "support/throws_with.h"
#include "support/values.h"

namespace fp8::configs {
namespace {

using enum DeepSpeedReader;

Findings check(const std::string& text, const DeepSpeedUse& use = {}) {
  return check_deepspeed(io::parse_json(text, "ds.json"), "ds.json", use);
}

/// The only problem of keys beside a batch that is right.
std::string problem(const std::string& keys, const DeepSpeedUse& use = {}) {
  const auto found = check(R"({"train_micro_batch_size_per_gpu": 1, )" + keys + "}", use).problems;
  return found.empty() ? "none" : found.size() == 1 ? found[0] : found[0] + "; and: " + found[1];
}

std::string note(const std::string& keys, const DeepSpeedUse& use = {}) {
  const auto found = check(R"({"train_micro_batch_size_per_gpu": 1, )" + keys + "}", use);
  EXPECT_THAT(found.problems, IsEmpty()) << keys;
  return found.notes.size() == 1 ? found.notes[0] : "not one note";
}

// The vendor's documents (hpu_advanced): the configuration of BF16Optimizer, two processes, accumulation from the
// Trainer.
constexpr const char* kDocumented = R"({
    "train_batch_size": 8, "bf16": {"enabled": true}, "fp16": {"enabled": false},
    "train_micro_batch_size_per_gpu": 2,
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0.02, "warmup_max_lr": 0.05,
                  "warmup_num_steps": 4, "total_num_steps": 8, "warmup_type": "linear"}},
    "zero_allow_untested_optimizer": true, "zero_optimization": {"stage": 2}})";

// As transformers' documentation writes them.
constexpr const char* kAutomatic = R"({
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
             "min_loss_scale": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR",
                  "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
        "offload_param": {"device": "cpu", "pin_memory": true}, "overlap_comm": true, "contiguous_gradients": true,
        "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false})";

TEST(DeepSpeedConfig, WhatIsRight) {
  EXPECT_THAT(check(kDocumented).problems, IsEmpty());
  EXPECT_THAT(check(kDocumented, {.processes = 2, .reader = lightning}).problems, IsEmpty());
  EXPECT_THAT(check(kDocumented, {.processes = 2, .reader = deepspeed}).problems, IsEmpty());
  EXPECT_THAT(check(kAutomatic).problems, IsEmpty());
  EXPECT_THAT(check(kAutomatic, {.processes = 8, .reader = transformers}).problems, IsEmpty());
  EXPECT_EQ(problem(R"("optimizer": {"type": "adam", "params": {"lr": 1e-3, "betas": [0.8, 0.999], "eps": 1e-8,
                       "weight_decay": 3e-7, "torch_adam": true, "adam_w_mode": false}})"),
            "none");
  EXPECT_EQ(
      problem(R"("zero_optimization": {"stage": 1}, "optimizer": {"type": "SGD", "params": {"lr": 1, "momentum": 0.9}},
                       "zero_allow_untested_optimizer": true)"),
      "none");
}

TEST(DeepSpeedConfig, KeysAndValues) { EXPECT_GOLDEN(problem(text)); }

TEST(DeepSpeedConfig, DuplicateKeysAreTheParsers) {
  EXPECT_EQ(error_of<io::Error>([&] { io::parse_json("{\"bf16\": {},\n \"bf16\": {}}", "ds.json"); }),
            "ds.json:2:2: duplicate key 'bf16'");
}

std::string batch_problem(const std::string& keys, std::int64_t processes,
                          std::optional<DeepSpeedReader> reader = std::nullopt) {
  const auto found = check("{" + keys + "}", {processes, reader}).problems;
  return found.empty() ? "none" : found.size() == 1 ? found[0] : "several";
}

std::string triple(int train, int micro, int accumulation) {
  return "\"train_batch_size\": " + std::to_string(train) +
         ", \"train_micro_batch_size_per_gpu\": " + std::to_string(micro) +
         ", \"gradient_accumulation_steps\": " + std::to_string(accumulation);
}

TEST(DeepSpeedConfig, TheBatchIsMicroBatchTimesAccumulationTimesProcesses) {
  const auto of_batch = [](const std::string& text) {  // train, micro, accumulation, processes; 0: any number
    std::istringstream numbers(text);
    int train, micro, accumulation, processes;
    numbers >> train >> micro >> accumulation >> processes;
    return batch_problem(triple(train, micro, accumulation), processes);
  };
  EXPECT_GOLDEN(of_batch(text));
}

TEST(DeepSpeedConfig, TheBatchFromTwoOrOneOfItsKeys) {
  EXPECT_GOLDEN(batch_problem(text, 2));
  EXPECT_EQ(batch_problem(R"("train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5)", 7), "none");
  const std::string none =
      "ds.json: found neither train_batch_size nor train_micro_batch_size_per_gpu, allowed: one of the two, or both";
  EXPECT_EQ(batch_problem("", 2), none);
  EXPECT_EQ(batch_problem(R"("gradient_accumulation_steps": 5)", 2), none);
  EXPECT_EQ(batch_problem("", 2, lightning), "none");  // from the data loader
  EXPECT_EQ(batch_problem(triple(2147483647, 2147483647, 2147483647), 65536),
            "ds.json: key 'train_batch_size': found 2147483647, allowed: the product (train_micro_batch_size_per_gpu "
            "2147483647 x gradient_accumulation_steps 2147483647 x 65536 processes)");
  EXPECT_EQ(
      batch_problem(R"("train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "sequence_parallel_size": 2)", 4),
      "none");
}

TEST(DeepSpeedConfig, WhatDeepSpeedMakesOfTheBatch) {
  const auto batch = [](const std::string& keys, std::int64_t processes) {
    const auto b = deepspeed_batch(io::parse_json("{" + keys + "}", "ds.json"), {.processes = processes});
    return std::vector<std::int64_t>{b.train, b.micro, b.accumulation, b.processes};
  };
  EXPECT_THAT(batch(triple(32, 8, 2), 2), ElementsAre(32, 8, 2, 2));
  EXPECT_THAT(batch(triple(32, 8, 2), 0), ElementsAre(32, 8, 2, 2));
  EXPECT_THAT(batch(R"("train_batch_size": 32, "train_micro_batch_size_per_gpu": 4)", 2), ElementsAre(32, 4, 4, 2));
  EXPECT_THAT(batch(R"("train_batch_size": 32, "gradient_accumulation_steps": 4)", 2), ElementsAre(32, 4, 4, 2));
  EXPECT_THAT(batch(R"("train_batch_size": 32)", 2), ElementsAre(32, 16, 1, 2));
  EXPECT_THAT(batch(R"("train_micro_batch_size_per_gpu": 3)", 2), ElementsAre(6, 3, 1, 2));
  EXPECT_THAT(batch(R"("train_micro_batch_size_per_gpu": 3)", 0), ElementsAre(0, 3, 1, 0));
  EXPECT_THAT(batch(R"("train_batch_size": "auto")", 2), ElementsAre(0, 0, 0, 2));
}

TEST(DeepSpeedConfig, ElasticityChoosesTheBatch) {
  EXPECT_EQ(
      batch_problem(R"("elasticity": {"enabled": true, "max_train_batch_size": 64, "micro_batch_sizes": [2, 4]})", 2),
      "none");
  EXPECT_THAT(batch_problem(R"("train_batch_size": 8, "elasticity": {"enabled": true})", 2),
              HasSubstr("key 'train_batch_size': found with elasticity.enabled, which chooses it"));
  EXPECT_EQ(batch_problem(
                R"("train_batch_size": 8, "elasticity": {"enabled": true, "ignore_non_elastic_batch_info": true})", 2),
            "none");
}

TEST(DeepSpeedConfig, Precision) {
  EXPECT_GOLDEN(problem(text));
  EXPECT_EQ(note(
                R"("bf16": {"enabled": true}, "zero_optimization": {"stage": 1},
             "data_types": {"grad_accum_dtype": "fp32"})"),
            "ds.json: stage 1 with bf16 and gradients in fp32 is BF16_Optimizer");
}

TEST(DeepSpeedConfig, Optimizers) {
  EXPECT_GOLDEN(problem(text));
  EXPECT_EQ(note(R"("optimizer": {"params": {"lr": 1}})"),
            "ds.json: key 'optimizer': without type nothing comes of it");
}

TEST(DeepSpeedConfig, Schedules) {
  EXPECT_GOLDEN(problem(text));
  EXPECT_EQ(note(R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1}})"),
            "ds.json: key 'scheduler.params.warmup_num_steps': fewer than 2 are 2");
  EXPECT_THAT(
      note(R"("scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 9, "total_num_steps": 8}})"),
      HasSubstr("fewer than warmup_num_steps"));
}

TEST(DeepSpeedConfig, Offload) {
  const auto zero = [](const std::string& keys) { return problem("\"zero_optimization\": {" + keys + "}"); };
  EXPECT_GOLDEN(zero(text));
  EXPECT_THAT(note(R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}})"),
              HasSubstr("must be DeepSpeedCPUAdam, unless zero_force_ds_cpu_optimizer is false"));
  EXPECT_EQ(note(R"("zero_optimization": true)"),
            "ds.json: key 'zero_optimization': true is stage 1, as an object {\"stage\": 1}");
}

TEST(DeepSpeedConfig, SumsOfGradients) {
  EXPECT_EQ(problem(R"("gradient_allreduce_op": "SUM", "zero_optimization": {"stage": 3})"),
            "ds.json: key 'gradient_allreduce_op': found \"sum\" with stage 3, allowed: mean, or a stage from 0 to 2");
  EXPECT_EQ(problem(R"("gradient_allreduce_op": "sum", "zero_optimization": {"stage": 2})"), "none");
}

TEST(DeepSpeedConfig, ActivationCheckpointing) {
  const auto section = [](const std::string& keys) { return problem("\"activation_checkpointing\": {" + keys + "}"); };
  EXPECT_GOLDEN(section(text));
  const char* const unsized =
      R"("activation_checkpointing": {"contiguous_memory_optimization": true, "partition_activations": true})";
  EXPECT_THAT(problem(unsized, {.reader = lightning}),
              HasSubstr("without number_checkpoints, which says how large the buffer is"));
  EXPECT_THAT(note(unsized), HasSubstr("without number_checkpoints the program must give num_checkpoints"));
}

TEST(DeepSpeedConfig, Readers) {
  EXPECT_GOLDEN(problem(text, {.reader = lightning}));
  EXPECT_EQ(problem(R"("autotuning": {"enabled": true})"), "none");
  EXPECT_EQ(problem(R"("gradient_clipping": "auto")", {.reader = deepspeed}),
            "ds.json: key 'gradient_clipping': found \"auto\", which nobody fills in with reader deepspeed, allowed: a "
            "value");
  EXPECT_EQ(problem(R"("gradient_clipping": "auto")", {.reader = transformers}), "none");
  EXPECT_EQ(note(R"("zero_optimization": {"overlap_comm": "auto"})", {.reader = deepspeed}),
            "ds.json: key 'zero_optimization.overlap_comm': \"auto\" is DeepSpeed's default");
  EXPECT_EQ(note(R"("gradient_clipping": "auto")"),
            "ds.json: key 'gradient_clipping': \"auto\" is filled in by transformers and Accelerate alone");
}

TEST(DeepSpeedConfig, NoJsonEndsTheProgram) {
  for (const char* text :
       {"null", "[]", "3", "\"x\"", R"({"zero_optimization": [1]})", R"({"optimizer": 3, "scheduler": []})",
        R"({"optimizer": {"type": 3, "params": 4}})", R"({"scheduler": {"type": "WarmupLR", "params": []}})",
        R"({"train_batch_size": 1e300, "train_micro_batch_size_per_gpu": -1})",
        R"({"zero_optimization": {"stage": 1e300, "offload_param": 3}})",
        R"({"fp16": {"enabled": {"a": "auto"}}, "data_types": "auto", "elasticity": "auto"})"})
    for (const auto reader : {deepspeed, lightning, transformers}) {
      const auto found = check(text, {.processes = 3, .reader = reader});
      for (const auto& line : found.problems) EXPECT_EQ(line.find('\n'), std::string::npos);
      (void)deepspeed_batch(io::parse_json(text, "ds.json"), {.processes = 3});
    }
}

// HPUDeepSpeedStrategy's arguments as DeepSpeed's JSON: texts written down from the strategy's documented defaults.

io::Json json_of(const std::string& arguments) {
  return deepspeed_json(parse_deepspeed_strategy(io::parse_json(arguments, "a.json"), "a.json"));
}

/// The text in a file beside this one.
std::string written(const std::string& file) {
  return io::read_file(FP8_SOURCE_DIR "/tests/configs/training/" + file, 1 << 20);
}

TEST(DeepSpeedStrategy, TextOfTheDefaultsAndOfInfinity) {
  EXPECT_EQ(deepspeed_json({}).dump(2) + "\n", written("strategy_default.json"));
  EXPECT_EQ(json_of("{}").dump(2) + "\n", written("strategy_default.json"));
  EXPECT_EQ(deepspeed_json(deepspeed_strategy("hpu_deepspeed_stage_3_offload_nvme")).dump(2) + "\n",
            written("strategy_infinity.json"));
}

TEST(DeepSpeedStrategy, RegisteredNames) {
  struct Case {
    const char* name;
    int stage;
    const char *optimizer, *parameters;  // devices; null: none
  };
  const Case cases[] = {{"hpu_deepspeed", 2, nullptr, nullptr},
                        {"hpu_deepspeed_stage_1", 1, nullptr, nullptr},
                        {"hpu_deepspeed_stage_2", 2, nullptr, nullptr},
                        {"hpu_deepspeed_stage_2_offload", 2, "cpu", nullptr},
                        {"hpu_deepspeed_stage_3", 3, nullptr, nullptr},
                        {"hpu_deepspeed_stage_3_offload", 3, "cpu", "cpu"},
                        {"hpu_deepspeed_stage_3_offload_nvme", 3, "nvme", "nvme"}};
  ASSERT_EQ(std::size(cases), deepspeed_strategy_names().size());
  for (const auto& c : cases) {
    const io::Json zero = deepspeed_json(deepspeed_strategy(c.name)).at("zero_optimization");
    EXPECT_EQ(zero.at("stage"), c.stage) << c.name;
    for (const auto& [section, device] :
         {std::pair("offload_optimizer", c.optimizer), std::pair("offload_param", c.parameters)}) {
      ASSERT_EQ(zero.contains(section), device != nullptr) << c.name;
      if (device != nullptr) {
        EXPECT_EQ(zero[section]["device"], device) << c.name;
      }
    }
  }
  std::set<std::string> refused(std::begin(trainer::kPythonStrategies), std::end(trainer::kPythonStrategies));
  EXPECT_EQ(refused.erase("hpu_fsdp"), 1u);
  EXPECT_EQ(refused, std::set<std::string>(deepspeed_strategy_names().begin(), deepspeed_strategy_names().end()));
  EXPECT_ERROR(io::Error, deepspeed_strategy("hpu_deepspeed_stage_4"),
               "strategy: found 'hpu_deepspeed_stage_4', allowed: hpu_deepspeed, ");
  EXPECT_ERROR(io::Error, deepspeed_strategy("deepspeed_stage_3"), "did you mean 'hpu_deepspeed_stage_3'?");
}

// The argument, a value other than its default, and what that changes in the JSON.
TEST(DeepSpeedStrategy, EveryArgument) {
  const auto in_json = [](const std::string& text) {  // "ARGUMENT VALUE PLACE"
    std::istringstream words(text);
    std::string name, value, place;
    words >> name >> value >> place;
    const std::string offload = R"({"offload_optimizer": true, "offload_parameters": true)";
    const io::Json changed = json_of(offload + ", \"" + name + "\": " + value + "}"), before = json_of(offload + "}");
    const io::Json::json_pointer at(place);
    EXPECT_FALSE(before.contains(at) && before.at(at) == changed.at(at)) << name;
    return changed.at(at).dump();
  };
  EXPECT_GOLDEN(in_json(text));
  EXPECT_FALSE(json_of(R"({"zero_optimization": false, "stage": 3})").contains("zero_optimization"));
  EXPECT_FALSE(json_of(R"({"zero_optimization": false})").contains("zero_allow_untested_optimizer"));
  EXPECT_FALSE(json_of(R"({"logging_batch_size_per_gpu": "auto"})").contains("train_micro_batch_size_per_gpu"));
}

TEST(DeepSpeedStrategy, ArgumentsForItsOwnUseAreTakenAndOthersNamed) {
  const auto same = json_of(R"({"remote_device": "nvme", "load_full_weights": true, "logging_level": 30,
                              "process_group_backend": "hccl", "parallel_devices": ["hpu"]})");
  EXPECT_EQ(same.dump(2) + "\n", written("strategy_default.json"));
  EXPECT_GOLDEN(error_of<io::Error>([&] { json_of(text); }));
}

io::Json filled_in(const std::string& trainer, const std::string& strategy = "{}") {
  const auto s = parse_deepspeed_strategy(io::parse_json(strategy, "a.json"), "a.json");
  io::Json config = deepspeed_json(s);
  fill_in_deepspeed(config, s, parse_deepspeed_trainer(io::parse_json(trainer, "t.json"), "t.json"), "a.json");
  return config;
}

TEST(DeepSpeedStrategy, WhatTheTrainerAdds) {
  const io::Json plain = filled_in("{}");
  expect_values(
      plain, {{"gradient_accumulation_steps", 1}, {"train_micro_batch_size_per_gpu", 1}, {"gradient_clipping", 0.0}});
  const io::Json more = filled_in(R"({"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "batch_size": 4})");
  expect_values(
      more, {{"gradient_accumulation_steps", 2}, {"train_micro_batch_size_per_gpu", 4}, {"gradient_clipping", 0.5}});
  EXPECT_EQ(filled_in(R"({"batch_size": 4})", R"({"logging_batch_size_per_gpu": 9})")["train_micro_batch_size_per_gpu"],
            9);
  EXPECT_EQ(filled_in(R"({"gradient_clip_val": null})")["gradient_clipping"], 0.0);
}

TEST(DeepSpeedStrategy, APrecisionAddsABlock) {
  for (const char* precision : {"16-mixed", "16-true"})
    EXPECT_EQ(filled_in(std::string(R"({"precision": ")") + precision + "\"}")["fp16"].dump(),
              R"({"enabled":true,"loss_scale":0,"initial_scale_power":16,"loss_scale_window":1000,"hysteresis":2,)"
              R"("min_loss_scale":1})");
  EXPECT_EQ(filled_in(R"({"precision": "16-mixed"})",
                      R"({"loss_scale": 0.5, "initial_scale_power": 8})")["fp16"]["loss_scale"],
            0.5);
  for (const char* precision : {"bf16-mixed", "bf16-true"})
    EXPECT_EQ(filled_in(std::string(R"({"precision": ")") + precision + "\"}")["bf16"].dump(), R"({"enabled":true})");
  for (const char* precision : {"32-true", "fp8"}) {
    const io::Json config = filled_in(std::string(R"({"precision": ")") + precision + "\"}");
    EXPECT_FALSE(config.contains("fp16") || config.contains("bf16")) << precision;
  }
  EXPECT_ERROR(io::Error, filled_in(R"({"precision": "fp16"})"), "t.json: key 'precision': found \"fp16\"");
}

TEST(DeepSpeedStrategy, AConfigOfOnesOwnIsFilledInButForAccumulation) {
  io::Json config = io::parse_json(R"({"train_micro_batch_size_per_gpu": 3, "bf16": {"enabled": false}})", "ds.json");
  fill_in_deepspeed(config, {}, {.precision = "bf16-mixed", .batch_size = 8}, "ds.json");
  EXPECT_EQ(config.dump(),
            R"({"train_micro_batch_size_per_gpu":3,"bf16":{"enabled":false},"gradient_accumulation_steps":1,)"
            R"("gradient_clipping":0.0})");
  EXPECT_EQ(error_of<io::Error>([&] { fill_in_deepspeed(config, {}, {}, "ds.json"); }),
            "ds.json: key 'gradient_accumulation_steps': found with reader lightning, allowed: the Trainer's "
            "accumulate_grad_batches");
  config = io::parse_json(R"({"autotuning": {"enabled": true}})", "ds.json");
  EXPECT_ERROR(io::Error, fill_in_deepspeed(config, {}, {}, "ds.json"), "key 'autotuning.enabled'");
}

// A JSON that we make passes the rules of those that we read.
TEST(DeepSpeedStrategy, WhatIsMadeIsRight) {
  for (const auto& name : deepspeed_strategy_names()) {
    io::Json config = deepspeed_json(deepspeed_strategy(name));
    EXPECT_THAT(check_deepspeed(config, name, {.reader = DeepSpeedReader::lightning}).problems, IsEmpty());
    fill_in_deepspeed(config, {}, {.precision = "bf16-mixed", .accumulate_grad_batches = 2}, name);
    EXPECT_THAT(check_deepspeed(config, name, {.processes = 8, .reader = DeepSpeedReader::deepspeed}).problems,
                IsEmpty());
  }
}

}  // namespace
}  // namespace fp8::configs
