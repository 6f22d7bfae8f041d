// SPDX-License-Identifier: Apache-2.0
// fp8 config explain and check, run as a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "fp8/runtime/io/json/json.h"
#include "support/test_data.h"
#include "tools/commands/quantize/ones_checkpoint.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

using test::run_fp8;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Config : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    const auto path = folder_ / "q.json";
    std::ofstream(path) << text;
    return path.string();
  }
  io::Json explain(const std::string& text, std::vector<std::string> more = {},
                   const std::map<std::string, std::string>& environment = {}) {
    std::vector<std::string> arguments{"config", "explain", write(text), "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto run = run_fp8(arguments, {.environment = environment});
    EXPECT_EQ(run.code, 0) << run.err;
    return io::parse_json(run.out, "stdout");
  }
  static io::Json find(const io::Json& list, const char* key, const std::string& name) {
    for (const auto& item : list) {
      if (item[key] == name) return item;
    }
    return nullptr;
  }
  test::TempDir folder_;
};

TEST_F(Config, ExplainTellsValueOriginAndEffectOfEveryKey) {
  const auto json = explain(R"({"mode": "measure", "whitelist": {"types": ["Linear"]}, "method": "HOOKS"})", {},
                            {{"WORLD_SIZE", "2"}, {"ENABLE_CONSOLE", "1"}});
  EXPECT_EQ(json["mode"], "MEASURE");
  const auto mode = find(json["keys"], "key", "mode");
  EXPECT_EQ(mode["value"], "MEASURE");
  EXPECT_EQ(mode["origin"], (folder_ / "q.json").string());
  EXPECT_FALSE(mode["note"].get<std::string>().empty());
  EXPECT_EQ(find(json["keys"], "key", "hp_dtype")["origin"], "default");
  EXPECT_EQ(find(json["keys"], "key", "method")["status"], "ignored");
  EXPECT_EQ(find(json["environment"], "name", "WORLD_SIZE")["in_effect"], true);
  EXPECT_EQ(find(json["environment"], "name", "ENABLE_CONSOLE")["in_effect"], false);
  EXPECT_TRUE(json["problems"].empty());
  const auto run = run_fp8({"config", "explain", (folder_ / "q.json").string()});
  EXPECT_THAT(run.out, AllOf(HasSubstr("allowlist"), HasSubstr("none: HOOKS is the only one"),
                             HasSubstr("scale_method default is MAXABS_HW: weight PTS MAXABS HW_ALIGNED 0.5; "
                                       "activation PTS MAXABS HW_ALIGNED 0.25")));
}

TEST_F(Config, ExplainShowsWhichModulesAreMeantAndWhichEntriesMeanNone) {
  const auto model = (test::demo_data() / "kjv-byte-1.7M").string();
  const auto json =
      explain(R"({"blocklist": {"names": ["lm_head", "layers\\.0\\.mlp", "nothing_like_this"], "types": ["Softmax"]},
      "allowlist": {"types": ["torch.nn.Linear", "Linear"]},
      "scale_method": {"default": {"weight": {"rounding_method": "POW2"}, "activation": {"rounding_method": "POW2"}},
                       "layers": {"1": {"weight": {"granularity": "PCS"}}, "77": {}}}})",
              {"--model", model});
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
  const auto text = run_fp8({"config", "explain", (folder_ / "q.json").string(), "--model", model});
  EXPECT_THAT(text.out, HasSubstr("modules with weights are selected"));
}

TEST_F(Config, ExplainListsAttentionAndCacheNodesOfBothFormsOfAttention) {
  const auto model = (test::demo_data() / "kjv-byte-1.7M").string();
  const auto json =
      explain(R"({"scale_method": "maxabs_hw", "blocklist": {"names": ["lm_head", "layers\\.1.*matmul_av"], )"
              R"("types": ["Softmax"]}})",
              {"--model", model});
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
  const auto text = run_fp8({"config", "explain", (folder_ / "q.json").string(), "--model", model});
  EXPECT_THAT(text.out, AllOf(HasSubstr("19 of 24 modules without weights are selected"),
                              HasSubstr("--attention eager, in memory only"),
                              HasSubstr("11 of these run in fp8 in memory (QUANT_CONFIG with evaluate, generate) only: "
                                        "no form of checkpoint holds their scales")));
}

