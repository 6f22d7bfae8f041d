// SPDX-License-Identifier: Apache-2.0
// gaudi_config.json and training arguments: what each key comes to, and every refusal with its text.
#include "fp8/configs/training/gaudi_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "fp8/runtime/io/base/environment.h"

namespace fp8::configs {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

io::Json parse(const std::string& text) { return io::parse_json(text, "g.json"); }

std::string gaudi_problem(const std::string& text) {
  const auto found = check_gaudi_config(parse(text), "g.json").problems;
  return found.empty() ? "none" : found.size() == 1 ? found[0] : "several";
}

std::string argument_problem(const std::string& text) {
  const auto found = check_training_arguments(parse(text), "a.json").problems;
  return found.empty() ? "none" : found.size() == 1 ? found[0] : found[0] + "; and: " + found[1];
}

std::vector<std::string> command(const std::string& text) {
  EXPECT_EQ(argument_problem(text), "none") << text;
  return training_arguments_command(parse(text)).arguments;
}

std::string line(const std::string& text) {
  std::string joined;
  for (const auto& word : command(text)) joined += (joined.empty() ? "" : " ") + word;
  return joined;
}

TEST(GaudiConfig, EveryKeyOfThePublishedFiles) {
  EXPECT_EQ(gaudi_problem(R"({"use_fused_adam": true, "use_fused_clip_norm": true, "use_torch_autocast": true})"),
            "none");
  EXPECT_EQ(gaudi_problem(R"({"autocast_bf16_ops": ["add", "addmm"], "autocast_fp32_ops": ["embedding"],
      "optimum_version": "1.13.2", "transformers_version": "4.38.2", "use_dynamic_shapes": false,
      "use_fused_adam": true, "use_fused_clip_norm": true, "use_torch_autocast": true})"),
            "none");
  EXPECT_EQ(gaudi_problem(R"({"autocast_bf16_ops": null, "autocast_fp32_ops": null})"), "none");
  EXPECT_EQ(gaudi_problem(R"({"use_habana_mixed_precision": false, "hmp_is_verbose": false, "hmp_opt_level": "O1",
                              "hmp_bf16_ops": [], "hmp_fp32_ops": []})"),
            "none");
}

TEST(GaudiConfig, Problems) {
  EXPECT_EQ(gaudi_problem(R"({"use_fused_adamw": true})"),
            "g.json: unknown key 'use_fused_adamw', did you mean 'use_fused_adam'?");
  EXPECT_EQ(gaudi_problem(R"({"use_fused_adam": 1})"), "g.json: key 'use_fused_adam': found 1, allowed: true, false");
  EXPECT_EQ(gaudi_problem(R"({"use_habana_mixed_precision": true})"),
            "g.json: key 'use_habana_mixed_precision': found true, allowed: false; use_torch_autocast has replaced it");
  EXPECT_EQ(
      gaudi_problem(R"({"autocast_bf16_ops": ["add"]})"),
      "g.json: key 'autocast_bf16_ops': found without autocast_fp32_ops, and alone it has no effect, allowed: both "
      "or none");
  EXPECT_EQ(gaudi_problem(R"({"autocast_bf16_ops": "add", "autocast_fp32_ops": []})"),
            "g.json: key 'autocast_bf16_ops': found \"add\", allowed: an array of strings, null");
}

TEST(GaudiConfig, WhatItComesTo) {
  const auto command = gaudi_config_command(
      parse(R"({"use_torch_autocast": true, "autocast_bf16_ops": ["add", "mm"], "autocast_fp32_ops": ["pow"]})"));
  EXPECT_THAT(command.arguments, ElementsAre("--precision", "bf16-mixed"));
  EXPECT_THAT(command.variables,
              ElementsAre(testing::Pair("LOWER_LIST", "lower_list.txt"), testing::Pair("FP32_LIST", "fp32_list.txt")));
  EXPECT_EQ(op_list_text(parse(R"(["add", "mm"])")), "add\nmm\n");
  EXPECT_THAT(gaudi_config_command(parse("{}")).arguments, IsEmpty());
  EXPECT_THAT(gaudi_config_command(parse(R"({"autocast_bf16_ops": null})")).variables, IsEmpty());
}

// The documents' examples on accelerating training, as a JSON.
TEST(TrainingArguments, EveryKeyOfTheDocuments) {
  EXPECT_EQ(argument_problem(R"({"use_habana": true, "use_lazy_mode": true, "gaudi_config_name": "gaudi_config.json",
      "dataloader_num_workers": 1, "throughput_warmup_steps": 3, "bf16": true, "half_precision_backend": "hpu_amp",
      "use_hpu_graphs_for_training": true, "distribution_strategy": "fast_ddp", "pipelining_fwd_bwd": true,
      "non_blocking_data_copy": true, "logging_steps": 500, "max_steps": 10})"),
            "none");
}

