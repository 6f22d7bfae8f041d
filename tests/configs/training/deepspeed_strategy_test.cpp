// SPDX-License-Identifier: Apache-2.0
// HPUDeepSpeedStrategy's arguments as DeepSpeed's JSON: texts written down from the strategy's documented defaults.
#include "fp8/configs/training/deepspeed_strategy.h"

#include <set>

#include "fp8/configs/training/deepspeed_config.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/trainer/registry.h"
#include "support/golden.h"
#include "support/throws_with.h"

namespace fp8::configs {
namespace {

io::Json json_of(const std::string& arguments) {
  return deepspeed_json(parse_deepspeed_strategy(io::parse_json(arguments, "a.json"), "a.json"));
}

constexpr const char* kDefault = R"({
  "zero_allow_untested_optimizer": true,
  "zero_optimization": {
    "stage": 2,
    "contiguous_gradients": true,
    "overlap_comm": true,
    "allgather_partitions": true,
    "reduce_scatter": true,
    "allgather_bucket_size": 200000000,
    "reduce_bucket_size": 200000000,
    "sub_group_size": 1000000000000
  },
  "activation_checkpointing": {
    "partition_activations": false,
    "cpu_checkpointing": false,
    "contiguous_memory_optimization": false,
    "synchronize_checkpoint_boundary": false
  },
  "aio": {
    "block_size": 1048576,
    "queue_depth": 8,
    "single_submit": false,
    "overlap_events": true,
    "thread_count": 1
  }
})";

constexpr const char* kInfinity = R"({
  "zero_allow_untested_optimizer": true,
  "zero_optimization": {
    "stage": 3,
    "contiguous_gradients": true,
    "overlap_comm": true,
    "allgather_partitions": true,
    "reduce_scatter": true,
    "allgather_bucket_size": 200000000,
    "reduce_bucket_size": 200000000,
    "sub_group_size": 1000000000000,
    "offload_optimizer": {
      "device": "nvme",
      "nvme_path": "/local_nvme",
      "buffer_count": 4,
      "pin_memory": false
    },
    "offload_param": {
      "device": "nvme",
      "nvme_path": "/local_nvme",
      "buffer_count": 5,
      "buffer_size": 100000000,
      "max_in_cpu": 1000000000,
      "pin_memory": false
    }
  },
  "activation_checkpointing": {
    "partition_activations": false,
    "cpu_checkpointing": false,
    "contiguous_memory_optimization": false,
    "synchronize_checkpoint_boundary": false
  },
  "aio": {
    "block_size": 1048576,
    "queue_depth": 8,
    "single_submit": false,
    "overlap_events": true,
    "thread_count": 1
  }
})";

TEST(DeepSpeedStrategy, TextOfTheDefaultsAndOfInfinity) {
  EXPECT_EQ(deepspeed_json({}).dump(2), kDefault);
  EXPECT_EQ(json_of("{}").dump(2), kDefault);
  EXPECT_EQ(deepspeed_json(deepspeed_strategy("hpu_deepspeed_stage_3_offload_nvme")).dump(2), kInfinity);
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
  EXPECT_THAT(error_of<io::Error>([] { deepspeed_strategy("hpu_deepspeed_stage_4"); }),
              HasSubstr("strategy: found 'hpu_deepspeed_stage_4', allowed: hpu_deepspeed, "));
  EXPECT_THAT(error_of<io::Error>([] { deepspeed_strategy("deepspeed_stage_3"); }),
              HasSubstr("did you mean 'hpu_deepspeed_stage_3'?"));
}

