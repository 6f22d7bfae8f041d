// SPDX-License-Identifier: Apache-2.0
// Sequences of different lengths: "thd" against torch's scaled_dot_product_attention of each sequence alone, cu_seqlens
// against masks written out, and rows padded for GroupedLinear against rows that are not.

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/transformer_engine/modules/multihead_attention.h"
#include "transformer_engine/modules/module_checks.h"

namespace fp8::te {
namespace {

using recipes::DelayedScaling;
using Sizes = std::vector<std::int64_t>;

/// [0, n0, n0 + n1, ...].
at::Tensor sums(const Sizes& lengths, at::ScalarType dtype = at::kInt) {
  Sizes s{0};
  for (const std::int64_t n : lengths) s.push_back(s.back() + n);
  return torch::tensor(s, at::kLong).to(dtype).to(test::kHpu);
}

/// The words of the mask types and of the window for one sequence of L queries and S keys; undefined: nothing is
/// masked.
at::Tensor visible_in(const std::string& type, std::pair<std::int64_t, std::int64_t> window, std::int64_t queries,
                      std::int64_t keys) {
  const bool causal = type.find("causal") != std::string::npos;
  if (!causal && window.first < 0 && window.second < 0) return {};
  const std::int64_t d = type == "padding_causal" ? 0 : keys - queries;
  at::Tensor seen = torch::ones({queries, keys}, at::kBool);
  for (std::int64_t i = 0; i < queries; ++i) {
    for (std::int64_t j = 0; j < keys; ++j)
      seen[i][j] = (!causal || j <= i + d) && (window.first < 0 || j >= i + d - window.first) &&
                   (causal || window.second < 0 || j <= i + d + window.second);
  }
  return seen.to(test::kHpu);
}

at::Tensor leaf(const at::Tensor& t) { return t.detach().clone().requires_grad_(true); }

/// sdpa of every sequence alone, rows [begin, begin + length) of the packed tensors.
at::Tensor apart(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sizes& q_begin,
                 const Sizes& q_len, const Sizes& k_begin, const Sizes& k_len, const std::string& type,
                 std::pair<std::int64_t, std::int64_t> window, std::optional<double> scale) {
  at::Tensor out = torch::zeros({q.size(0), q.size(1) * q.size(2)}, on_hpu());
  for (std::size_t i = 0; i < q_len.size(); ++i) {
    const auto part = [](const at::Tensor& t, std::int64_t b, std::int64_t n) {
      return t.slice(0, b, b + n).transpose(0, 1).unsqueeze(0);
    };
    const at::Tensor seen = visible_in(type, window, q_len[i], k_len[i]);
    const bool plain = type.find("causal") != std::string::npos && window.first < 0 &&
                       (type == "padding_causal" || q_len[i] == k_len[i]);
    const at::Tensor y = torch::scaled_dot_product_attention(
        part(q, q_begin[i], q_len[i]), part(k, k_begin[i], k_len[i]), part(v, k_begin[i], k_len[i]),
        plain || !seen.defined() ? std::nullopt : std::optional<at::Tensor>(seen), 0.0, plain, scale,
        q.size(1) != k.size(1));
    out = torch::cat(
        {out.slice(0, 0, q_begin[i]), y.squeeze(0).transpose(0, 1).flatten(1), out.slice(0, q_begin[i] + q_len[i])});
  }
  return out;
}

Sizes begins_of(const Sizes& lengths) {
  Sizes b{0};
  for (std::size_t i = 0; i + 1 < lengths.size(); ++i) b.push_back(b.back() + lengths[i]);
  return b;
}

// Both passes, bit for bit: what a sequence gets does not depend on those beside it. One sequence has one token, one
// has none.
TEST(TePackedAttention, IsTorchsOfEachSequence) {
  const Sizes q_len{5, 1, 0, 9}, k_len{7, 1, 3, 4};
  struct Case {
    const char* type;
    std::pair<std::int64_t, std::int64_t> window;
    bool cross;
  };
  for (const Case& c :
       {Case{"padding", {-1, -1}, false}, Case{"padding", {-1, -1}, true}, Case{"padding", {2, 1}, true},
        Case{"padding_causal", {-1, -1}, false}, Case{"padding_causal", {-1, -1}, true},
        Case{"padding_causal", {3, -1}, false}, Case{"padding_causal_bottom_right", {-1, -1}, false},
        Case{"padding_causal_bottom_right", {-1, -1}, true}, Case{"padding_causal_bottom_right", {1, 0}, true}})
    for (const std::int64_t groups : {4, 2, 1}) {
      const Sizes& keys = c.cross ? k_len : q_len;
      const at::Tensor q = torch::randn({15, 4, 8}, on_hpu()), k = torch::randn({15, groups, 8}, on_hpu()),
                       v = torch::randn({15, groups, 8}, on_hpu()), g = torch::randn({15, 32}, on_hpu());
      DotProductAttention m(DotProductAttentionOptions{.num_attention_heads = 4,
                                                       .kv_channels = 8,
                                                       .num_gqa_groups = groups,
                                                       .qkv_format = "thd",
                                                       .attn_mask_type = c.type,
                                                       .window_size = c.window,
                                                       .softmax_scale = 0.3});
      SequenceLengths s{.cu_seqlens_q = sums(q_len), .max_seqlen_q = 9};
      if (c.cross) s.cu_seqlens_kv = sums(k_len, at::kLong);
      const at::Tensor qa = leaf(q), ka = leaf(k), va = leaf(v), qb = leaf(q), kb = leaf(k), vb = leaf(v);
      const at::Tensor y = m(qa, ka, va, at::Tensor(), s);
      const at::Tensor expected =
          apart(qb, kb, vb, begins_of(q_len), q_len, begins_of(keys), keys, c.type, c.window, 0.3);
      EXPECT_TRUE(same_bits(y, expected)) << c.type << groups;
      y.backward(g);
      expected.backward(g);
      EXPECT_TRUE(same_bits(qa.grad(), qb.grad())) << c.type << groups;
      EXPECT_TRUE(same_bits(ka.grad(), kb.grad())) << c.type << groups;
      EXPECT_TRUE(same_bits(va.grad(), vb.grad())) << c.type << groups;
      EXPECT_TRUE(y.isfinite().all().item<bool>() && qa.grad().isfinite().all().item<bool>());
    }
}

TEST(TePackedAttention, RowsBetweenSequencesTakeNoPart) {
  torch::manual_seed(2);
  at::Tensor q = torch::randn({14, 2, 4}, on_hpu());
  q.slice(0, 3, 5).fill_(NAN);
  q.slice(0, 11).fill_(INFINITY);
  const Sizes length{3, 6}, begin{0, 5};
  DotProductAttention m(DotProductAttentionOptions{
      .num_attention_heads = 2, .kv_channels = 4, .qkv_format = "thd", .attn_mask_type = "padding_causal"});
  const SequenceLengths s{.cu_seqlens_q = sums(length), .cu_seqlens_q_padded = sums({5, 7})};
  const at::Tensor a = leaf(q), b = leaf(q);
  const at::Tensor y = m(a, a, a, at::Tensor(), s),
                   expected = apart(b, b, b, begin, length, begin, length, "padding_causal", {-1, -1}, {});
  EXPECT_TRUE(same_bits(y, expected));
  EXPECT_EQ(y.slice(0, 3, 5).abs().max().item<float>(), 0.0f);
  y.sum().backward();
  expected.sum().backward();
  EXPECT_TRUE(torch::allclose(a.grad(), b.grad(), 1e-5, 1e-6));  // a sum of three, in another order
  EXPECT_EQ(a.grad().slice(0, 11).abs().max().item<float>(), 0.0f);
  const runtime::autocast::AutocastGuard cast(at::kBFloat16);
  EXPECT_EQ(m(q, q, q, at::Tensor(), s).scalar_type(), at::kBFloat16);
}

TEST(TePackedAttention, NoRowsAndNoSequencesAreDefined) {
  DotProductAttention m(DotProductAttentionOptions{
      .num_attention_heads = 2, .kv_channels = 4, .qkv_format = "thd", .attn_mask_type = "padding"});
  for (const Sizes& lengths : {Sizes{}, Sizes{0}, Sizes{0, 0}}) {
    const at::Tensor x = torch::empty({0, 2, 4}, on_hpu()).requires_grad_(true);
    const at::Tensor y = m(x, x, x, at::Tensor(), SequenceLengths{.cu_seqlens_q = sums(lengths)});
    EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 8}));
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
}

