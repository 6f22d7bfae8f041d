// SPDX-License-Identifier: Apache-2.0
// gaudi_config.json and training arguments: what each key comes to, and every refusal with its text.
#include "fp8/configs/training/gaudi_config.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/runtime/io/base/environment.h"
#include "support/matchers.h"

namespace fp8::configs {
namespace {

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
  return training_arguments_command(parse(text)).arguments();
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
  EXPECT_EQ(gaudi_problem(R"({"autocast_bf16_ops": ["add"]})"),
            "g.json: key 'autocast_bf16_ops': found without autocast_fp32_ops, and alone it has no effect, allowed: "
            "both or none");
  EXPECT_EQ(gaudi_problem(R"({"autocast_bf16_ops": "add", "autocast_fp32_ops": []})"),
            "g.json: key 'autocast_bf16_ops': found \"add\", allowed: an array of strings, null");
}

TEST(GaudiConfig, WhatItComesTo) {
  const auto json = parse(R"({"use_torch_autocast": true, "autocast_bf16_ops": ["add", "mm"],
                              "autocast_fp32_ops": ["pow"], "use_fused_adam": true, "use_fused_clip_norm": true})");
  const auto command = gaudi_config_command(json);
  EXPECT_THAT(command.arguments(), ElementsAre("--precision", "bf16-mixed", "--eps-mode", "habana", "--eps", "1e-06"));
  EXPECT_EQ(command.settings[1].key, "use_fused_adam");
  EXPECT_THAT(command.variables,
              ElementsAre(testing::Pair("LOWER_LIST", "lower_list.txt"), testing::Pair("FP32_LIST", "fp32_list.txt")));
  const auto ops = autocast_ops(json);
  ASSERT_TRUE(ops);
  EXPECT_THAT(ops->bf16, ElementsAre("add", "mm"));
  EXPECT_THAT(ops->fp32, ElementsAre("pow"));
  EXPECT_EQ(op_list_text(ops->bf16), "add\nmm\n");
  EXPECT_THAT(gaudi_config_command(parse("{}")).arguments(), IsEmpty());
  EXPECT_THAT(gaudi_config_command(parse(R"({"use_fused_adam": false})")).arguments(),
              ElementsAre("--eps-mode", "torch"));
  EXPECT_THAT(gaudi_config_command(parse(R"({"autocast_bf16_ops": null})")).variables, IsEmpty());
  EXPECT_FALSE(autocast_ops(parse(R"({"autocast_bf16_ops": null, "autocast_fp32_ops": []})")));
}

// The documents' examples on accelerating training, as a JSON.
TEST(TrainingArguments, EveryKeyOfTheDocuments) {
  EXPECT_EQ(argument_problem(R"({"use_habana": true, "use_lazy_mode": true, "gaudi_config_name": "gaudi_config.json",
      "dataloader_num_workers": 1, "throughput_warmup_steps": 3, "bf16": true, "half_precision_backend": "hpu_amp",
      "use_hpu_graphs_for_training": true, "distribution_strategy": "fast_ddp", "pipelining_fwd_bwd": true,
      "non_blocking_data_copy": true, "logging_steps": 500, "max_steps": 10})"),
            "none");
}

/// The options of GaudiTrainingArguments without arguments.
const std::string kDefaults =
    "--precision 32-true --batch 8 --grad-accum 1 --lr 5e-05 --weight-decay 0 --clip 1 --beta1 0.9 --beta2 0.999 --eps "
    "1e-06 --seed 42 --throughput-warmup 0 --logging-steps 500 --epochs 3 --schedule linear --warmup-from 0 "
    "--save-every 500 --keep-checkpoints 1000000000000 --whole-time";