// The argument, a value other than its default, and what that changes in the JSON.
TEST(DeepSpeedStrategy, EveryArgument) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"stage", "3", "/zero_optimization/stage"},
      {"nvme_path", "\"/x\"", "/zero_optimization/offload_param/nvme_path"},
      {"nvme_path", "\"/y\"", "/zero_optimization/offload_optimizer/nvme_path"},
      {"offload_params_device", "\"nvme\"", "/zero_optimization/offload_param/device"},
      {"params_buffer_count", "6", "/zero_optimization/offload_param/buffer_count"},
      {"params_buffer_size", "7", "/zero_optimization/offload_param/buffer_size"},
      {"max_in_cpu", "8", "/zero_optimization/offload_param/max_in_cpu"},
      {"offload_optimizer_device", "\"nvme\"", "/zero_optimization/offload_optimizer/device"},
      {"optimizer_buffer_count", "9", "/zero_optimization/offload_optimizer/buffer_count"},
      {"pin_memory", "true", "/zero_optimization/offload_optimizer/pin_memory"},
      {"pin_memory", "true", "/zero_optimization/offload_param/pin_memory"},
      {"block_size", "10", "/aio/block_size"},
      {"queue_depth", "11", "/aio/queue_depth"},
      {"single_submit", "true", "/aio/single_submit"},
      {"overlap_events", "false", "/aio/overlap_events"},
      {"thread_count", "12", "/aio/thread_count"},
      {"sub_group_size", "13", "/zero_optimization/sub_group_size"},
      {"contiguous_gradients", "false", "/zero_optimization/contiguous_gradients"},
      {"overlap_comm", "false", "/zero_optimization/overlap_comm"},
      {"allgather_partitions", "false", "/zero_optimization/allgather_partitions"},
      {"reduce_scatter", "false", "/zero_optimization/reduce_scatter"},
      {"allgather_bucket_size", "14", "/zero_optimization/allgather_bucket_size"},
      {"reduce_bucket_size", "15", "/zero_optimization/reduce_bucket_size"},
      {"zero_allow_untested_optimizer", "false", "/zero_allow_untested_optimizer"},
      {"logging_batch_size_per_gpu", "16", "/train_micro_batch_size_per_gpu"},
      {"partition_activations", "true", "/activation_checkpointing/partition_activations"},
      {"cpu_checkpointing", "true", "/activation_checkpointing/cpu_checkpointing"},
      {"contiguous_memory_optimization", "true", "/activation_checkpointing/contiguous_memory_optimization"},
      {"synchronize_checkpoint_boundary", "true", "/activation_checkpointing/synchronize_checkpoint_boundary"},
  };
  const std::string offload = R"({"offload_optimizer": true, "offload_parameters": true)";
  for (const auto& [name, value, path] : cases) {
    const io::Json changed = json_of(offload + ", \"" + name + "\": " + value + "}"), before = json_of(offload + "}");
    const io::Json::json_pointer at(path);
    EXPECT_EQ(changed.at(at), io::parse_json(value, "v")) << name;
    EXPECT_FALSE(before.contains(at) && before.at(at) == changed.at(at)) << name;
  }
  EXPECT_FALSE(json_of(R"({"zero_optimization": false, "stage": 3})").contains("zero_optimization"));
  EXPECT_FALSE(json_of(R"({"zero_optimization": false})").contains("zero_allow_untested_optimizer"));
  EXPECT_FALSE(json_of(R"({"logging_batch_size_per_gpu": "auto"})").contains("train_micro_batch_size_per_gpu"));
}

TEST(DeepSpeedStrategy, ArgumentsForItsOwnUseAreTakenAndOthersNamed) {
  EXPECT_EQ(json_of(R"({"remote_device": "nvme", "load_full_weights": true, "logging_level": 30,
                        "process_group_backend": "hccl", "parallel_devices": ["hpu"]})")
                .dump(2),
            kDefault);
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
  EXPECT_EQ(plain["gradient_accumulation_steps"], 1);
  EXPECT_EQ(plain["train_micro_batch_size_per_gpu"], 1);
  EXPECT_EQ(plain["gradient_clipping"], 0.0);
  const io::Json more = filled_in(R"({"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "batch_size": 4})");
  EXPECT_EQ(more["gradient_accumulation_steps"], 2);
  EXPECT_EQ(more["train_micro_batch_size_per_gpu"], 4);
  EXPECT_EQ(more["gradient_clipping"], 0.5);
  EXPECT_EQ(filled_in(R"({"batch_size": 4})", R"({"logging_batch_size_per_gpu": 9})")["train_micro_batch_size_per_gpu"],
            9);
  EXPECT_EQ(filled_in(R"({"gradient_clip_val": null})")["gradient_clipping"], 0.0);
}

TEST(DeepSpeedStrategy, APrecisionAddsABlock) {
  for (const char* precision : {"16-mixed", "16-true"}) {
    EXPECT_EQ(filled_in(std::string(R"({"precision": ")") + precision + "\"}")["fp16"].dump(),
              R"({"enabled":true,"loss_scale":0,"initial_scale_power":16,"loss_scale_window":1000,"hysteresis":2,)"
              R"("min_loss_scale":1})");
  }
  EXPECT_EQ(filled_in(R"({"precision": "16-mixed"})",
                      R"({"loss_scale": 0.5, "initial_scale_power": 8})")["fp16"]["loss_scale"],
            0.5);
  for (const char* precision : {"bf16-mixed", "bf16-true"})
    EXPECT_EQ(filled_in(std::string(R"({"precision": ")") + precision + "\"}")["bf16"].dump(), R"({"enabled":true})");
  for (const char* precision : {"32-true", "fp8"}) {
    const io::Json config = filled_in(std::string(R"({"precision": ")") + precision + "\"}");
    EXPECT_FALSE(config.contains("fp16") || config.contains("bf16")) << precision;
  }
  EXPECT_THAT(error_of<io::Error>([] { filled_in(R"({"precision": "fp16"})"); }),
              HasSubstr("t.json: key 'precision': found \"fp16\""));
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
  EXPECT_THAT(error_of<io::Error>([&] { fill_in_deepspeed(config, {}, {}, "ds.json"); }),
              HasSubstr("key 'autotuning.enabled'"));
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
