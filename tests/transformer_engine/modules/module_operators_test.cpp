// SPDX-License-Identifier: Apache-2.0
// The operators that modules in Python are made of.
#include "support/operator_call.h"
#include "transformer_engine/modules/module_checks.h"

namespace fp8::te {
namespace {

/// With autocast as modules have it.
TEST(ModuleOperators, HaveTheBitsOfModules) {
  const at::Tensor q = at::randn({6, 2, 4, 8}, on_hpu()), k = at::randn({6, 2, 2, 8}, on_hpu());
  const at::Tensor x = at::randn({6, 16}, on_hpu()), w = at::randn({16}, on_hpu()).to(at::kBFloat16);
  te::DotProductAttention attention(
      te::DotProductAttentionOptions{.num_attention_heads = 4, .kv_channels = 8, .num_gqa_groups = 2});
  const at::Tensor angles = te::rotary_position_embedding(8, 6);
  for (const bool autocast : {false, true}) {
    const runtime::autocast::AutocastGuard region(at::kBFloat16, autocast);
    const auto attend =
        test::call_fp8("dot_product_attention", {q, k, k, c10::IValue(), 4, 2, 8, "sbhd", "causal"}).toTensor();
    EXPECT_TRUE(same_bits(attend, attention->forward(q, k, k))) << autocast;
    EXPECT_TRUE(same_bits(test::call_fp8("activated", {x, "swiglu"}).toTensor(), te::activate("swiglu", x)));
    EXPECT_TRUE(same_bits(test::call_fp8("normalized", {x, w, c10::IValue(), 1e-5, true}).toTensor(),
                          te::normalize(te::Normalization::RMSNorm, x, w, {}, 1e-5, true)));
    EXPECT_TRUE(same_bits(test::call_fp8("rotated", {q, angles, "sbhd"}).toTensor(), te::rotated(q, angles)));
  }
  const auto turned = test::call_fp8("rotary_angles", {8, 6, 10000.0, at::Device(at::kHPU, 0)}).toTensor();
  EXPECT_TRUE(same_bits(turned, angles));
  EXPECT_REFUSED(test::call_fp8("dot_product_attention", {q, k, k, c10::IValue(), 4, 2, 8, "sbhd", "triangle"}),
                 "attn_mask_type", "triangle");
  EXPECT_REFUSED(test::call_fp8("rotated", {q, angles.narrow(0, 0, 5), "sbhd"}), "rotary_pos_emb", "6 or more");
}

/// Packed sequences in a window, and attention in fp8 with a state of the caller's.
TEST(ModuleOperators, HaveTheBitsOfAttentions) {
  torch::manual_seed(6);
  const at::Tensor q = at::randn({9, 4, 8}, on_hpu()), k = at::randn({9, 2, 8}, on_hpu()),
                   sums = at::tensor({0, 4, 9}, at::kInt);
  te::DotProductAttention packed(te::DotProductAttentionOptions{.num_attention_heads = 4,
                                                                .kv_channels = 8,
                                                                .num_gqa_groups = 2,
                                                                .qkv_format = "thd",
                                                                .attn_mask_type = "padding_causal",
                                                                .window_size = {2, 0}});
  const std::vector<std::int64_t> window{2, 0};
  const c10::IValue none;
  const auto found = test::call_fp8("dot_product_attention",
                                    {q, k, k, none, 4, 2, 8, "thd", "padding_causal", 0.0, none, window, sums});
  EXPECT_TRUE(same_bits(found.toTensor(), packed->forward(q, k, k, {}, {.cu_seqlens_q = sums})));

  te::FusedAttention fused(te::FusedAttentionOptions{.enable_recompute = true, .name = "a"});
  const auto state = c10::make_intrusive<te::State>("a", "", false, true);
  const at::Tensor heads = at::randn({2, 4, 6, 8}, on_hpu());
  for (int step = 0; step < 3; ++step) {
    const auto run = [&](bool as_operator) {
      const at::Tensor x = heads.clone().requires_grad_(true);
      at::Tensor y;
      {
        const te::fp8_autocast region(true, recipes::DelayedScaling::nvidia());
        y = as_operator ? test::call_fp8("fused_attention", {x, x, x, none, true, "none", 0.0, none, true, true, state})
                              .toTensor()
                        : fused->forward(x, x, x, {}, true);
      }
      y.square().sum().backward();
      return std::pair(y.detach(), x.grad());
    };
    const auto [y, dx] = run(true);
    const auto [module_y, module_dx] = run(false);
    EXPECT_TRUE(same_bits(y, module_y)) << step;
    EXPECT_TRUE(same_bits(dx, module_dx)) << step;
  }
  EXPECT_EQ(fused->fp8_states()[0]->step(), 3);
  EXPECT_REFUSED(state->linear(q, k, {}), "'a'", "one of an attention");
}

}  // namespace
}  // namespace fp8::te