/// The words that a file adds to those of the defaults, and those that it takes away as "-word".
std::string beside_defaults(const std::string& text) {
  std::multiset<std::string> words;
  const auto pairs = [&](const std::vector<std::string>& list, bool add) {
    std::string word;
    const auto end = [&] {
      if (const auto found = words.find(word); !add && found != words.end())
        words.erase(found);
      else if (!word.empty())
        words.insert(add ? word : "-" + word);
    };
    for (const auto& part : list) {
      if (part.starts_with("--")) {
        end();
        word = part.substr(2);
      } else {
        word += " " + part;
      }
    }
    end();
  };
  pairs(command(text), true);
  pairs(command("{}"), false);
  std::string joined;
  for (const auto& word : words) joined += (joined.empty() ? "" : ", ") + word;
  return joined;
}

TEST(TrainingArguments, TheCommandThatTheyComeTo) {
  EXPECT_EQ(line("{}"), kDefaults);
  const std::pair<const char*, const char*> cases[] = {
      {R"({"bf16": true})", "-precision 32-true, precision bf16-mixed"},
      {R"({"bf16": true, "fp8": true, "minimize_memory": true})",
       R"(-precision 32-true, minimize-memory, precision fp8, recipe {"recipe": "delayed", "preset": "habana-hybrid", )"
       R"("interval": 16, "reduce_amax": false})"},
      {R"({"output_dir": "run", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 100,
           "learning_rate": 1e-4, "weight_decay": 0.1, "max_grad_norm": 0.3, "warmup_steps": 10,
           "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}, "seed": 1})",
       "-batch 8, -clip 1, -epochs 3, -grad-accum 1, -lr 5e-05, -schedule linear, -seed 42, -weight-decay 0, batch 4, "
       "clip 0.3, grad-accum 2, lr 0.0001, min-lr 1e-06, out run, schedule cosine, seed 1, steps 100, warmup 10, "
       "weight-decay 0.1"},
      {R"({"max_steps": -1, "num_train_epochs": 0.5, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-8})",
       "-beta1 0.9, -beta2 0.999, -epochs 3, -eps 1e-06, beta1 0.8, beta2 0.95, epochs 0.5, eps 1e-08"},
      {R"({"warmup_ratio": 0.03})", "warmup-ratio 0.03"},
      {R"({"warmup_ratio": 0.03, "warmup_steps": 5})", "warmup 5"},
      {R"({"warmup_steps": 0.25})", "warmup-ratio 0.25"},
      {R"({"lr_scheduler_type": "constant", "warmup_steps": 5})",
       "-schedule linear, -warmup-from 0, schedule constant"},
      {R"({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5})",
       "-schedule linear, schedule constant, warmup 5"},
      {R"({"eval_strategy": "steps", "eval_steps": 20, "per_device_eval_batch_size": 4})",
       "eval <text>, eval-batch 4, eval-every 20"},
      {R"({"evaluation_strategy": "steps", "logging_steps": 7})",
       "-logging-steps 500, eval <text>, eval-batch 8, eval-every 7, logging-steps 7"},
      {R"({"eval_strategy": "epoch"})", "eval <text>, eval-batch 8, eval-each-epoch"},
      {R"({"eval_strategy": "no", "eval_steps": 20})", ""},
      {R"({"save_steps": 20, "save_total_limit": 3})",
       "-keep-checkpoints 1000000000000, -save-every 500, keep-checkpoints 3, save-every 20"},
      {R"({"save_strategy": "no"})", "-save-every 500"},
      {R"({"save_strategy": "epoch"})", "-save-every 500, save-each-epoch"},
      {R"({"save_strategy": "best", "save_total_limit": 2, "eval_strategy": "epoch", "metric_for_best_model": "loss"})",
       "-keep-checkpoints 1000000000000, -save-every 500, eval <text>, eval-batch 8, eval-each-epoch, save-best 2"},
      {R"({"load_best_model_at_end": true, "eval_strategy": "epoch", "save_strategy": "epoch"})",
       "-save-every 500, eval <text>, eval-batch 8, eval-each-epoch, load-best, save-best 1, save-each-epoch"},
      {R"({"use_cpu": true, "bf16": true, "half_precision_backend": "cpu_amp"})",
       "-precision 32-true, device cpu, half-precision-backend cpu_amp, precision bf16-mixed"},
      {R"({"profiling_steps": 2, "profiling_warmup_steps": 3})", "profile hpu_profile, profile-schedule 0,3,2,1"},
      {R"({"distribution_strategy": "fast_ddp", "ddp_bucket_cap_mb": 230})", "strategy fast_ddp"},
      {R"({"ddp_bucket_cap_mb": 25, "ddp_find_unused_parameters": true, "ddp_timeout": 60})",
       "bucket-cap-mb 25, find-unused-parameters, rank-timeout 60, strategy hpu_ddp"},
      {R"({"gradient_checkpointing": true, "activation_checkpointing": true, "use_cpu": true, "no_cuda": true})",
       "activation-checkpointing, device cpu"},
      {R"({"use_habana": false})", "device cpu"},
      {R"({"use_cpu": true, "half_precision_backend": "cpu_amp", "optim": "muon"})", "device cpu, optimizer muon"},
      {R"({"resume_from_checkpoint": true, "overwrite_output_dir": false})", "resume"},
      {R"({"report_to": ["wandb", "tensorboard"]})", "logger tensorboard"},
      {R"({"dataloader_drop_last": true, "adjust_throughput": true, "throughput_warmup_steps": 3})",
       "-throughput-warmup 0, -whole-time, drop-last, throughput-warmup 3"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(beside_defaults(text), expected) << text;
}

TEST(TrainingArguments, EverySettingHasItsKey) {
  const auto settings = training_arguments_command(
                            parse(R"({"warmup_ratio": 0.1, "fp8": true, "lr_scheduler_type": "constant_with_warmup"})"))
                            .settings;
  const auto key_of = [&](const char* option) {
    for (const auto& setting : settings)
      if (setting.option == option) return setting.key;
    return std::string("none");
  };
  EXPECT_EQ(key_of("recipe"), "fp8");
  EXPECT_EQ(key_of("warmup_ratio"), "warmup_ratio");
  EXPECT_EQ(key_of("schedule"), "lr_scheduler_type");
  EXPECT_EQ(key_of("epochs"), "num_train_epochs");
  for (const auto& setting : settings) EXPECT_NE(find_row(training_argument_keys(), setting.key), nullptr);
}

TEST(TrainingArguments, WhatTheVendorRefuses) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"use_lazy_mode": true})", "a.json: key 'use_lazy_mode': found without use_habana, allowed: use_habana true"},
      {R"({"gaudi_config_name": "g"})",
       "a.json: key 'gaudi_config_name': found without use_habana, allowed: use_habana true"},
      {R"({"use_habana": true, "use_lazy_mode": false, "use_hpu_graphs_for_training": true})",
       "a.json: key 'use_hpu_graphs_for_training': found true with use_lazy_mode false, allowed: use_lazy_mode true, "
       "or torch_compile_backend"},
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
       "a.json: key 'tf32': found true, allowed: false, null; Optimum Habana refuses it too: a format of another "
       "vendor's devices"},
      {R"({"tpu_num_cores": 8})", "a.json: key 'tpu_num_cores': found 8, allowed: null; Optimum Habana refuses it too"},
      {R"({"mp_parameters": "x"})",
       "a.json: key 'mp_parameters': found \"x\", allowed: \"\"; Optimum Habana refuses it too"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(argument_problem(text), expected);
}