TEST(TePackedAttention, NanStaysInItsSequence) {
  torch::manual_seed(3);
  const at::Tensor clean = torch::randn({7, 2, 4}, on_hpu());
  at::Tensor x = clean.clone();
  x.slice(0, 0, 3).fill_(NAN);
  DotProductAttention m(DotProductAttentionOptions{
      .num_attention_heads = 2, .kv_channels = 4, .qkv_format = "thd", .attn_mask_type = "padding"});
  const SequenceLengths s{.cu_seqlens_q = sums({3, 4})};
  const at::Tensor y = m(x, x, x, at::Tensor(), s);
  EXPECT_TRUE(y.slice(0, 0, 3).isnan().all().item<bool>());
  EXPECT_TRUE(same_bits(y.slice(0, 3), m(clean, clean, clean, at::Tensor(), s).slice(0, 3)));
}

TEST(TePackedAttention, NamesWhatItRejects) {
  using O = DotProductAttentionOptions;
  const O thd{.num_attention_heads = 2, .kv_channels = 4, .qkv_format = "thd", .attn_mask_type = "padding"};
  const auto make = [&](auto&& change) {
    O o = thd;
    change(o);
    DotProductAttention m(o);
  };
  EXPECT_REFUSED(make([](O& o) { o.attn_mask_type = "causal"; }), "attn_mask_type: found \"causal\"", "\"thd\"",
                 "\"padding_causal\"");
  EXPECT_REFUSED(make([](O& o) { o.fp8_dpa = true; }), "fp8_dpa: found true", "\"thd\": false");
  DotProductAttention m(thd);
  const at::Tensor x = torch::zeros({7, 2, 4}, on_hpu()), none;
  const auto call = [&](const SequenceLengths& s) { m(x, x, x, at::Tensor(), s); };
  EXPECT_REFUSED(m(x.unsqueeze(0), x, x), "query: found sizes [1, 7, 2, 4]", "[rows, 2, 4]");
  EXPECT_REFUSED(call({}), "cu_seqlens_q: found none", "thd");
  EXPECT_REFUSED(call({.cu_seqlens_q = sums({2, 4})}), "cu_seqlens_q: found 6 at the end", "the 7 rows of the query");
  EXPECT_REFUSED(call({.cu_seqlens_q = torch::tensor({0, 5, 2, 7}, at::kInt)}), "cu_seqlens_q: found 2 at 2",
                 "5 or more");
  EXPECT_REFUSED(call({.cu_seqlens_q = torch::tensor({1, 7}, at::kInt)}), "cu_seqlens_q: found 1 at 0", "allowed: 0");
  EXPECT_REFUSED(call({.cu_seqlens_q = torch::tensor({0.f, 7.f})}), "cu_seqlens_q: found sizes [2] of dtype Float",
                 "Int or Long");
  EXPECT_REFUSED(call({.cu_seqlens_q = sums({3, 4}), .cu_seqlens_kv = sums({7})}), "cu_seqlens_kv: found sizes [2]",
                 "allowed: [3]");
  EXPECT_REFUSED(call({.cu_seqlens_q = sums({7}), .cu_seqlens_kv = sums({8})}), "cu_seqlens_kv: found 8 at the end",
                 "the 7 rows of key and value");
  EXPECT_REFUSED(call({.cu_seqlens_q = sums({3, 4}), .max_seqlen_q = 3}), "max_seqlen_q: found 3",
                 "longest sequence, which has 4");
  EXPECT_REFUSED(call({.cu_seqlens_q = sums({3, 4}), .cu_seqlens_q_padded = sums({4, 5})}),
                 "cu_seqlens_q_padded: found 9 at the end", "up to the 7 rows");
  EXPECT_REFUSED(call({.cu_seqlens_q = sums({3, 4}), .cu_seqlens_q_padded = sums({2, 5})}),
                 "cu_seqlens_q: found a sequence of 3 at 0", "cu_seqlens_q_padded: up to 2");
  EXPECT_REFUSED(m(x, x, x, torch::zeros({1, 1, 1, 7}, on_hpu(at::kBool)), SequenceLengths{.cu_seqlens_q = sums({7})}),
                 "attention_mask: found one", "thd");
  DotProductAttention causal(O{.num_attention_heads = 2, .kv_channels = 4});
  const at::Tensor y = torch::zeros({7, 1, 2, 4}, on_hpu());
  EXPECT_REFUSED(causal(y, y, y, none, SequenceLengths{.cu_seqlens_q = sums({7})}), "cu_seqlens_q: found one",
                 "\"causal\": none");
  DotProductAttention padding(O{.num_attention_heads = 2, .kv_channels = 4, .attn_mask_type = "padding"});
  EXPECT_REFUSED(padding(y, y, y, none, SequenceLengths{.cu_seqlens_q = sums({8})}),
                 "cu_seqlens_q: found a sequence of 8 at 0", "up to 7");
  EXPECT_REFUSED(
      padding(y, y, y, torch::zeros({1, 1, 1, 7}, on_hpu(at::kBool)), SequenceLengths{.cu_seqlens_q = sums({7})}),
      "attention_mask: found one beside cu_seqlens_q");
}

