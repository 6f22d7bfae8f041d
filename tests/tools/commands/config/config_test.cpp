// SPDX-License-Identifier: Apache-2.0
// fp8 config explain and check, run as a process.
#include "support/golden.h"
#include "support/values.h"
#include "tools/commands/quantize/ones_checkpoint.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

struct Config : ::testing::Test {
  std::string write(const std::string& text) {
    const auto path = folder_ / "q.json";
    std::ofstream(path) << text;
    return path.string();
  }
  io::Json explain(const std::string& text, std::vector<std::string> more = {},
                   const std::map<std::string, std::string>& environment = {}) {
    std::vector<std::string> arguments = args("config explain {} --json {}", write(text), more);
    return json_of(run_fp8(arguments, {.environment = environment}));
  }
  static io::Json find(const io::Json& list, const char* key, const std::string& name) {
    for (const auto& item : list)
      if (item[key] == name) return item;
    return nullptr;
  }
  test::TempDir folder_;
};

TEST_F(Config, ExplainTellsValueOriginAndEffectOfEveryKey) {
  const auto json = explain(R"({"mode": "measure", "whitelist": {"types": ["Linear"]}, "method": "HOOKS"})", {},
                            {{"WORLD_SIZE", "2"}, {"ENABLE_CONSOLE", "1"}});
  EXPECT_EQ(json["mode"], "MEASURE");
  const auto mode = find(json["keys"], "key", "mode");
  expect_values(mode, {{"value", "MEASURE"}, {"origin", (folder_ / "q.json").string()}});
  EXPECT_FALSE(mode["note"].get<std::string>().empty());
  EXPECT_EQ(find(json["keys"], "key", "hp_dtype")["origin"], "default");
  EXPECT_EQ(find(json["keys"], "key", "method")["status"], "ignored");
  EXPECT_EQ(find(json["environment"], "name", "WORLD_SIZE")["in_effect"], true);
  EXPECT_EQ(find(json["environment"], "name", "ENABLE_CONSOLE")["in_effect"], false);
  EXPECT_TRUE(json["problems"].empty());
  const auto run = run_fp8("config explain {}", folder_ / "q.json");
  EXPECT_THAT(run.out, AllOf(HasSubstr("allowlist"), HasSubstr("none: HOOKS is the only one"),
                             HasSubstr("scale_method default is MAXABS_HW: weight PTS MAXABS HW_ALIGNED 0.5; "
                                       "activation PTS MAXABS HW_ALIGNED 0.25")));
}

TEST_F(Config, ExplainShowsWhichModulesAreMeantAndWhichEntriesMeanNone) {
  const auto json =
      explain(R"({"blocklist": {"names": ["lm_head", "layers\\.0\\.mlp", "nothing_like_this"], "types": ["Softmax"]},
      "allowlist": {"types": ["torch.nn.Linear", "Linear"]},
      "scale_method": {"default": {"weight": {"rounding_method": "POW2"}, "activation": {"rounding_method": "POW2"}},
                       "layers": {"1": {"weight": {"granularity": "PCS"}}, "77": {}}}})",
              args("--model $DEMO"));
  const auto module = [&](const char* name) { return find(json["model"]["modules"], "name", name); };
  EXPECT_EQ(module("model.layers.0.self_attn.q_proj")["method"], "MAXABS_POW2");
  EXPECT_EQ(module("model.layers.0.self_attn.q_proj")["method_from"], "default");
  EXPECT_EQ(module("model.layers.1.mlp.up_proj")["method"], "ACT_MAXABS_POW2_WEIGHTS_PCS_MAXABS_POW2");
  EXPECT_EQ(module("model.layers.1.mlp.up_proj")["method_from"], "layers.1");
  EXPECT_EQ(module("model.layers.0.mlp.up_proj")["selected"], false);
  EXPECT_THAT(module("model.layers.0.mlp.up_proj")["reason"].get<std::string>(),
              HasSubstr("not selected by allowlist and blocklist"));
  const std::string unused = json["model"]["unused"].dump();
  EXPECT_THAT(unused, AllOf(HasSubstr("nothing_like_this"), HasSubstr("torch.nn.Linear"),
                            HasSubstr("scale_method.layers.77"), Not(HasSubstr("layers.1'"))));
  EXPECT_THAT(unused, Not(HasSubstr("Softmax")));  // attention written eagerly has them
  EXPECT_THAT(json["problems"].dump(), HasSubstr("key 'allowlist.types': found 'torch.nn.Linear', which is no class "
                                                 "that can be quantized, did you mean 'Linear'?"));
  const auto text = run_fp8("config explain {} --model $DEMO", folder_ / "q.json");
  EXPECT_THAT(text.out, HasSubstr("modules with weights are selected"));
}