TEST_F(Config, ExplainNeverCallsAWorkingPatternIdle) {
  const auto model = (test::demo_data() / "kjv-byte-1.7M").string();
  const auto json = explain(
      R"({"blocklist": {"names": ["matmul_qk", "softmax", "fused_scaled", "layers\\.2.*k_cache", "no_such"],
                        "types": ["Matmul", "ModuleFusedSDPA", "KVCache", "VLLMKVCache"]},
      "scale_method": {"default": {"weight": {"rounding_method": "POW2"}, "activation": {"rounding_method": "POW2"}},
                       "layer_types": {"Softmax": {}, "VLLMKVCache": {}, "Conv2d": {}},
                       "nodes": {"model.layers.1.self_attn.softmax": {}}}})",
      {"--model", model});
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
  const auto json = explain(R"({"dynamic_quantization": true, "scale_method": "maxabs_pcs_pow2"})",
                            {"--model", (test::demo_data() / "kjv-byte-1.7M").string()});
  EXPECT_EQ(find(json["model"]["modules"], "name", "model.layers.0.mlp.up_proj")["activation"],
            "PCS MAXABS POW2 0.5, at each call");
  EXPECT_EQ(find(json["model"]["modules"], "name", "model.embed_tokens")["reason"],
            "type Embedding is not quantized unless the allowlist names it");
}

TEST_F(Config, CheckIsSilentAboutWhatIsRight) {
  const auto file = write(R"({"mode": "MEASURE"})");
  const auto run = run_fp8({"config", "check", file});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out, file + ": ok\n");
  const auto json = io::parse_json(run_fp8({"config", "check", file, "--json"}).out, "stdout");
  EXPECT_EQ(json["ok"], true);
}

TEST_F(Config, CheckSaysEveryProblemInOneLine) {
  const auto file = write(R"({"mode": "X", "scale_methd": 1, "blocklist": {"names": ["("]}})");
  const auto run = run_fp8({"config", "check", file});
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 3);
  EXPECT_EQ(run.error_lines(), 1);
  EXPECT_THAT(run.err, HasSubstr("3 problems"));
  const auto json = io::parse_json(run_fp8({"config", "check", file, "--json"}).out, "stdout");
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["problems"].size(), 3u);
}

TEST_F(Config, CheckKnowsDeviceEnvironmentAndTypes) {
  const auto problem = [&](const std::string& text, const std::map<std::string, std::string>& environment) {
    const auto run = run_fp8({"config", "check", write(text)}, {.environment = environment});
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

TEST_F(Config, WrongUse) {
  const auto file = write("{}");
  EXPECT_EQ(run_fp8({"config"}).code, 2);
  EXPECT_EQ(run_fp8({"config", "explain"}).code, 2);
  EXPECT_THAT(run_fp8({"config", "show", file}).err, HasSubstr("config: found 'show', allowed: explain, check"));
  EXPECT_EQ(run_fp8({"config", "check", file, "--model", "m"}).code, 2);
  EXPECT_EQ(run_fp8({"config", "explain", (folder_ / "gone.json").string()}).code, 1);
  EXPECT_THAT(run_fp8({"config", "explain", file, "--model", file}).err,
              HasSubstr("allowed: a checkpoint folder or a TorchScript file"));
  EXPECT_THAT(run_fp8({"config", "explain", file, "--model", (folder_ / "gone").string()}).err,
              HasSubstr("no such file or folder"));
}

}  // namespace
}  // namespace fp8