// Padded batches: lengths say what a mask says, and each sequence gets what it gets alone, with any mask type and
// window.
TEST(TePackedAttention, LengthsOfPaddedBatchesAreTheirMasks) {
  torch::manual_seed(4);
  const Sizes q_len{5, 2}, k_len{4, 7};
  for (const char* type : {"padding", "padding_causal", "padding_causal_bottom_right"})
    for (const auto& window :
         {std::pair<std::int64_t, std::int64_t>(-1, -1), std::pair<std::int64_t, std::int64_t>(2, 0)}) {
      const at::Tensor q = torch::randn({2, 5, 2, 4}, on_hpu()), k = torch::randn({2, 7, 2, 4}, on_hpu());
      DotProductAttentionOptions o{.num_attention_heads = 2,
                                   .kv_channels = 4,
                                   .qkv_format = "bshd",
                                   .attn_mask_type = type,
                                   .window_size = window};
      DotProductAttention m(o);
      const at::Tensor y =
          m(q, k, k, at::Tensor(), SequenceLengths{.cu_seqlens_q = sums(q_len), .cu_seqlens_kv = sums(k_len)});
      const at::Tensor rows = torch::cat({q[0], q[1].slice(0, 0, 2)}), keys = torch::cat({k[0].slice(0, 0, 4), k[1]});
      const at::Tensor expected = apart(rows, keys, keys, {0, 5}, q_len, {0, 4}, k_len, type, window, {});
      EXPECT_TRUE(torch::allclose(torch::cat({y[0], y[1].slice(0, 0, 2)}), expected, 1e-4, 1e-5))
          << type << window.first;
      const at::Tensor first =
          m(q.slice(0, 0, 1), k.slice(0, 0, 1), k.slice(0, 0, 1), torch::arange(7, on_hpu()).ge(4).view({1, 1, 1, 7}));
      EXPECT_TRUE(torch::allclose(first[0], expected.slice(0, 0, 5), 1e-4, 1e-5))
          << type << window.first;  // all queries count
    }
}

