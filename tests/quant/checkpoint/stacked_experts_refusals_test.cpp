// SPDX-License-Identifier: Apache-2.0
// Stacked experts that are not converted: kept by the plan, for want of a row for their family or for one expert of
// them; and those that are refused by name.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <map>

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/quant/forms/ignore_list.h"
#include "quant/checkpoint/stacked_checkpoint.h"
#include "quant/checkpoint/stacked_folder.h"
#include "support/hpu_test.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using test::Folder;
using test::kExperts;
using test::kHidden;
using test::kInner;
using test::same_bits;
using test::throws_with;
using ::testing::Contains;
using ::testing::HasSubstr;

std::map<std::string, std::string> reasons(const CheckpointReport& report) {
  std::map<std::string, std::string> by_name;
  for (const auto& s : report.skipped) by_name[s.name] = s.reason;
  return by_name;
}

TEST(StackedExperts, KeptOnesAreListedForReaders) {
  for (const std::string form : {"compressed-tensors", "fp8"}) {
    Folder f("mixtral");
    const test::Experts experts(kExperts, kInner, kHidden);
    f.add(test::stacked_layer(experts, "model.layers.0.mlp."));
    f.options.plan.experts = ExpertForm::keep;
    f.options.form = form;
    if (form == "fp8") f.options.plan.weights = WeightGranularity::tensor;
    const auto report = f.run();
    EXPECT_EQ(report.quantized.size(), 1u);
    for (const char* stack : {"model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"}) {
      EXPECT_THAT(reasons(report)[stack], HasSubstr("kept by")) << stack;
      EXPECT_TRUE(same_bits(f.out(stack), test::find(f.tensors, stack)));
    }
    const auto config = f.quantization();
    const auto ignored = config[form == "fp8" ? "ignored_layers" : "ignore"].get<std::vector<std::string>>();
    EXPECT_THAT(ignored, Contains("model.layers.0.mlp.experts"));
  }
}

TEST(StackedExperts, AFamilyWithoutARowIsKeptWithANotice) {
  for (const char* type : {"made_up_moe", "gpt_oss"}) {
    Folder f(type);
    f.add(test::stacked_layer(test::Experts(kExperts, kInner, kHidden), "model.layers.0.mlp.", true));
    const auto report = f.run();
    EXPECT_EQ(report.quantized.size(), 1u);
    EXPECT_EQ(reasons(report).count("model.layers.0.mlp.experts.down_proj"), 1u);
    EXPECT_THAT(f.quantization()["ignore"].get<std::vector<std::string>>(), Contains("model.layers.0.mlp.experts"));
    const bool noticed = std::any_of(report.warnings.begin(), report.warnings.end(), [](const std::string& w) {
      return w.find("model.layers.0.mlp.experts.") != std::string::npos;
    });
    EXPECT_EQ(noticed, std::string(type) == "made_up_moe");
  }
}

TEST(StackedExperts, AllOfALayerOrNone) {
  const std::string mlp = "model.layers.0.mlp.", other = "model.layers.1.mlp.";
  Folder f("qwen3_moe");
  f.add(test::stacked_layer(test::Experts(kExperts, kInner, kHidden), mlp));
  f.add(test::stacked_layer(test::Experts(kExperts, kInner, kHidden), other));
  f.options.plan.exclude = {"layers\\.0\\.mlp\\.experts\\.3\\.up_proj"};
  auto report = f.run();
  EXPECT_EQ(report.quantized.size(), 3 * kExperts + 1);
  EXPECT_THAT(reasons(report)[mlp + "experts.gate_up_proj"], HasSubstr("experts.3.up_proj is not converted: excluded"));
  EXPECT_THAT(f.names(), Contains(mlp + "experts.down_proj"));
  EXPECT_THAT(f.quantization()["ignore"].get<std::vector<std::string>>(), Contains(mlp + "experts"));
  EXPECT_EQ(reasons(report).count(mlp + "experts.0.gate_proj"), 0u);
  // vLLM asks for a mixture by its expert 0, below a prefix of its own.
  const auto is_ignored = [&](const std::string& name) {
    const IgnoreList list(compressed_tensors_form(), f.quantization()["ignore"].get<std::vector<std::string>>());
    return list.entry_for(name) != nullptr;
  };
  EXPECT_TRUE(is_ignored("language_model." + mlp + "experts.0.gate_proj"));
  EXPECT_FALSE(is_ignored("language_model." + other + "experts.0.gate_proj"));
  f.options.plan.exclude = {"experts"};
  f.options.overwrite = true;
  report = f.run();
  EXPECT_EQ(report.quantized.size(), 1u);
  EXPECT_THAT(reasons(report)[other + "experts.down_proj"], HasSubstr("excluded by"));
  f.options.plan.exclude = {};
  f.options.plan.keep = {{other + "experts.down_proj", "damages most"}};
  report = f.run();
  EXPECT_EQ(report.quantized.size(), 3 * kExperts + 1);
  EXPECT_EQ(reasons(report)[other + "experts.gate_up_proj"], "damages most");
}

