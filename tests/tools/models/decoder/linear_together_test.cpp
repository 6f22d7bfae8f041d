// SPDX-License-Identifier: Apache-2.0
// A model's logits and the tokens that it generates, with q, k, v and gate, up together and one by one: somebody who
// listens makes the difference, and sees each module by its own name.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/serve.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/tools/models/load.h"
#include "support/hpu_test.h"
#include "support/test_data.h"

namespace fp8::models {
namespace {

struct Products final : runtime::LeafListener {
  std::map<std::string, int> of_module;
  void leaf_begins(const runtime::LeafRecord& leaf) override {
    if (leaf.op == "hpu::fp8_gemm_v2" || leaf.op == "fp8::weight_only_linear") ++of_module[std::string(leaf.module)];
  }
};

struct Generated {
  std::vector<std::int64_t> ids;
  std::vector<at::Tensor> logits;
};

constexpr int kTokens = 12;

Generated generate(CausalLM& model) {
  Generated out;
  const auto cache = model.make_cache(64);
  at::Tensor ids = (at::arange(20, at::kLong) * 11 % 96 + 32).unsqueeze(0);
  for (int i = 0; i < kTokens; ++i) {
    const at::Tensor logits = model.forward(ids.to(test::kHpu), cache.get());
    out.logits.push_back(logits.cpu());
    ids = out.logits.back().select(1, -1).argmax(-1, /*keepdim=*/true);
    out.ids.push_back(ids.item<std::int64_t>());
  }
  return out;
}

void expect_same(const quant::PlanOptions& options, at::ScalarType dtype, const std::string& what) {
  const torch::NoGradGuard no_grad;
  const auto loaded = load_model(test::demo_data() / "kjv-byte-1.7M",
                                 {.dtype = dtype, .device = test::kHpu, .attention = AttentionKind::fused});
  CausalLM& model = *loaded.model;
  quant::convert(model, options);
  quant::serve(model);
  const Generated together = generate(model);
  Products products;
  const runtime::Listening listening(products);
  const Generated alone = generate(model);
  EXPECT_EQ(together.ids, alone.ids) << what;
  for (std::size_t i = 0; i < alone.logits.size(); ++i)
    EXPECT_TRUE(test::same_bits(together.logits[i], alone.logits[i])) << what << ", token " << i;
  for (const char* name : {"self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"})
    EXPECT_EQ(products.of_module["model.layers.0." + std::string(name)], kTokens) << what << ", " << name;
  const bool kept = !options.exclude.empty();
  EXPECT_EQ(products.of_module["model.layers.0.self_attn.k_proj"], kept ? 0 : kTokens) << what;
}

TEST(LinearTogetherInModels, LogitsAndTokensAreThoseOfEach) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto activations : {quant::ActivationScaling::dynamic_token, quant::ActivationScaling::none}) {
      quant::PlanOptions options;
      options.activations = activations;
      expect_same(options, dtype, name_of(activations));
      options.exclude = {"k_proj"};
      expect_same(options, dtype, std::string(name_of(activations)) + ", k in high precision");
    }
}

}  // namespace
}  // namespace fp8::models