// Layers on packed rows are the layers on each sequence alone; rotary angles begin anew in every sequence.
TEST(TePackedAttention, LayersTakePackedRows) {
  torch::manual_seed(5);
  const Sizes lengths{4, 1, 7};
  const at::Tensor x = torch::randn({12, 32}, on_hpu()), angles = rotary_position_embedding(8, 9), none;
  for (const bool fused : {false, true}) {
    TransformerLayerOptions o{.hidden_size = 32, .ffn_hidden_size = 48, .num_attention_heads = 4, .num_gqa_groups = 2};
    o.hidden_dropout = o.attention_dropout = 0;
    o.fuse_qkv_params = fused;
    o.self_attn_mask_type = "padding_causal";
    o.attn_input_format = "thd";
    TransformerLayer packed(o);
    test::randomize(*packed);
    o.self_attn_mask_type = "causal";
    o.attn_input_format = "bshd";
    TransformerLayer single(o);
    test::copy_parameters(*packed, *single);
    const auto a = training_step(*packed, x, x, std::nullopt, [&](const at::Tensor& t) {
      return packed(t, none, none, none, std::optional<bool>(), angles, SequenceLengths{.cu_seqlens_q = sums(lengths)});
    });
    const auto b = training_step(*single, x, x, std::nullopt, [&](const at::Tensor& t) {
      std::vector<at::Tensor> parts;
      for (const auto& part : t.split_with_sizes(lengths, 0))
        parts.push_back(single(part.unsqueeze(0), none, none, none, std::optional<bool>(), angles).squeeze(0));
      return torch::cat(parts);
    });
    EXPECT_TRUE(torch::allclose(a.y, b.y, 1e-4, 1e-5));
    EXPECT_TRUE(torch::allclose(a.dx, b.dx, 1e-4, 1e-5));
    for (const auto& [name, g] : a.gradients) EXPECT_TRUE(torch::allclose(g, b.gradients.at(name), 1e-3, 1e-4)) << name;
    const auto fp8 = training_step(*packed, x, x, recipes::Recipe(recipes::CurrentScaling{}), [&](const at::Tensor& t) {
      return packed(t, none, none, none, std::optional<bool>(), none, SequenceLengths{.cu_seqlens_q = sums(lengths)});
    });
    EXPECT_TRUE(fp8.y.isfinite().all().item<bool>());
  }
  TransformerLayerOptions o{.hidden_size = 32, .ffn_hidden_size = 48, .num_attention_heads = 4};
  o.layer_type = "decoder";
  o.self_attn_mask_type = "padding_causal";
  o.enc_dec_attn_mask_type = "padding";
  o.attn_input_format = "thd";
  TransformerLayer decoder(o);
  decoder->eval();
  const at::Tensor encoder = torch::randn({6, 32}, on_hpu());
  const SequenceLengths s{.cu_seqlens_q = sums(lengths), .cu_seqlens_kv = sums({2, 1, 3})};
  const at::Tensor y = decoder(x, none, encoder, none, std::optional<bool>(), none, s);
  const at::Tensor last = decoder(x.slice(0, 5), none, encoder.slice(0, 3), none, std::optional<bool>(), none,
                                  SequenceLengths{.cu_seqlens_q = sums({7}), .cu_seqlens_kv = sums({3})});
  EXPECT_TRUE(torch::allclose(y.slice(0, 5), last, 1e-4, 1e-5));
  EXPECT_TRUE(throws_with({"attn_mask_type: found \"no_mask\"", "\"thd\""}, [&] {
    o.enc_dec_attn_mask_type = "no_mask";
    TransformerLayer t(o);
  }));
}