TEST(TrainingArguments, WhatTrainCannotDo) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"num_train_epochs": 0})",
       "a.json: key 'num_train_epochs': found 0, allowed: a number from 1e-06 to 1000000"},
      {R"({"adam_beta2": 1})", "a.json: key 'adam_beta2': found 1, allowed: a number from 0 to 0.9999999"},
      {R"({"lr_scheduler_type": "polynomial"})",
       "a.json: key 'lr_scheduler_type': found \"polynomial\", allowed: linear, cosine, cosine_with_min_lr, constant, "
       "constant_with_warmup"},
      {R"({"lr_scheduler_type": "cosine_with_min_lr"})",
       "a.json: key 'lr_scheduler_type': found \"cosine_with_min_lr\", allowed: with lr_scheduler_kwargs.min_lr"},
      {R"({"lr_scheduler_kwargs": {"min_lr": 1e-6}})",
       "a.json: key 'lr_scheduler_kwargs.min_lr': found with lr_scheduler_type \"linear\", allowed: lr_scheduler_type "
       "cosine_with_min_lr"},
      {R"({"warmup_steps": 1.5})",
       "a.json: key 'warmup_steps': found 1.5, allowed: an integer, or a share of all steps below 1"},
      {R"({"dataloader_prefetch_factor": 2})",
       "a.json: key 'dataloader_prefetch_factor': found without dataloader_num_workers, allowed: "
       "dataloader_num_workers above 0"},
      {R"({"save_strategy": "best"})",
       "a.json: key 'save_strategy': found \"best\" without eval_strategy, allowed: eval_strategy steps or epoch"},
      {R"({"save_strategy": "best", "eval_strategy": "epoch", "metric_for_best_model": "accuracy"})",
       "a.json: key 'metric_for_best_model': found 'accuracy', allowed: loss, eval_loss, null"},
      {R"({"save_strategy": "best", "eval_strategy": "epoch"})",
       "a.json: key 'save_strategy': found \"best\", allowed: with metric_for_best_model, or load_best_model_at_end"},
      {R"({"max_steps": 0})",
       "a.json: key 'max_steps': found 0, allowed: 1 or more, or -1, where num_train_epochs counts"},
      {R"({"save_strategy": "best", "eval_strategy": "epoch", "metric_for_best_model": "loss",
          "greater_is_better": true})",
       "a.json: key 'greater_is_better': found true, allowed: false, null; the lower loss is the better one"},
      {R"({"use_cpu": true, "bf16": true})",
       "a.json: key 'bf16': found true with the model on the CPU, which hpu_amp leaves in f32, allowed: "
       "half_precision_backend cpu_amp"},
      {R"({"use_cpu": true, "fp8": true})", "a.json: key 'fp8': found true with the model on the CPU, allowed: false"},
      {R"({"load_best_model_at_end": true, "eval_strategy": "epoch"})",
       "a.json: key 'load_best_model_at_end': found true with eval_strategy epoch and save_strategy steps, allowed: "
       "the same, or save_strategy best"},
      {R"({"load_best_model_at_end": true, "eval_strategy": "steps", "eval_steps": 3})",
       "a.json: key 'load_best_model_at_end': found true with save_steps that are no multiple of eval_steps"},
      {R"({"load_best_model_at_end": true, "eval_strategy": "steps", "metric_for_best_model": "accuracy"})",
       "a.json: key 'metric_for_best_model': found 'accuracy', allowed: loss, eval_loss, null"},
      {R"({"optim": "adafactor"})",
       "a.json: key 'optim': found \"adafactor\", allowed: adamw_torch, adamw_torch_fused, muon"},
      {R"({"deepspeed": "ds.json"})",
       "a.json: key 'deepspeed': found \"ds.json\", allowed: null; DeepSpeed runs from Python, on the hpu device; fp8 "
       "config check judges its JSON"},
      {R"({"fsdp": "full_shard"})",
       "a.json: key 'fsdp': found \"full_shard\", allowed: \"\", false, null, []; FSDP runs from Python, with torch's "
       "own engine on the hpu device"},
      {R"({"half_precision_backend": "cpu_amp"})",
       "a.json: key 'half_precision_backend': found \"cpu_amp\" with the model on hpu, allowed: hpu_amp, or use_cpu "
       "true"},
      {R"({"ddp_static_graph": true, "ddp_find_unused_parameters": true})",
       "a.json: key 'ddp_static_graph': found true beside ddp_find_unused_parameters true, allowed: one of the two"},
      {R"({"use_habana": true, "use_cpu": true})",
       "a.json: key 'use_cpu': found true beside use_habana true, allowed: one of the two"},
      {R"({"per_device_train_batchsize": 1})",
       "a.json: unknown key 'per_device_train_batchsize', did you mean 'per_device_train_batch_size'?"},
      {"[]",
       "a.json: found [], allowed: an object with the keys output_dir, overwrite_output_dir, resume_from_checkpoint, "
       "per_device_train_batch_size, per_gpu_train_batch_size, per_device_eval_batch_size, per_gpu_eval_batch_size, "
       "auto_find_batch_size, ..."},
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
      "eval_delay": 0, "adam_epsilon": 1e-08, "save_safetensors": true, "max_steps": 5,
      "num_train_epochs": 3.0})"),
            "none");
}

