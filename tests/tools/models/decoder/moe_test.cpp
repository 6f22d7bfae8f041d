// SPDX-License-Identifier: Apache-2.0
// Mixtral: logits against those that transformers 5.23 gave for the same weights, both forms of expert weights,
// messages.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <torch/nn/module.h>

#include <cmath>

#include "fp8/measure/model/module_tree.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/models/load.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::models {
namespace {

using testing::TinyMixtral;

/// MixtralForCausalLM(vocab 32, H 16, F 24, 2 layers, 4 heads, 2 kv heads, 4 experts, top 2, eps 1e-5, theta 1e4), the
/// weights of TinyMixtral, ids (7 i + 3) mod 32 for i < 9: logits of the last position.
constexpr float kExpected[32] = {-0.490687f, 0.192377f,  0.060693f,  0.912907f,  -0.288463f, 0.601851f,  -0.352495f,
                                 0.442797f,  -0.120072f, -0.405856f, -0.359588f, -0.792800f, 0.446748f,  0.027425f,
                                 0.484523f,  -0.900479f, -0.060375f, 0.079572f,  -0.143254f, 0.166673f,  -0.246656f,
                                 -0.073335f, -0.165740f, 0.323439f,  0.093614f,  -0.512299f, -0.607556f, -0.220215f,
                                 0.161448f,  0.470490f,  0.051644f,  0.124963f};

LoadedModel load(const TinyMixtral& checkpoint, const LoadOptions& options = {}) {
  const test::TempDir folder;
  checkpoint.write(folder.path());
  return load_model(folder.path(), options);
}

at::Tensor last_logits(LoadedModel& loaded) {
  const at::NoGradGuard no_grad;
  const auto ids = ((at::arange(9, at::kLong) * 7 + 3) % 32).unsqueeze(0);
  return loaded.model->forward(ids).select(0, 0).select(0, -1).contiguous();
}

void expect_logits(LoadedModel& loaded) {
  const auto logits = last_logits(loaded);
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(logits.const_data_ptr<float>()[i], kExpected[i], 2e-6) << i;
}

TEST(Mixtral, LogitsEqualTransformers) {
  auto loaded = load({});
  expect_logits(loaded);
  EXPECT_TRUE(loaded.unused.empty());
}

TEST(Mixtral, EagerAttentionToo) {
  LoadOptions options;
  options.attention = AttentionKind::eager;
  auto loaded = load({}, options);
  expect_logits(loaded);
}

TEST(Mixtral, StackedExpertsGiveTheSameBits) {
  TinyMixtral stacked;
  stacked.stack();
  auto a = load({}), b = load(stacked);
  EXPECT_TRUE(at::equal(last_logits(a), last_logits(b)));
  EXPECT_TRUE(b.unused.empty());
}

TEST(Mixtral, ExpertsAreNodesNamedAsVllms) {
  auto loaded = load({});
  std::vector<std::string> weights, ops;
  for (const auto& m : measure::weight_modules(*loaded.model)) {
    if (m.type == "MoeMatmul" || m.name.find("gate") != std::string::npos) weights.push_back(m.name + ":" + m.type);
  }
  for (const auto& n : measure::op_nodes(*loaded.model)) {
    if (n.name.find("moe") != std::string::npos) ops.push_back(n.name + ":" + n.type);
  }
  const std::string layer = "model.layers.0.block_sparse_moe.";
  EXPECT_THAT(weights, ::testing::IsSupersetOf({layer + "gate:Linear", layer + "experts.moe_op.w13_list.0:MoeMatmul",
                                                layer + "experts.moe_op.w2_list.3:MoeMatmul"}));
  EXPECT_EQ(weights.size(), 2u * (1 + 2 * TinyMixtral::kExperts));
  EXPECT_THAT(ops, ElementsAre("model.layers.0.block_sparse_moe.experts.moe_op:VllmMixtureOfExpertsOp",
                               "model.layers.1.block_sparse_moe.experts.moe_op:VllmMixtureOfExpertsOp"));
}

std::string load_error(const TinyMixtral& checkpoint) {
  return error_of<io::Error>([&] { load(checkpoint); });
}

TEST(Mixtral, WhatIsRefused) {
  TinyMixtral missing;
  missing.tensors.erase("model.layers.1.block_sparse_moe.experts.2.w3.weight");
  EXPECT_THAT(load_error(missing), HasSubstr("'model.layers.1.block_sparse_moe.experts.2.w3.weight' is missing"));
  TinyMixtral few;
  few.config["num_local_experts"] = 5;
  EXPECT_THAT(load_error(few), HasSubstr("experts.4.w2.weight' is missing"));
  TinyMixtral stacked;
  stacked.stack();
  stacked.config["num_local_experts"] = 5;
  EXPECT_THAT(load_error(stacked),
              HasSubstr("found shape [4, 16, 24], config.json asks for matrix 4 of a stack of [16, 24]"));
  TinyMixtral nan;
  nan.tensors.at("model.layers.0.block_sparse_moe.experts.1.w2.weight").values[5] = std::nanf("");
  EXPECT_THAT(load_error(nan), HasSubstr("experts.1.w2.weight' holds NaN"));
  TinyMixtral top;
  top.config["num_experts_per_tok"] = 5;
  EXPECT_THAT(load_error(top), HasSubstr("num_experts_per_tok"));
  TinyMixtral window;
  window.config["sliding_window"] = "4096";
  EXPECT_THAT(load_error(window), HasSubstr("sliding_window"));
}

}  // namespace
}  // namespace fp8::models