// ---- rows in multiples of 16

TEST(TeFp8Padding, AddsZeroRowsAndTakesThemOff) {
  const Sizes splits{3, 0, 32, 17};
  const at::Tensor x = torch::randn({52, 5}, on_hpu()).requires_grad_(true);
  for (const std::int64_t align : {0, 8, 16, 32}) {
    const std::optional<std::int64_t> size = align == 0 ? std::nullopt : std::optional<std::int64_t>(align);
    const std::int64_t unit = align == 0 ? 16 : align;
    Fp8Padding pad(4, size);
    Fp8Unpadding unpad(4, size);
    const auto [padded, sizes] = pad->forward(x, splits);
    std::int64_t at = 0, own = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(sizes[i] % unit, 0);
      EXPECT_TRUE(sizes[i] >= splits[i] && sizes[i] < splits[i] + unit);
      EXPECT_TRUE(same_bits(padded.slice(0, at, at + splits[i]), x.slice(0, own, own + splits[i])));
      EXPECT_TRUE(padded.slice(0, at + splits[i], at + sizes[i]).eq(0).all().item<bool>());
      at += sizes[i];
      own += splits[i];
    }
    EXPECT_EQ(padded.size(0), at);
    const at::Tensor back = unpad(padded * 2, splits);
    EXPECT_TRUE(same_bits(back, x * 2));
    x.mutable_grad() = at::Tensor();
    back.sum().backward();
    EXPECT_TRUE(x.grad().eq(2).all().item<bool>());
  }
  Fp8Padding pad(2);
  const at::Tensor even = torch::zeros({48, 5}, on_hpu());
  EXPECT_TRUE(pad->forward(even, {16, 32}).first.is_same(even));
  test::within(fp8_autocast(true, recipes::MXFP8{}),
               [&] { EXPECT_EQ(pad->forward(even, {16, 32}).second, (Sizes{32, 32})); });
  EXPECT_EQ(pad->forward(torch::empty({0, 5}, on_hpu()), {0, 0}).first.size(0), 0);
}