TEST(StackedExperts, WhatIsNotANumberIsNamedWithItsExpert) {
  Folder f("llama4");
  f.add(test::stacked_layer(test::Experts(kExperts, kInner, kHidden), "model.layers.0.feed_forward.", true));
  at::Tensor stack = test::find(f.tensors, "model.layers.0.feed_forward.experts.gate_up_proj");
  stack[3][4][kInner + 1] = std::numeric_limits<float>::quiet_NaN();
  for (const auto weights : {WeightGranularity::channel, WeightGranularity::tensor, WeightGranularity::block}) {
    f.options.plan.weights = weights;
    f.options.plan.block = {4, 4};
    EXPECT_REFUSED(f.run(),
                   "model.layers.0.feed_forward.experts.gate_up_proj, expert 3: expected finite weights, "
                   "found NaN in 1 of 240 values");
    EXPECT_FALSE(fs::exists(f.dir / "out"));
  }
  f.options.allow_nonfinite = true;
  f.options.plan.weights = WeightGranularity::channel;
  const auto report = f.run();
  EXPECT_EQ(report.quantized.size(), 1u);
  EXPECT_THAT(reasons(report)["model.layers.0.feed_forward.experts.down_proj"], HasSubstr("NaN in 1 of 2400 values"));
}

TEST(StackedExperts, ShapesThatDoNotFitAreRefusedByName) {
  const std::string mlp = "model.layers.0.mlp.experts.";
  const auto refused = [&](const char* type, std::vector<std::int64_t> up, std::vector<std::int64_t> down,
                           const std::vector<std::string>& words) {
    Folder f(type);
    f.add({{mlp + "gate_up_proj", torch::zeros(up, at::kBFloat16)},
           {mlp + "down_proj", torch::zeros(down, at::kBFloat16)}});
    EXPECT_TRUE(throws_with(words, [&] { f.run(); })) << words[0];
    f.options.plan.experts = ExpertForm::keep;
    EXPECT_EQ(f.run().quantized.size(), 1u);
  };
  refused("qwen3_moe", {0, 24, 20}, {0, 20, 12}, {"gate_up_proj: shape [0, 24, 20]", "expected experts with values"});
  refused("qwen3_moe", {4, 25, 20}, {4, 20, 12}, {"gate_up_proj: shape [4, 25, 20]", "found 25 rows of both"});
  refused("qwen3_moe", {4, 24, 20}, {3, 20, 12}, {"down_proj: shape [3, 20, 12]", "as many experts", "4"});
  refused("qwen3_moe", {4, 20, 24}, {4, 12, 20},
          {"gate_up_proj: shape [4, 20, 24]", "expected [E, 2 I, H] beside [E, H, I]",
           "[4, 12, 20] in " + mlp + "down_proj"});
  refused("llama4", {4, 24, 20}, {4, 20, 12}, {"gate_up_proj", "expected [E, H, 2 I] beside [E, I, H]"});
  refused("llama4", {4, 20, 23}, {4, 12, 20}, {"gate_up_proj", "found 23 rows of both"});
  refused("qwen3_vl_moe", {4, 24, 20}, {4, 20, 13}, {"gate_up_proj"});
}

TEST(StackedExperts, AStackBesideTheSameExpertIsRefused) {
  Folder f("qwen3_moe");
  f.add(test::stacked_layer(test::Experts(2, kInner, kHidden), "model.layers.0.mlp."));
  f.add({{"model.layers.0.mlp.experts.1.up_proj.weight", torch::randn({kInner, kHidden})}});
  EXPECT_REFUSED(f.run(), "gate_up_proj", "experts.1.up_proj.weight holds too");
}

}  // namespace
}  // namespace fp8::quant