TEST(TrainingArguments, TheCommandThatTheyComeTo) {
  EXPECT_EQ(line("{}"), "--precision 32-true");
  EXPECT_EQ(line(R"({"bf16": true, "fp8": true})"), "--precision fp8");
  EXPECT_EQ(
      line(R"({"output_dir": "run", "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2,
                     "max_steps": 100, "learning_rate": 5e-05, "weight_decay": 0.0, "max_grad_norm": 1.0,
                     "warmup_steps": 10, "lr_scheduler_type": "cosine_with_min_lr",
                     "lr_scheduler_kwargs": {"min_lr": 1e-6}, "seed": 42, "bf16": true, "gradient_checkpointing": true,
                     "save_total_limit": 3, "throughput_warmup_steps": 3, "logging_steps": 50})"),
      "--precision bf16-mixed --out run --batch 8 --grad-accum 2 --steps 100 --lr 5e-05 --weight-decay 0 --clip 1 "
      "--warmup 10 --min-lr 1e-06 --seed 42 --activation-checkpointing --keep-checkpoints 3 --throughput-warmup 3 "
      "--logging-steps 50");
  EXPECT_EQ(line(R"({"eval_strategy": "steps", "eval_steps": 20, "per_device_eval_batch_size": 4})"),
            "--precision 32-true --eval <text> --eval-every 20 --eval-batch 4");
  EXPECT_EQ(line(R"({"eval_strategy": "no", "eval_steps": 20})"), "--precision 32-true");
  EXPECT_EQ(line(R"({"save_strategy": "steps", "save_steps": 20})"), "--precision 32-true --save-every 20");
  EXPECT_EQ(line(R"({"profiling_steps": 2, "profiling_warmup_steps": 3})"),
            "--precision 32-true --profile <folder> --profile-schedule 0,3,2,1");
  EXPECT_EQ(line(R"({"distribution_strategy": "fast_ddp", "ddp_bucket_cap_mb": 230})"),
            "--precision 32-true --strategy fast_ddp");
  EXPECT_EQ(line(R"({"ddp_bucket_cap_mb": 25, "ddp_find_unused_parameters": true, "ddp_timeout": 60})"),
            "--precision 32-true --rank-timeout 60 --strategy hpu_ddp --bucket-cap-mb 25 --find-unused-parameters");
  EXPECT_EQ(
      line(R"({"gradient_checkpointing": true, "activation_checkpointing": true, "use_cpu": true, "no_cuda": true})"),
      "--precision 32-true --device cpu --activation-checkpointing");
  EXPECT_EQ(line(R"({"use_habana": false})"), "--precision 32-true --device cpu");
  EXPECT_EQ(line(R"({"use_cpu": true, "half_precision_backend": "cpu_amp", "optim": "muon"})"),
            "--precision 32-true --device cpu --optimizer muon");
  EXPECT_EQ(line(R"({"resume_from_checkpoint": true, "overwrite_output_dir": false})"), "--precision 32-true --resume");
  EXPECT_THAT(training_arguments_command(parse(R"({"minimize_memory": true})")).variables,
              ElementsAre(testing::Pair("PT_HPU_FP8_MINIMIZE_MEMORY", "1")));
}

TEST(TrainingArguments, WhatTheVendorRefuses) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"use_lazy_mode": true})", "a.json: key 'use_lazy_mode': found without use_habana, allowed: use_habana true"},
      {R"({"gaudi_config_name": "g"})",
       "a.json: key 'gaudi_config_name': found without use_habana, allowed: use_habana true"},
      {R"({"use_habana": true, "use_lazy_mode": false, "use_hpu_graphs_for_training": true})",
       "a.json: key 'use_hpu_graphs_for_training': found true with use_lazy_mode false, allowed: use_lazy_mode true, "
       "or "
       "torch_compile_backend"},
      {R"({"use_habana": true, "disable_tensor_cache_hpu_graphs": true})",
       "a.json: key 'disable_tensor_cache_hpu_graphs': found true without graphs, allowed: with "
       "use_hpu_graphs_for_training or use_hpu_graphs_for_inference"},
      {R"({"use_habana": true, "max_hpu_graphs": 3})",
       "a.json: key 'max_hpu_graphs': found without graphs, allowed: with use_hpu_graphs_for_training or "
       "use_hpu_graphs_for_inference"},
      {R"({"throughput_warmup_steps": -1})",
       "a.json: key 'throughput_warmup_steps': found -1, allowed: an integer >= 0"},
      {R"({"distribution_strategy": "fsdp"})",
       "a.json: key 'distribution_strategy': found \"fsdp\", allowed: ddp, fast_ddp"},
      {R"({"fp16": true})",
       "a.json: key 'fp16': found true, allowed: false; Optimum Habana refuses it too; fp8 train has --precision "
       "16-mixed"},
      {R"({"tf32": true})",
       "a.json: key 'tf32': found true, allowed: false, null; Optimum Habana refuses it too: a "
       "format of another vendor's devices"},
      {R"({"tpu_num_cores": 8})", "a.json: key 'tpu_num_cores': found 8, allowed: null; Optimum Habana refuses it too"},
      {R"({"mp_parameters": "x"})",
       "a.json: key 'mp_parameters': found \"x\", allowed: \"\"; Optimum Habana refuses it too"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(argument_problem(text), expected);
}