TEST(TeFp8Padding, ChangesNoResultOfGroupedLinear) {
  torch::manual_seed(7);
  const Sizes splits{3, 0, 41};
  const at::Tensor x = torch::randn({44, 32}, on_hpu()), g = torch::randn({44, 48}, on_hpu());
  for (const auto& recipe : test::training_recipes()) {
    GroupedLinear plain(3, 32, 48), padded(3, 32, 48);
    test::randomize(*plain);
    test::copy_parameters(*plain, *padded);
    Fp8Padding pad(3);
    Fp8Unpadding unpad(3);
    const auto* delayed = std::get_if<DelayedScaling>(&recipe);
    const bool stochastic =
        delayed != nullptr && delayed->dialect == recipes::RecipeDialect::habana;  // gradients, by their place
    for (int i = 0; i < 2; ++i) {
      const auto a = training_step(*plain, x, g, recipe, [&](const at::Tensor& t) { return plain(t, splits); });
      const auto b = training_step(*padded, x, g, recipe, [&](const at::Tensor& t) {
        const auto [rows, sizes] = pad->forward(t, splits);
        return unpad(padded(rows, sizes), splits);
      });
      EXPECT_TRUE(same_bits(a.y, b.y)) << recipes::describe(recipe);
      if (stochastic) continue;
      EXPECT_TRUE(torch::allclose(a.dx, b.dx, 1e-5, 1e-5)) << recipes::describe(recipe);
      for (const auto& [name, grad] : a.gradients)
        EXPECT_TRUE(torch::allclose(grad, b.gradients.at(name), 1e-4, 1e-4)) << recipes::describe(recipe) << name;
    }
  }
}

TEST(TeFp8Padding, NamesWhatItRejects) {
  EXPECT_REFUSED(Fp8Padding p(0), "[te::Fp8Padding] num_gemms: found 0");
  EXPECT_REFUSED(Fp8Unpadding p(2, 0), "[te::Fp8Unpadding] align_size: found 0");
  Fp8Padding pad(2);
  Fp8Unpadding unpad(2);
  const at::Tensor x = torch::zeros({5, 4}, on_hpu());
  EXPECT_REFUSED(pad->forward(x, {1, 2, 2}), "[te::Fp8Padding] m_splits: found 3 splits", "num_gemms = 2");
  EXPECT_REFUSED(pad->forward(x, {-1, 6}), "m_splits: found -1");
  EXPECT_REFUSED(pad->forward(x, {2, 2}), "m_splits: found a sum of 4", "the 5 rows");
  EXPECT_REFUSED(unpad->forward(x, {2, 3}),
                 "[te::Fp8Unpadding] m_splits: found a sum of 32 after padding to multiples of 16", "the 5 rows");
}

}  // namespace
}  // namespace fp8::te