TEST_F(Config, ExplainListsAttentionAndCacheNodesOfBothFormsOfAttention) {
  const auto json =
      explain(R"({"scale_method": "maxabs_hw", "blocklist": {"names": ["lm_head", "layers\\.1.*matmul_av"], )"
              R"("types": ["Softmax"]}})",
              args("--model $DEMO"));
  const auto& nodes = json["model"]["nodes"];
  ASSERT_EQ(nodes.size(), 6 * 4u) << "four layers";
  const auto node = [&](const std::string& name) { return find(nodes, "name", "model.layers." + name); };
  EXPECT_EQ(node("0.self_attn.k_cache")["type"], "KVCache");
  EXPECT_EQ(node("0.self_attn.v_cache")["method"], "MAXABS_HW");
  EXPECT_EQ(node("3.self_attn.v_cache")["in_checkpoint"], true);
  EXPECT_EQ(node("0.self_attn.k_cache")["attention"], nullptr);
  EXPECT_EQ(node("0.self_attn.fused_scaled_dot_product_attention")["attention"], "fused");
  EXPECT_EQ(node("0.self_attn.fused_scaled_dot_product_attention")["selected"], true);
  EXPECT_EQ(node("0.self_attn.matmul_qk")["attention"], "eager");
  EXPECT_EQ(node("0.self_attn.matmul_qk")["in_checkpoint"], false);
  EXPECT_EQ(node("1.self_attn.matmul_qk")["selected"], true);
  EXPECT_EQ(node("1.self_attn.matmul_av")["selected"], false);
  EXPECT_EQ(node("2.self_attn.softmax")["selected"], false);
  EXPECT_EQ(json["model"]["nodes_selected"], 8 + 4 + 4 + 3);
  const auto text = run_fp8("config explain {} --model $DEMO", folder_ / "q.json");
  EXPECT_THAT(text.out, AllOf(HasSubstr("19 of 24 modules without weights are selected"),
                              HasSubstr("--attention eager, in memory only"),
                              HasSubstr("11 of these run in fp8 in memory (QUANT_CONFIG with evaluate, generate) only: "
                                        "no form of checkpoint holds their scales")));
}

TEST_F(Config, ExplainNeverCallsAWorkingPatternIdle) {
  const auto json = explain(
      R"({"blocklist": {"names": ["matmul_qk", "softmax", "fused_scaled", "layers\\.2.*k_cache", "no_such"],
                        "types": ["Matmul", "ModuleFusedSDPA", "KVCache", "VLLMKVCache"]},
      "scale_method": {"default": {"weight": {"rounding_method": "POW2"}, "activation": {"rounding_method": "POW2"}},
                       "layer_types": {"Softmax": {}, "VLLMKVCache": {}, "Conv2d": {}},
                       "nodes": {"model.layers.1.self_attn.softmax": {}}}})",
      args("--model $DEMO"));
  const auto& unused = json["model"]["unused"];
  ASSERT_EQ(unused.size(), 3u) << unused;
  EXPECT_THAT(unused[0].get<std::string>(), HasSubstr("no_such"));
  EXPECT_THAT(unused.dump(), AllOf(HasSubstr("layer_types.Conv2d"), HasSubstr("nodes.model.layers.1.self_attn.softmax"),
                                   Not(HasSubstr("VLLM"))));  // blocked, so idle
}