TEST(TrainingArguments, WhatTrainCannotDo) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"num_train_epochs": 3})",
       "a.json: key 'num_train_epochs': found without max_steps, allowed: max_steps; fp8 "
       "train counts optimizer steps"},
      {R"({"adam_beta2": 0.999})",
       "a.json: key 'adam_beta2': found 0.999, allowed: 0.95; AdamW of fp8 train has betas "
       "0.9 and 0.95 and epsilon 1e-8"},
      {R"({"lr_scheduler_type": "linear"})",
       "a.json: key 'lr_scheduler_type': found \"linear\", allowed: cosine, cosine_with_min_lr"},
      {R"({"optim": "adafactor"})",
       "a.json: key 'optim': found \"adafactor\", allowed: adamw_torch, adamw_torch_fused, muon"},
      {R"({"deepspeed": "ds.json"})",
       "a.json: key 'deepspeed': found \"ds.json\", allowed: null; DeepSpeed runs from Python, on the hpu device; fp8 "
       "config check judges its JSON"},
      {R"({"fsdp": "full_shard"})",
       "a.json: key 'fsdp': found \"full_shard\", allowed: \"\", false, null, []; FSDP runs "
       "from Python, with torch's own engine on the hpu device"},
      {R"({"half_precision_backend": "cpu_amp"})",
       "a.json: key 'half_precision_backend': found \"cpu_amp\" with the model on hpu, allowed: hpu_amp, or use_cpu "
       "true"},
      {R"({"ddp_static_graph": true, "ddp_find_unused_parameters": true})",
       "a.json: key 'ddp_static_graph': found true beside ddp_find_unused_parameters true, allowed: one of the two"},
      {R"({"use_habana": true, "use_cpu": true})",
       "a.json: key 'use_cpu': found true beside use_habana true, allowed: one of the two"},
      {R"({"per_device_train_batchsize": 1})",
       "a.json: unknown key 'per_device_train_batchsize', did you mean "
       "'per_device_train_batch_size'?"},
      {"[]",
       "a.json: found [], allowed: an object with the keys output_dir, overwrite_output_dir, "
       "resume_from_checkpoint, per_device_train_batch_size, per_gpu_train_batch_size, "
       "per_device_eval_batch_size, per_gpu_eval_batch_size, auto_find_batch_size, ..."},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(argument_problem(text), expected);
}

// Values that are harmless are no problem: files that a program writes hold every key.
TEST(TrainingArguments, DefaultsOfRefusedKeysAreTaken) {
  EXPECT_EQ(argument_problem(R"({"fp16": false, "fp16_backend": "auto", "fp16_opt_level": "O1", "fp16_full_eval": false,
      "tf32": null, "tpu_num_cores": null, "tpu_metrics_debug": false, "mp_parameters": "", "deepspeed": null,
      "fsdp": [],
      "fsdp_config": {"min_num_params": 0, "xla": false}, "push_to_hub": false, "debug": [], "adafactor": false,
      "load_best_model_at_end": false, "neftune_noise_alpha": null, "label_smoothing_factor": 0.0, "warmup_ratio": 0.0,
      "eval_delay": 0, "adam_beta1": 0.9, "adam_epsilon": 1e-08, "save_safetensors": true, "max_steps": 5,
      "num_train_epochs": 3.0})"),
            "none");
}

TEST(TrainingArguments, DefaultsThatDifferAreANote) {
  const auto notes = check_training_arguments(parse(R"({"learning_rate": 1e-4, "max_steps": 9})"), "a.json").notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("keys that are absent have fp8 train's defaults: weight_decay 0.1 (0), "));
  EXPECT_THAT(notes[0], Not(HasSubstr("learning_rate")));
}

TEST(TrainingArguments, VariablesAreThoseOfTheTable) {
  std::set<std::string> known;
  for (const auto& row : io::variables()) known.insert(row.name);
  for (const char* name : {"LOWER_LIST", "FP32_LIST", "PT_HPU_FP8_MINIMIZE_MEMORY"}) EXPECT_THAT(known, Contains(name));
}

}  // namespace
}  // namespace fp8::configs
