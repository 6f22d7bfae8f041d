// SPDX-License-Identifier: Apache-2.0
// What each reader would make of a checkpoint: outputs of every form load; each rule of the header, broken by hand, is
// found with its module.
#include "fp8/quant/checkpoint/reader_check.h"

#include <gmock/gmock.h>

#include <functional>

#include "fp8/quant/checkpoint/quantize.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "quant/forms/form_checkpoint.h"
#include "support/enum_names.h"

namespace fp8::quant {
namespace {

using namespace test;
using ::testing::HasSubstr;

struct Output {
  TempDir dir;
  explicit Output(const std::string& form, bool tied = false, WeightGranularity weights = WeightGranularity::channel) {
    write_llama(dir / "m", small_llama(at::kFloat, tied), tied);
    CheckpointOptions o;
    o.form = form;
    o.plan.weights = weights;
    o.plan.activations = form == "inc-vllm" ? ActivationScaling::none : ActivationScaling::dynamic_token;
    quantize_checkpoint(dir / "m", dir / "out", o);
  }
  void change(const std::function<void(io::Json&)>& f) const {
    auto config = io::read_json(dir / "out/config.json");
    f(config);
    io::write_json(dir / "out/config.json", config);
  }
  std::vector<ReaderVerdict> verdicts() const { return check_readers(dir / "out"); }
};

/// All problems of a reader, one line each.
std::string problems(const std::vector<ReaderVerdict>& verdicts, const std::string& reader) {
  for (const auto& v : verdicts) {
    if (v.reader != reader) continue;
    std::string text;
    for (const auto& p : v.problems) text += p + "\n";
    return text;
  }
  return "no such reader";
}

TEST(ReaderCheck, ReadersHaveNames) { test::check_names<CheckpointReader>(); }

TEST(ReaderCheck, WhatIsWrittenLoads) {
  for (const bool tied : {false, true}) {
    const Output ct("compressed-tensors", tied);
    EXPECT_EQ(problems(ct.verdicts(), "transformers"), "") << tied;
    EXPECT_EQ(problems(ct.verdicts(), "vLLM"), "") << tied;
    EXPECT_EQ(problems(Output("fp8", tied, WeightGranularity::tensor).verdicts(), "vLLM"), "") << tied;
    EXPECT_EQ(problems(Output("modelopt", tied, WeightGranularity::channel).verdicts(), "vLLM"), "") << tied;
    EXPECT_EQ(problems(Output("inc", tied).verdicts(), "neural-compressor"), "") << tied;
  }
}

TEST(ReaderCheck, AKeptModuleThatNothingNamesIsFound) {
  for (const bool tied : {false, true}) {  // of a tied model the file has no lm_head
    const Output out("compressed-tensors", tied);
    out.change([](io::Json& c) { c["quantization_config"]["ignore"] = io::Json::array(); });
    EXPECT_EQ(problems(out.verdicts(), "transformers"),
              "lm_head: in high precision, and no entry of the list of kept modules fits it: its reader would look for "
              "a scale\n");
    EXPECT_THAT(problems(out.verdicts(), "vLLM"), HasSubstr("lm_head: in high precision"));
  }
}

TEST(ReaderCheck, AnEntryThatIsTooWideIsFound) {
  const Output out("compressed-tensors");
  out.change([](io::Json& c) { c["quantization_config"]["ignore"] = {"lm_head", "re:.*k_proj"}; });
  const std::string text = problems(out.verdicts(), "transformers");
  EXPECT_THAT(text, HasSubstr("model.layers.0.self_attn.k_proj: in fp8, and the entry 're:.*k_proj' keeps it"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(ReaderCheck, AModuleThatIsNoTargetIsFound) {
  const Output out("compressed-tensors");
  out.change([](io::Json& c) {
    c["quantization_config"]["config_groups"]["group_0"]["targets"] = {"re:.*self_attn.*",
                                                                       "model.layers.0.mlp.up_proj"};
  });
  const std::string text = problems(out.verdicts(), "transformers");
  EXPECT_THAT(text, HasSubstr("mlp.gate_proj: in fp8, and no target"));
  EXPECT_THAT(text, HasSubstr("mlp.down_proj: in fp8, and no target"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text << "what stays and is no target needs no entry";
}

TEST(ReaderCheck, HalvedProductsAndTablesOfCodesAreFound) {
  const std::string layer = "model.layers.0.self_attn.";
  const Output like("compressed-tensors");
  auto quantization = io::read_json(like.dir / "out/config.json")["quantization_config"];
  quantization["ignore"] = {layer + "k_proj", layer + "v_proj", "lm_head"};
  std::vector<HandTensor> tensors;
  for (const std::string& module : {layer + "q_proj", std::string("model.embed_tokens")}) {
    tensors.push_back(codes(module, 4, 4));
    tensors.push_back(f32(module + ".weight_scale", {4, 1}, {1, 1, 1, 1}));
  }
  for (const char* kept : {"k_proj", "v_proj"})
    tensors.push_back(f32(layer + kept + ".weight", {4, 4}, std::vector<float>(16, 1.0f)));
  const HandCheckpoint hand(quantization, tensors);
  const auto verdicts = check_readers(hand.path());
  EXPECT_THAT(problems(verdicts, "vLLM"),
              HasSubstr(layer + "q_proj: in fp8, and " + layer + "k_proj, which runs as one product with it, is not"));
  EXPECT_EQ(problems(verdicts, "transformers"),
            "model.embed_tokens: in fp8, and readers have no Linear of this name: its codes would be read as values\n");
}

TEST(ReaderCheck, ExpertsAreSeenWithEachReadersEyes) {
  const std::string moe = "model.layers.0.block_sparse_moe.";
  const Output like("compressed-tensors");
  auto config = io::read_json(like.dir / "out/config.json");
  config["model_type"] = "granitemoe";  // transformers has stacks of these only
  const HandCheckpoint single(nullptr, {codes(moe + "experts.0.down_proj", 4, 4),
                                        f32(moe + "experts.0.down_proj.weight_scale", {4, 1}, {1, 1, 1, 1})});
  single.write("config.json", config);
  EXPECT_EQ(problems(check_readers(single.path()), "vLLM"), "");
  EXPECT_THAT(problems(check_readers(single.path()), "transformers"), HasSubstr(moe + "experts.0.down_proj: "));
  config["model_type"] = "qwen3_moe";
  const std::string stack = "model.layers.0.mlp.experts.down_proj";
  const HandCheckpoint stacked(nullptr, {codes("model.layers.0.self_attn.o_proj", 4, 4),
                                         f32("model.layers.0.self_attn.o_proj.weight_scale", {4, 1}, {1, 1, 1, 1}),
                                         f32(stack, {1, 2, 2}, {1, 1, 1, 1})});
  stacked.write("config.json", config);
  EXPECT_EQ(problems(check_readers(stacked.path()), "vLLM"),
            "model.layers.0.mlp.experts: a stack of experts in high precision, and no entry of the list of kept "
            "modules fits it\n");
  config["quantization_config"]["ignore"] = {"lm_head", "model.layers.0.mlp.experts"};
  stacked.write("config.json", config);
  EXPECT_EQ(problems(check_readers(stacked.path()), "vLLM"), "");
}

TEST(ReaderCheck, ScalesThatAReaderHasNot) {
  const auto verdicts = Output("fp8", false, WeightGranularity::tensor).verdicts();
  EXPECT_EQ(problems(verdicts, "vLLM"), "");
  EXPECT_THAT(problems(verdicts, "transformers"), HasSubstr("transformers reads scales per block in this form"));
  const std::string expert = "model.layers.0.mlp.experts.0.down_proj";
  const Output like("compressed-tensors");  // by hand: of one block of 4 x 4
  auto config = io::read_json(like.dir / "out/config.json");
  config["model_type"] = "qwen3_moe";
  auto& weights = config["quantization_config"]["config_groups"]["group_0"]["weights"];
  weights["strategy"] = "block";
  weights["block_structure"] = {4, 4};
  auto& inputs = config["quantization_config"]["config_groups"]["group_0"]["input_activations"];
  inputs["strategy"] = "group";
  inputs["group_size"] = 4;
  const HandCheckpoint blocks(nullptr, {codes(expert, 4, 4), f32(expert + ".weight_scale", {1, 1}, {1})});
  blocks.write("config.json", config);
  EXPECT_THAT(problems(check_readers(blocks.path()), "transformers"),
              HasSubstr("can't join experts with scales per block"));
  config["model_type"] = "llama4_text";  // which has a list of them instead
  blocks.write("config.json", config);
  EXPECT_EQ(problems(check_readers(blocks.path()), "transformers").find("join"), std::string::npos);
}

TEST(ReaderCheck, WhatStandsOutsideOfTheBlocksIsPlainToVllm) {
  const Output out("compressed-tensors");
  out.change([](io::Json& c) { c["num_hidden_layers"] = 1; });
  EXPECT_EQ(problems(out.verdicts(), "vLLM").find("mlp1"), std::string::npos);
  const HandCheckpoint hand(io::read_json(out.dir / "out/config.json")["quantization_config"],
                            {codes("mlp1.3", 4, 4), f32("mlp1.3.weight_scale", {4, 1}, {1, 1, 1, 1}),
                             f32("model.layers.0.self_attn.o_proj.weight", {4, 4}, std::vector<float>(16, 1.0f))});
  auto config = io::read_json(hand.path() / "config.json");
  config.update({{"model_type", "qwen3"}, {"num_hidden_layers", 1}, {"vocab_size", 8}});
  hand.write("config.json", config);
  EXPECT_THAT(problems(check_readers(hand.path()), "vLLM"),
              HasSubstr("mlp1.3: in fp8, outside of the language model's blocks"));
}

TEST(ReaderCheck, WhatIsMissingAndWhoIsNotKnown) {
  const Output out("compressed-tensors");
  for (const auto& v : out.verdicts()) EXPECT_TRUE(v.known) << v.reader;
  out.change([](io::Json& c) { c["num_hidden_layers"] = 9; });
  for (const auto& v : out.verdicts())
    EXPECT_THAT(problems(out.verdicts(), v.reader), HasSubstr(": missing, of the blocks that config.json counts"));
  out.change([](io::Json& c) { c["model_type"] = "nobody_knows"; });
  for (const auto& v : out.verdicts()) EXPECT_FALSE(v.known) << v.reader;
}

TEST(ReaderCheck, HighPrecisionIsRefused) {
  const Output out("compressed-tensors");
  EXPECT_REFUSED(check_readers(out.dir / "m"), (out.dir / "m").string(), "expected an fp8 checkpoint");
}

}  // namespace
}  // namespace fp8::quant