TEST_F(Config, ExplainKnowsWhatQuantizeKnowsOfFamilies) {
  const auto json = explain(R"({"scale_method": "maxabs_hw"})", {"--model", test::write_mixture(folder_ / "moe")});
  const auto type = [&](const std::string& name) {
    const io::Json found = find(json["model"]["modules"], "name", name);
    return found.is_null() ? "" : found["type"].get<std::string>();
  };
  EXPECT_EQ(type("lm_head"), "Linear") << "tied";
  EXPECT_EQ(type("model.embed_tokens"), "Embedding");
  EXPECT_EQ(type("model.layers.0.mlp.experts.1.up_proj"), "Linear")
      << "experts that a file stacks: " << json["model"]["modules"];
}

TEST_F(Config, ExplainOfDynamicQuantization) {
  const auto json =
      explain(R"({"dynamic_quantization": true, "scale_method": "maxabs_pcs_pow2"})", args("--model $DEMO"));
  EXPECT_EQ(find(json["model"]["modules"], "name", "model.layers.0.mlp.up_proj")["activation"],
            "PCS MAXABS POW2 0.5, at each call");
  EXPECT_EQ(find(json["model"]["modules"], "name", "model.embed_tokens")["reason"],
            "type Embedding is not quantized unless the allowlist names it");
}

TEST_F(Config, CheckIsSilentAboutWhatIsRight) {
  const auto file = write(R"({"mode": "MEASURE"})");
  EXPECT_EQ(succeeded(run_fp8("config check {}", file)).out, file + ": ok\n");
  EXPECT_EQ(io::parse_json(run_fp8("config check {} --json", file).out, "stdout")["ok"], true);
}

TEST_F(Config, CheckSaysEveryProblemInOneLine) {
  const auto file = write(R"({"mode": "X", "scale_methd": 1, "blocklist": {"names": ["("]}})");
  const auto run = run_fp8("config check {}", file);
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 3);
  EXPECT_EQ(run.error_lines(), 1);
  EXPECT_THAT(run.err, HasSubstr("3 problems"));
  const auto json = io::parse_json(run_fp8("config check {} --json", file).out, "stdout");
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["problems"].size(), 3u);
}

TEST_F(Config, CheckKnowsDeviceEnvironmentAndTypes) {
  const auto problem = [&](const std::string& text, const std::map<std::string, std::string>& environment) {
    const auto run = run_fp8(args("config check {}", write(text)), {.environment = environment});
    EXPECT_EQ(run.code, 1) << text;
    return run.out;
  };
  EXPECT_THAT(problem(R"({"device_for_scales": "GAUDI3"})", {{"FP8_HPU_DEVICE", "gaudi2"}}),
              HasSubstr("found GAUDI3 on a gaudi2 device"));
  EXPECT_THAT(
      problem(R"({"scale_method": "act_maxabs_hw_weights_pcs_maxabs_pow2"})", {{"RUNTIME_SCALE_PATCHING", "1"}}),
      HasSubstr("with RUNTIME_SCALE_PATCHING"));
  EXPECT_THAT(problem("{}", {{"LOCAL_RANK", "3"}, {"WORLD_SIZE", "2"}}), HasSubstr("'LOCAL_RANK': found '3'"));
  EXPECT_THAT(problem(R"({"allowlist": {"types": ["torch.nn.Conv2d"]}})", {}), HasSubstr("did you mean 'Conv2d'?"));
}

TEST_F(Config, KnowsAFileByItsKeys) {
  const auto kind = [&](const std::string& text) {
    return json_of(run_fp8("config check {} --json", write(text)))["kind"].get<std::string>();
  };
  EXPECT_GOLDEN(kind(text));
  const auto named = run_fp8("config check {} --kind deepspeed --json", write("{}"));
  EXPECT_EQ(named.code, 1);
  EXPECT_EQ(io::parse_json(named.out, "stdout")["kind"], "deepspeed");
}

