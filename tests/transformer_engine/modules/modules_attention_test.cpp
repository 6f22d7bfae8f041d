// SPDX-License-Identifier: Apache-2.0
// DotProductAttention is torch's function bit for bit with fp8 off, and near it in fp8 where asked. FusedAttention:
// modules_attention_fused_test.
#include "fp8/transformer_engine/modules/attention.h"
#include "module_checks.h"
#include "transformer_engine/modules/attention_formula.h"

namespace fp8::te {
namespace {

using test::f64;
using test::formula;
using test::near_by;
using test::on_hpu;
using test::same_bits;
using test::throws_with;

struct MaskCase {
  const char* type;
  std::pair<std::int64_t, std::int64_t> window = {-1, -1};
  std::int64_t queries = 9, keys = 9;
};

/// Which keys a query sees by the words of the options, one by one. Padding, behind the keys, does not count in d.
at::Tensor reference_visible(const MaskCase& c, const at::Tensor& masked_out) {
  const std::string type = c.type;
  const bool causal = type.find("causal") != std::string::npos;
  at::Tensor seen = torch::ones({2, 1, c.queries, c.keys}, at::kBool);
  for (int b = 0; b < 2; ++b) {
    const std::int64_t padding =
        type.find("padding") == 0 && c.keys != c.queries ? masked_out[b].sum().item<std::int64_t>() : 0;
    const std::int64_t d = causal && type.find("bottom_right") == std::string::npos ? 0 : c.keys - padding - c.queries;
    for (std::int64_t i = 0; i < c.queries; ++i) {
      for (std::int64_t j = 0; j < c.keys; ++j) {
        bool s = !causal || j <= i + d;
        s = s && (c.window.first < 0 || j >= i + d - c.window.first) &&
            (c.window.second < 0 || j <= i + d + c.window.second);
        if (masked_out.defined()) s = s && !masked_out.expand({2, 1, c.queries, c.keys})[b][0][i][j].item<bool>();
        seen[b][0][i][j] = s;
      }
    }
  }
  return seen;
}

TEST(TeDotProductAttention, OffIsTorchBitForBit) {
  torch::manual_seed(1);
  const std::vector<MaskCase> cases{{"no_mask"},
                                    {"no_mask", {-1, -1}, 5, 9},
                                    {"no_mask", {2, 1}},
                                    {"causal"},
                                    {"causal", {3, -1}},
                                    {"causal", {-1, -1}, 5, 9},
                                    {"causal_bottom_right", {-1, -1}, 5, 9},
                                    {"causal_bottom_right", {2, 0}, 5, 9},
                                    {"padding"},
                                    {"padding", {-1, -1}, 5, 9},
                                    {"padding_causal"},
                                    {"padding_causal_bottom_right", {-1, -1}, 5, 9},
                                    {"arbitrary"}};
  for (const MaskCase& c : cases) {
    for (const std::int64_t groups : {4, 2, 1}) {
      for (const char* format : {"sbhd", "bshd"}) {
        const at::Tensor q = torch::randn({2, c.queries, 4, 8}, on_hpu()),
                         k = torch::randn({2, c.keys, groups, 8}, on_hpu()),
                         v = torch::randn({2, c.keys, groups, 8}, on_hpu());
        at::Tensor masked;  // the second sequence has three keys less
        if (std::string(c.type).find("padding") == 0) {
          masked = torch::zeros({2, 1, 1, c.keys}, on_hpu(at::kBool));
          masked.select(0, 1).slice(-1, c.keys - 3).fill_(true);
        }
        if (std::string(c.type) == "arbitrary")
          masked = torch::rand({2, 1, 9, 9}, on_hpu()).gt(0.7).logical_and(torch::eye(9, on_hpu()).eq(0));
        DotProductAttention m(DotProductAttentionOptions{.num_attention_heads = 4,
                                                         .kv_channels = 8,
                                                         .num_gqa_groups = groups,
                                                         .qkv_format = format,
                                                         .attn_mask_type = c.type,
                                                         .window_size = c.window});
        const at::Tensor visible = reference_visible(c, masked.defined() ? masked.cpu() : masked);
        const bool plain_causal = std::string(c.type) == "causal" && c.window.first < 0,
                   nothing = std::string(c.type) == "no_mask" && c.window.first < 0;
        const auto t = [](const at::Tensor& x) { return x.transpose(1, 2); };
        const std::optional<at::Tensor> mask =
            plain_causal || nothing ? std::nullopt : std::optional<at::Tensor>(visible.to(test::kHpu));
        at::Tensor expected =
            torch::scaled_dot_product_attention(t(q), t(k), t(v), mask, 0.0, plain_causal, std::nullopt, groups != 4)
                .transpose(1, 2)
                .flatten(2);
        at::Tensor y;
        if (std::string(format) == "sbhd") {
          y = m(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), masked).transpose(0, 1);
        } else {
          y = m(q, k, v, masked);
        }
        EXPECT_TRUE(same_bits(y, expected)) << c.type << " " << format;
        const at::Tensor exact = formula(f64(t(q)), f64(t(k)), f64(t(v)), visible).transpose(1, 2).flatten(2);
        EXPECT_TRUE(torch::allclose(y.cpu().to(at::kDouble), exact.detach(), 1e-4, 1e-5))
            << c.type << " groups " << groups;
      }
    }
  }
}

TEST(TeDotProductAttention, NamesWhatItRejects) {
  using O = DotProductAttentionOptions;
  const auto make = [](O o) { return [o] { DotProductAttention m(o); }; };
  EXPECT_TRUE(throws_with({"num_attention_heads"}, make({})));
  EXPECT_TRUE(throws_with({"num_gqa_groups: found 3", "divisors of num_attention_heads = 4"},
                          make({.num_attention_heads = 4, .kv_channels = 8, .num_gqa_groups = 3})));
  EXPECT_TRUE(throws_with({"qkv_format: found \"bhsd\"", "\"sbhd\", \"bshd\", \"thd\""},
                          make({.num_attention_heads = 4, .kv_channels = 8, .qkv_format = "bhsd"})));
  EXPECT_TRUE(throws_with({"attn_mask_type: found \"triangle\"", "\"causal\"", "\"arbitrary\""},
                          make({.num_attention_heads = 4, .kv_channels = 8, .attn_mask_type = "triangle"})));
  EXPECT_TRUE(throws_with({"window_size: found (-2, 0)"},
                          make({.num_attention_heads = 4, .kv_channels = 8, .window_size = {-2, 0}})));
  EXPECT_TRUE(throws_with({"attention_dropout: found 1.5"},
                          make({.num_attention_heads = 4, .kv_channels = 8, .attention_dropout = 1.5})));
  DotProductAttention m(O{.num_attention_heads = 4, .kv_channels = 8});
  const at::Tensor q = torch::zeros({5, 2, 4, 8}, on_hpu()), mask = torch::zeros({2, 1, 1, 5}, on_hpu(at::kBool));
  EXPECT_TRUE(throws_with({"attention_mask: found one", "\"causal\": none"}, [&] { m(q, q, q, mask); }));
  EXPECT_TRUE(
      throws_with({"key: found sizes [5, 2, 2, 8]", "[length, batch, 4, 8]"}, [&] { m(q, q.slice(2, 0, 2), q); }));
  DotProductAttention padded(O{.num_attention_heads = 4, .kv_channels = 8, .attn_mask_type = "padding"});
  EXPECT_TRUE(throws_with({"attention_mask: found none", "Bool"}, [&] { padded(q, q, q); }));
  EXPECT_TRUE(
      throws_with({"attention_mask: found sizes [2, 5]", "[2, 1, 1, 5]"}, [&] { padded(q, q, q, mask.view({2, 5})); }));
}

// fp8_dpa: in fp8 inside a region, torch's outside.
TEST(TeDotProductAttention, RunsInFp8WhereAsked) {
  torch::manual_seed(12);
  const at::Tensor q = torch::randn({7, 2, 4, 8}, on_hpu()), k = torch::randn({7, 2, 2, 8}, on_hpu());
  DotProductAttentionOptions o{.num_attention_heads = 4, .kv_channels = 8, .num_gqa_groups = 2};
  DotProductAttention high(o);
  o.fp8_dpa = true;
  DotProductAttention m(o);
  EXPECT_TRUE(same_bits(m(q, k, k), high(q, k, k)));
  const fp8_autocast region(true, recipes::CurrentScaling{});
  const at::Tensor y = m(q, k, k), exact = high(q, k, k);
  EXPECT_FALSE(same_bits(y, exact));
  EXPECT_TRUE(near_by(y, exact, 0.125, 0.0675));
}

}  // namespace
}  // namespace fp8::te