/// Values that a row may allow.
std::vector<io::Json> candidates(const KeyRow& row) {
  std::vector<io::Json> values = {true, false, 3, 0.25, "x", "tensorboard"};
  for (std::string_view rest = row.allowed.words; !rest.empty();) {
    const auto end = std::min(rest.find(", "), rest.size());
    values.emplace_back(std::string(rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return values;
}

// Each key that is read changes the command in some file, but for those that another file or check reads.
TEST(TrainingArguments, EveryKeyThatIsReadHasAnEffect) {
  const std::set<std::string> elsewhere = {"gaudi_config_name", "metric_for_best_model", "greater_is_better",
                                           "lr_scheduler_kwargs", "half_precision_backend"};
  const io::Json files[] = {
      parse("{}"),
      parse(R"({"eval_strategy": "steps"})"),
      parse(R"({"profiling_steps": 2})"),
      parse(R"({"use_cpu": true, "bf16": true, "half_precision_backend": "cpu_amp"})"),
      parse(R"({"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 0}})"),
      parse(R"({"eval_strategy": "epoch", "save_strategy": "epoch"})")};
  for (const KeyRow& row : training_argument_keys()) {
    if (row.use != KeyUse::read || elsewhere.contains(row.path)) continue;
    bool changes = false;
    for (const auto& file : files) {
      for (const auto& value : candidates(row)) {
        io::Json changed = file;
        if (const std::string path = row.path; path.starts_with("lr_scheduler_kwargs."))
          changed["lr_scheduler_kwargs"][path.substr(path.find('.') + 1)] = value;
        else
          changed[path] = value;
        if (!check_training_arguments(changed, "a.json").problems.empty() ||
            !check_training_arguments(file, "a.json").problems.empty())
          continue;
        changes =
            changes || training_arguments_command(changed).arguments() != training_arguments_command(file).arguments();
      }
    }
    EXPECT_TRUE(changes) << row.path;
  }
}

TEST(TrainingArguments, WhatIsRefusedNamesFileAndKey) {
  for (const KeyRow& row : training_argument_keys()) {
    if (row.use != KeyUse::refused) continue;
    const auto problems = check_training_arguments({{row.path, "no such value"}}, "a.json").problems;
    ASSERT_FALSE(problems.empty()) << row.path;
    EXPECT_THAT(problems[0], StartsWith(std::string("a.json: key '") + row.path + "': found"));
    EXPECT_THAT(problems[0], HasSubstr(std::string("; ") + row.note));
  }
}

TEST(TrainingArguments, WhatIsSentNowhereIsANote) {
  const auto notes = [](const char* text) { return check_training_arguments(parse(text), "a.json").notes; };
  EXPECT_THAT(
      notes(R"({"report_to": ["wandb", "tensorboard", "none"]})"),
      ElementsAre("a.json: key 'report_to': found 'wandb', where nothing is sent; log.jsonl has a line for each step"));
  EXPECT_THAT(notes(R"({"report_to": "all", "learning_rate": 1e-4})"), IsEmpty());
}

TEST(TrainingArguments, VariablesAreThoseOfTheTable) {
  std::set<std::string> known;
  for (const auto& row : io::variables()) known.insert(row.name);
  for (const char* name : {"LOWER_LIST", "FP32_LIST"}) EXPECT_THAT(known, Contains(name));
}

}  // namespace
}  // namespace fp8::configs