TEST_F(Config, ChecksADeepSpeedJson) {
  const auto file = write(R"({"train_batch_size": 33, "train_micro_batch_size_per_gpu": 17,
      "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2, "stag": 1}, "gradient_clipping": "auto"})");
  const auto run = run_fp8("config check {} --world-size 2", file);
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(run.out, file + ": unknown key 'zero_optimization.stag', did you mean 'zero_optimization.stage'?\n" + file +
                         ": key 'train_batch_size': found 33, allowed: 68 (train_micro_batch_size_per_gpu 17 x "
                         "gradient_accumulation_steps 2 x 2 processes)\n"
                         "note: " +
                         file +
                         ": key 'gradient_clipping': \"auto\" is filled in by transformers and Accelerate alone\n");
  EXPECT_EQ(run.error_lines(), 1);
  EXPECT_THAT(run.err, HasSubstr("2 problems"));
  const auto json = io::parse_json(run_fp8("config check {} --world-size 2 --json", file).out, "stdout");
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["problems"].size(), 2u);
  EXPECT_EQ(json["notes"].size(), 1u);
  const auto lightning = run_fp8("config check {} --reader lightning", file);
  EXPECT_THAT(lightning.out, HasSubstr("found with reader lightning, allowed: the Trainer's accumulate_grad_batches"));
  // The launcher's variables say how many processes there are.
  const auto right = write(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 16})");
  EXPECT_EQ(run_fp8("config check {}", right).code, 0);
  EXPECT_EQ(run_fp8(args("config check {}", right), {.environment = {{"RANK", "0"}, {"WORLD_SIZE", "3"}}}).code, 1);
  expect_failed(run_fp8("config check {}", write(R"({"bf16": {}, "bf16": {}})")), {":1:14: duplicate key 'bf16'"});
}

TEST_F(Config, ExplainsADeepSpeedJson) {
  const auto file =
      write(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}})");
  const auto run = succeeded(run_fp8("config explain {} --world-size 2", file));
  EXPECT_THAT(run.out, AllOf(HasSubstr("zero_optimization.stage"),
                             HasSubstr("batch: 32 = micro batch 4 x accumulation 4 x processes 2")));
  const auto json = io::parse_json(run_fp8("config explain {} --json", file).out, "stdout");
  EXPECT_EQ(json["batch"]["gradient_accumulation_steps"], nullptr);
  EXPECT_EQ(find(json["keys"], "key", "zero_optimization.stage")["use"], "read");
}

TEST_F(Config, MakesTheJsonOfAStrategy) {
  const auto run = succeeded(
      run_fp8("config deepspeed hpu_deepspeed_stage_3 --set offload_optimizer=true --set precision=bf16-mixed --set "
              "accumulate_grad_batches=2"));
  const auto json = io::parse_json(run.out, "stdout");
  EXPECT_EQ(json["zero_optimization"]["stage"], 3);
  EXPECT_EQ(json["zero_optimization"]["offload_optimizer"]["device"], "cpu");
  EXPECT_EQ(json["bf16"]["enabled"], true);
  EXPECT_EQ(json["gradient_accumulation_steps"], 2);
  const auto arguments = write(R"({"stage": 1, "nvme_path": "/x"})");
  const auto out = (folder_ / "ds.json").string();
  EXPECT_EQ(run_fp8("config deepspeed {} --out {}", arguments, out).out, out + ": written\n");
  EXPECT_EQ(io::read_json(out)["zero_optimization"]["stage"], 1);
  EXPECT_EQ(run_fp8("config check {} --reader lightning", out).code, 0);
  // The documents' example of ZeRO-Infinity with stage 2.
  const auto odd = succeeded(run_fp8("config deepspeed hpu_deepspeed --set offload_parameters=true"));
  EXPECT_THAT(odd.err, HasSubstr("found device cpu with stage 2, allowed: stage 3"));
  EXPECT_THAT(run_fp8("config deepspeed hpu_deepspeed --set stages=3").err,
              HasSubstr("unknown key 'stages', did you mean 'stage'?"));
  EXPECT_EQ(run_fp8("config deepspeed hpu_deepspeed --set stage").code, 2);
}

