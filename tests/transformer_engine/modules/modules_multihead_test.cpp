// SPDX-License-Identifier: Apache-2.0
// MultiheadAttention: the composition of torch's functions bit for bit with fp8 off, in both formats, and its rotary
// embedding against the formula.
#include "transformer_engine/modules/reference_attention.h"

namespace fp8::te {
namespace {

using test::reference_attention;
using test::small_layer;

TEST(TeMultiheadAttention, OffIsTorchBitForBit) {
  const at::Tensor x = torch::randn({6, 2, 32}, on_hpu()), g = torch::randn({6, 2, 32}, on_hpu()),
                   encoder = torch::randn({9, 2, 32}, on_hpu());
  for (const bool cross : {false, true})
    for (const bool fused : {false, true})
      for (const bool interleaved : {false, true})
        for (const bool layernorm : {false, true})
          for (const std::int64_t groups : {4, 2}) {
            MultiheadAttentionOptions o{
                .hidden_size = 32, .num_attention_heads = 4, .kv_channels = 6, .num_gqa_groups = groups};
            o.attention_dropout = 0;
            o.attn_mask_type = cross ? "no_mask" : "causal";
            o.attention_type = cross ? "cross" : "self";
            o.input_layernorm = layernorm;
            o.normalization = groups == 2 ? "RMSNorm" : "LayerNorm";
            o.fuse_qkv_params = fused;
            o.qkv_weight_interleaved = interleaved;
            MultiheadAttention m(o);
            test::randomize(*m);
            const at::Tensor e = cross ? encoder : at::Tensor();
            EXPECT_TRUE(same_step(
                training_step(*m, x, g, std::nullopt, [&](const at::Tensor& t) { return m(t, at::Tensor(), e); }),
                training_step(*m, x, g, std::nullopt,
                              [&](const at::Tensor& t) { return reference_attention(m, t, e); })))
                << cross << fused << interleaved << layernorm << groups;
          }
}

TEST(TeMultiheadAttention, BatchFirstIsTheSameAttention) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({6, 2, 32}, on_hpu());
  MultiheadAttentionOptions o{.hidden_size = 32, .num_attention_heads = 4};
  o.return_bias = o.input_layernorm = o.return_layernorm_output = true;
  MultiheadAttention a(o);
  o.qkv_format = "bshd";
  MultiheadAttention b(o);
  test::randomize(*a);
  test::copy_parameters(*a, *b);
  a->eval();
  b->eval();
  const ModuleOutputs ya = a->forward_all(x), yb = b->forward_all(x.transpose(0, 1).contiguous());
  EXPECT_TRUE(torch::allclose(ya.y, yb.y.transpose(0, 1), 1e-5, 1e-6));
  EXPECT_TRUE(ya.bias.is_same(a->proj->bias));
  EXPECT_TRUE(same_bits(ya.layernorm_output, a->layernorm(x)));
}

// Elements i and i + R / 2 of a head are turned by position * base^(-2 i / R), in q and k; the rest of the head stays.
// One head, scores from f64.
TEST(TeMultiheadAttention, TurnsQueriesAndKeys) {
  torch::manual_seed(20);
  constexpr int kLength = 5, kDepth = 8, kRotary = 6;
  for (const bool batch_first : {false, true}) {
    MultiheadAttentionOptions o{.hidden_size = kDepth, .num_attention_heads = 1};
    o.attention_dropout = 0;
    o.bias = false;
    o.qkv_format = batch_first ? "bshd" : "sbhd";
    o.init_method = [](at::Tensor w) { w.copy_(torch::eye(kDepth)); };  // q = k = v = x, y = attention
    o.output_layer_init_method = o.init_method;
    MultiheadAttention m(o);
    const at::Tensor x = torch::randn({kLength, kDepth}), angles = rotary_position_embedding(kRotary, 9, 100.0);
    const at::Tensor y =
        m(x.unsqueeze(batch_first ? 0 : 1).to(test::kHpu), at::Tensor(), at::Tensor(), std::optional<bool>(), angles);
    at::Tensor turned = x.to(at::kDouble).clone();
    for (int s = 0; s < kLength; ++s)
      for (int i = 0; i < kRotary / 2; ++i) {
        const double a = s * std::pow(100.0, -2.0 * i / kRotary), u = x[s][i].item<double>(),
                     v = x[s][i + kRotary / 2].item<double>();
        turned[s][i] = u * std::cos(a) - v * std::sin(a);
        turned[s][i + kRotary / 2] = v * std::cos(a) + u * std::sin(a);
      }
    const at::Tensor scores = torch::matmul(turned, turned.t()) / std::sqrt(8.0);
    const at::Tensor visible = torch::ones({kLength, kLength}, at::kBool).tril();
    const at::Tensor expected =
        torch::matmul(torch::softmax(scores.masked_fill(visible.logical_not(), -INFINITY), -1), x.to(at::kDouble));
    EXPECT_TRUE(torch::allclose(y.squeeze(batch_first ? 0 : 1).cpu().to(at::kDouble), expected, 1e-4, 1e-5));
    EXPECT_REFUSED(m(x.unsqueeze(batch_first ? 0 : 1).to(test::kHpu), at::Tensor(), at::Tensor(), std::optional<bool>(),
                     angles.slice(0, 0, 4)),
                   "rotary_pos_emb: found sizes [4, 1, 1, 6]", "[5 or more, 1, 1, an even number up to 8]");
  }
  TransformerLayer layer(small_layer());
  const at::Tensor x = torch::randn({4, 2, 32}, on_hpu()), none, angles = rotary_position_embedding(8, 4);
  EXPECT_FALSE(same_bits(layer(x), layer(x, none, none, none, std::optional<bool>(), angles)));
  EXPECT_REFUSED(rotary_position_embedding(7, 4), "dim: found 7");
}

}  // namespace
}  // namespace fp8::te