TEST_F(Config, TranslatesTrainingArgumentsAndGaudiConfig) {
  const auto run = succeeded(run_fp8(
      args("config explain {}", write(R"({"per_device_train_batch_size": 8, "bf16": true, "torch_compile": false})"))));
  EXPECT_THAT(run.out, AllOf(HasSubstr("fp8 train --batch: chunks of a forward"),
                             HasSubstr("\nfp8 train --precision bf16-mixed --batch 8 --grad-accum 1 --lr 5e-05 "),
                             HasSubstr("no graph is recorded")));
  const auto lists = folder_ / "lists";
  const auto gaudi =
      run_fp8("config explain {} --out {}", write(R"({"use_torch_autocast": true, "autocast_bf16_ops": ["add", "mm"],
                                        "autocast_fp32_ops": ["pow"]})"),
              lists);
  EXPECT_THAT(gaudi.out,
              HasSubstr("LOWER_LIST=lower_list.txt FP32_LIST=fp32_list.txt fp8 train --precision bf16-mixed\n"));
  EXPECT_EQ(read_file(lists / "lower_list.txt"), "add\nmm\n");
  EXPECT_EQ(read_file(lists / "fp32_list.txt"), "pow\n");
}

// Whatever a row calls a flag of fp8 train is one.
TEST_F(Config, FlagsOfTranslationsAreTrains) {
  auto help = run_fp8({"train", "--help-all"}).out;
  std::ranges::replace(help, '\n', ' ');  // a long name stands alone on its line
  for (const char* text :
       {R"({"output_dir": "o", "overwrite_output_dir": true, "resume_from_checkpoint": true,
            "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 0}, "warmup_steps": 1,
            "max_steps": 1, "bf16": true, "fp8": true, "gradient_checkpointing": true, "minimize_memory": true,
            "save_total_limit": 1, "eval_strategy": "steps", "profiling_steps": 1, "optim": "muon",
            "distribution_strategy": "ddp", "ddp_bucket_cap_mb": 1, "ddp_find_unused_parameters": true,
            "ddp_timeout": 60, "dataloader_drop_last": true, "report_to": "tensorboard"})",
        R"({"use_cpu": true, "warmup_ratio": 0.1, "eval_strategy": "epoch", "save_strategy": "epoch"})",
        R"({"eval_strategy": "epoch", "save_strategy": "best", "metric_for_best_model": "loss"})"}) {
    const auto json = explain(text);
    EXPECT_TRUE(json["problems"].empty()) << json["problems"];
    for (const auto& key : json["keys"]) {
      if (!key["flag"].is_string()) continue;
      const auto flag = key["flag"].get<std::string>();
      EXPECT_THAT(help, HasSubstr(flag.substr(0, flag.find(' ')) + " ")) << key;
    }
    ASSERT_GT(json["command"].size(), 20u);
    for (const auto& word : json["command"]) {
      const auto name = word.get<std::string>();
      EXPECT_TRUE(!name.starts_with("--") || help.find(name + " ") != std::string::npos) << name;
    }
  }
}

TEST_F(Config, WrongUse) {
  const auto file = write("{}");
  for (const char* more :
       {"check {} --model m", "check {} --world-size 2", "check {} --reader lightning",
        "check {} --kind deepspeed --world-size 0", "check {} --set stage=3", "check {} --out x", "explain {} --out x"})
    EXPECT_EQ(run_fp8(args(std::string("config ") + more, file)).code, 2) << more;
  for (const char* line : {"config", "config explain", "config deepspeed hpu_deepspeed_stage_9",
                           "config deepspeed hpu_deepspeed --set stage=9", "config deepspeed hpu_deepspeed --model m"})
    EXPECT_EQ(run_fp8(args(line)).code, 2) << line;
  EXPECT_EQ(run_fp8("config explain {}", folder_ / "gone.json").code, 1);
  EXPECT_THAT(run_fp8("config explain {} --model {}", file, file).err,
              HasSubstr("allowed: a checkpoint folder or a TorchScript file"));
  EXPECT_THAT(run_fp8("config explain {} --model {}", file, folder_ / "gone").err, HasSubstr("no such file or folder"));
  EXPECT_EQ(run_fp8("config deepspeed {}", write(R"({"stage": 9})")).code, 1);
}

}  // namespace
}  // namespace fp8
