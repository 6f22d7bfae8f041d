// SPDX-License-Identifier: Apache-2.0
// Handlers of modules without a weight, against f64 computations on operands dequantized by the scalar reference.
#include <ATen/autocast_mode.h>

#include "fp8/quant/handlers/attention_handler.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert.h"
#include "fp8/runtime/modules/op_modules.h"
#include "support/fp8_reference.h"
#include "support/hpu_test.h"

namespace fp8::quant {
namespace {

using configs::ModuleKind;

at::Tensor through(const at::Tensor& x, float scale_inv) {
  return test::quantize_reference(x, {scale_inv}, 448.0f).values;
}
NodeScheme scheme(ModuleKind kind, std::vector<float> in, std::vector<float> out = {}) {
  NodeScheme s;
  s.kind = kind;
  s.input_scale_inv = std::move(in);
  s.output_scale_inv = std::move(out);
  return s;
}

template <class Module>
void attach(Module& module, const NodeScheme& s) {
  module->slot()->handler = make_node_handler(s);
}

TEST(MatmulHandler, StaticScalesInEveryForm) {
  torch::manual_seed(1);
  runtime::Matmul m;
  attach(m, scheme(ModuleKind::matmul, {0.01f, 0.02f}));
  const auto check = [&](const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor want = through(a, 0.01f).matmul(through(b, 0.02f));
    const at::Tensor y = m(hpu(a), hpu(b));
    EXPECT_EQ(y.sizes(), want.sizes());
    EXPECT_EQ(y.scalar_type(), a.scalar_type());
    EXPECT_LT(relative_error(y, want), a.scalar_type() == at::kFloat ? 1e-6 : 4e-3) << a.sizes() << " . " << b.sizes();
  };
  for (auto type : {at::kFloat, at::kBFloat16}) {
    check(torch::randn({5, 16}).to(type), torch::randn({16, 7}).to(type));
    check(torch::randn({2, 3, 5, 16}).to(type), torch::randn({2, 3, 16, 7}).to(type));
    check(torch::randn({2, 1, 5, 16}).to(type), torch::randn({3, 16, 7}).to(type));
    check(torch::randn({2, 3, 5, 16}).to(type), torch::randn({2, 3, 7, 16}).to(type).transpose(-2, -1));
  }
}

TEST(MatmulHandler, DynamicScalesArePerRowAndPerColumn) {
  torch::manual_seed(2);
  NodeScheme s = scheme(ModuleKind::matmul, {});
  s.dynamic = true;
  runtime::Matmul m;
  attach(m, s);
  // Rows of a and columns of b of very different size: one scale for all would lose the small ones.
  const at::Tensor a = torch::randn({2, 4, 16}) * torch::tensor({1.0, 1e-4, 1e4, 1.0}).view({4, 1}),
                   b = torch::randn({2, 16, 3}) * torch::tensor({1.0, 1e-5, 1e3});
  const at::Tensor av = test::quantize_by_amax(a, 8).values, bt = b.transpose(-2, -1).contiguous(),
                   bv = test::quantize_by_amax(bt, 6).values.transpose(-2, -1);
  const at::Tensor want = av.matmul(bv), magnitude = av.abs().matmul(bv.abs());
  EXPECT_LE(((f64(m(hpu(a), hpu(b))) - want).abs() / magnitude).max().item<double>(), 1e-6);
  EXPECT_TRUE(f64(m(hpu(torch::zeros({2, 4})), hpu(torch::zeros({4, 3})))).eq(0).all().item<bool>());
}

TEST(MatmulHandler, GradientsAreThoseOfTheDequantizedOperands) {
  torch::manual_seed(3);
  runtime::Matmul m;
  attach(m, scheme(ModuleKind::matmul, {0.01f, 0.02f}));
  at::Tensor a = hpu(torch::randn({3, 4, 8})).requires_grad_(true),
             b = hpu(torch::randn({3, 8, 5})).requires_grad_(true);
  const at::Tensor dy = torch::randn({3, 4, 5});
  m(a, b).backward(hpu(dy));
  EXPECT_LT(relative_error(a.grad(), f64(dy).matmul(through(b, 0.02f).transpose(1, 2))), 1e-6);
  EXPECT_LT(relative_error(b.grad(), through(a, 0.01f).transpose(1, 2).matmul(f64(dy))), 1e-6);
}

TEST(SoftmaxHandler, ProbabilitiesPassThroughFp8) {
  torch::manual_seed(4);
  const float s = 1.0f / 448.0f;
  runtime::Softmax m;
  attach(m, scheme(ModuleKind::softmax, {}, {s}));
  const at::Tensor x = torch::randn({2, 3, 9}) * 3;
  EXPECT_TRUE(same_bits(m(hpu(x), -1), through(at::softmax(x, -1), s).to(at::kFloat)));
  // The operator has no other dimension than the last.
  EXPECT_TRUE(same_bits(m(hpu(x), 1), through(at::softmax(x, 1), s).to(at::kFloat)));
  const at::Tensor y = m(hpu(x.to(at::kBFloat16)), -1);
  const at::Tensor p = at::softmax(f64(x.to(at::kBFloat16)), -1);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_LE((f64(y) - p).abs().max().item<double>(), 0x1p-4 * 0.5 + 0x1p-8);  // half a step of E4M3 at most 1
  at::Tensor leaf = hpu(x).requires_grad_(true);
  m(leaf, -1).pow(2).sum().backward();
  EXPECT_TRUE(leaf.grad().isfinite().all().item<bool>());
  EXPECT_GT(leaf.grad().abs().max().item<double>(), 0);
}

/// softmax(q'.k'^T * scale, seen) . v', P through fp8; f64 but for P's cast. seen: bool, or undefined.
at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const std::vector<float>& s, const at::Tensor& seen) {
  at::Tensor logits =
      through(q, s[0]).matmul(through(k, s[1]).transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
  if (seen.defined()) logits = logits.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  const at::Tensor p = at::softmax(logits, -1).nan_to_num(0.0);
  return through(p.to(at::kFloat), s[3]).matmul(through(v, s[2]));
}

TEST(AttentionHandler, MasksCausalityAndGroupedHeads) {
  torch::manual_seed(5);
  const std::vector<float> s = {0.01f, 0.01f, 0.01f, 1.0f / 448.0f};
  runtime::ModuleFusedSDPA m;
  attach(m, scheme(ModuleKind::fused_sdpa, s));
  const at::Tensor q = torch::randn({2, 4, 6, 8}), k = torch::randn({2, 4, 6, 8}), v = torch::randn({2, 4, 6, 8});
  // bf16 results (2^-9), and now and then a P on the other side of a tie.
  EXPECT_LT(relative_error(m(hpu(q), hpu(k), hpu(v)), attention_reference(q, k, v, s, {})), 0.01);
  runtime::AttentionOptions o{.is_causal = true};
  EXPECT_LT(relative_error(m(hpu(q), hpu(k), hpu(v), o),
                           attention_reference(q, k, v, s, torch::ones({6, 6}, at::kBool).tril())),
            0.01);
  o.is_causal = false;
  at::Tensor seen = torch::rand({2, 1, 6, 6}).gt(0.4);
  seen[0][0][3].fill_(false);  // sees nothing
  o.mask = hpu(seen);
  const at::Tensor masked = m(hpu(q), hpu(k), hpu(v), o);
  EXPECT_LT(relative_error(masked, attention_reference(q, k, v, s, seen)), 0.01);
  EXPECT_TRUE(masked.cpu()[0].select(1, 3).eq(0).all().item<bool>());
  o.mask.reset();
  o.enable_gqa = true;
  const at::Tensor k1 = k.narrow(1, 0, 2).contiguous(), v1 = v.narrow(1, 0, 2).contiguous();
  const at::Tensor want = attention_reference(q, k1.repeat_interleave(2, 1), v1.repeat_interleave(2, 1), s, {});
  EXPECT_LT(relative_error(m(hpu(q), hpu(k1), hpu(v1), o), want), 0.01);
}

TEST(AttentionHandler, TheOutputIsCastWhereItHasAScale) {
  torch::manual_seed(6);
  const std::vector<float> s = {0.01f, 0.01f, 0.01f, 1.0f / 448.0f};
  runtime::ModuleFusedSDPA m;
  attach(m, scheme(ModuleKind::fused_sdpa, s, {0.0078125f}));
  const at::Tensor q = torch::randn({1, 2, 5, 8}), k = torch::randn({1, 2, 7, 8}), v = torch::randn({1, 2, 7, 8});
  const at::Tensor y = m(hpu(q), hpu(k), hpu(v)).cpu();
  EXPECT_TRUE(same_bits(y, through(y, 0.0078125f).to(at::kFloat))) << "every value is a code times the scale";
  EXPECT_LT(relative_error(y, attention_reference(q, k, v, s, {})), 0.05);
}

TEST(AttentionHandler, DynamicScalesAndGradients) {
  torch::manual_seed(7);
  NodeScheme s = scheme(ModuleKind::fused_sdpa, {});
  s.dynamic = true;
  runtime::ModuleFusedSDPA m;
  attach(m, s);
  at::Tensor q = torch::randn({1, 2, 5, 8}), k = torch::randn({1, 2, 5, 8}) * 20, v = torch::randn({1, 2, 5, 8}) * 1e-3;
  const auto inv = [](const at::Tensor& t) { return t.abs().max().item<float>() / 448.0f; };
  EXPECT_LT(relative_error(m(hpu(q), hpu(k), hpu(v)),
                           attention_reference(q, k, v, {inv(q), inv(k), inv(v), 1.0f / 448.0f}, {})),
            0.01);
  k = torch::randn({1, 2, 5, 8});
  at::Tensor leaf = hpu(q).requires_grad_(true);
  const at::Tensor dy = torch::randn({1, 2, 5, 8});
  m(leaf, hpu(k), hpu(v)).backward(hpu(dy));
  at::Tensor plain = through(q, inv(q)).requires_grad_(true);
  at::scaled_dot_product_attention(plain, through(k, inv(k)), through(v, inv(v))).backward(f64(dy));
  EXPECT_LT(relative_error(leaf.grad(), plain.grad()), 1e-5);
}

TEST(KvCacheHandler, KeepsCodesAndGivesValues) {
  runtime::KVCache cache;
  attach(cache, scheme(ModuleKind::kv_cache, {0.02f}, {0.02f}));
  const at::Tensor x = torch::randn({1, 2, 3, 4}), more = torch::randn({1, 2, 1, 4});
  cache->allocate({1, 2, 8, 4}, hpu(x));
  EXPECT_EQ(cache->cache().scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_TRUE(same_bits(cache->update(hpu(x), 2, 0), through(x, 0.02f).to(at::kFloat)));
  EXPECT_TRUE(same_bits(cache->update(hpu(more), 2, 3), through(at::cat({x, more}, 2), 0.02f).to(at::kFloat)));
  EXPECT_TRUE(same_bits(cache(hpu(x)), through(x, 0.02f).to(at::kFloat)));

  runtime::VLLMKVCache paged;
  attach(paged, scheme(ModuleKind::kv_cache, {0.02f}, {0.02f}));
  EXPECT_EQ(paged->cache_dtype(at::kBFloat16), at::kFloat8_e4m3fn);
  const at::Tensor blocks = hpu(torch::zeros({2, 4, 2, 3}, at::kByte)).view(at::kFloat8_e4m3fn),
                   tokens = torch::randn({2, 2, 3});
  paged(hpu(tokens), blocks, hpu(torch::tensor({5, 1}, at::kLong)));
  const at::Tensor read =
      paged->fetch_from_cache(blocks, hpu(torch::tensor({0, 1}, at::kLong)), at::kFloat).cpu().flatten(0, 1);
  EXPECT_TRUE(same_bits(read[5], through(tokens[0], 0.02f).to(at::kFloat)));
  EXPECT_TRUE(same_bits(read[1], through(tokens[1], 0.02f).to(at::kFloat)));

  NodeScheme dynamic = scheme(ModuleKind::kv_cache, {});
  dynamic.dynamic = true;
  EXPECT_REFUSED(make_node_handler(dynamic), "kv_cache", "dynamic");
}

/// Head h of x [B, H, S, E] through fp8 with scale_inv[h].
at::Tensor heads_through(const at::Tensor& x, const std::vector<float>& scale_inv) {
  std::vector<at::Tensor> heads;
  for (std::size_t h = 0; h < scale_inv.size(); ++h)
    heads.push_back(through(x.select(1, static_cast<std::int64_t>(h)).contiguous(), scale_inv[h]));
  return at::stack(heads, 1).to(at::kFloat);
}

TEST(KvCacheHandler, AScaleForEachHead) {
  const std::vector<float> scales = {0.002f, 0.07f, 1.5f};
  const at::Tensor x = torch::randn({2, 3, 4, 5}) * torch::tensor({1.0, 30.0, 600.0}).view({3, 1, 1});
  // Not contiguous; the last head saturates.
  const at::Tensor more =
      torch::randn({2, 1, 3, 5}).transpose(1, 2) * torch::tensor({1.0, 30.0, 1200.0}).view({3, 1, 1});
  runtime::KVCache cache;
  attach(cache, scheme(ModuleKind::kv_cache, scales, scales));
  cache->allocate({2, 3, 8, 5}, hpu(x));
  EXPECT_EQ(cache->cache().scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_TRUE(same_bits(cache->update(hpu(x), 2, 0), heads_through(x, scales)));
  EXPECT_TRUE(same_bits(cache->update(hpu(more), 2, 4), heads_through(at::cat({x, more}, 2), scales)));
  EXPECT_TRUE(same_bits(cache(hpu(x)), heads_through(x, scales)));
  const at::Tensor rounded = x.to(at::kBFloat16);
  EXPECT_TRUE(same_bits(cache(hpu(rounded)), heads_through(rounded.to(at::kFloat), scales).to(at::kBFloat16)));

  NodeScheme kept = scheme(ModuleKind::kv_cache, scales, scales);
  kept.compute = Compute::qdq;
  runtime::KVCache plain;
  attach(plain, kept);
  EXPECT_TRUE(same_bits(plain(hpu(x)), heads_through(x, scales)));
  EXPECT_REFUSED(cache(hpu(torch::randn({2, 4, 4, 5}))), "3 heads", "[2, 4, 4, 5]");
  EXPECT_REFUSED(cache(hpu(torch::randn({3, 5}))), "3 heads");

  const auto h = make_node_handler(scheme(ModuleKind::kv_cache, scales, scales));
  EXPECT_EQ(h->describe(), "E4M3 kv_cache, static head scales, ocp");
  h->set_output_scale_inv(1, 0.5f);
  EXPECT_EQ(h->scheme().input_scale_inv, (std::vector<float>{0.002f, 0.5f, 1.5f}));
  EXPECT_EQ(h->scheme().output_scale_inv, h->scheme().input_scale_inv);
}

struct Attention : torch::nn::Module {
  Attention() : torch::nn::Module("Attention") {
    register_module("k_cache", keys);
    register_module("v_cache", values);
  }
  runtime::KVCache keys, values;
};

TEST(KvCacheHandler, ScalesOfACheckpointAreAttachedToAllLayersOrNone) {
  torch::nn::ModuleDict model(std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>{
      {"a", std::make_shared<Attention>()}, {"b", std::make_shared<Attention>()}, {"matmul", runtime::Matmul().ptr()}});
  const auto nodes = measure::op_nodes(*model);
  EXPECT_EQ(cached_attention(nodes), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(kv_cache_scheme(nodes), nullptr);
  const KvScales a{"a", {0.02f}, {0.04f}}, b{"b", {0.01f, 0.03f}, {0.05f, 0.06f}};
  const auto attach_both = [&](const KvScales& first, const KvScales& second) {
    attach_kv_cache(nodes, {first, second}, Numbers{}, "DIR");
  };
  EXPECT_REFUSED(attach_kv_cache(nodes, {a}, Numbers{}, "DIR"), "DIR", "'b'", "other layers");
  EXPECT_REFUSED(attach_both(a, {"c", {1.0f}, {1.0f}}), "DIR", "'c.k_cache'", "no such");
  EXPECT_REFUSED(attach_both(a, {"b", {1.0f}, {0.0f}}), "DIR: b.v_cache", "scale_inv");
  EXPECT_EQ(kv_cache_scheme(nodes), nullptr) << "after an error nothing is attached";
  attach_both(a, b);
  EXPECT_REFUSED(attach_both(a, b), "DIR: a.k_cache", "handled already");
  ASSERT_NE(kv_cache_scheme(nodes), nullptr);
  EXPECT_EQ(kv_cache_scheme(nodes)->input_scale_inv, a.k);
  const at::Tensor x = torch::randn({1, 2, 3, 4});
  auto* second = model["b"]->as<Attention>();
  EXPECT_TRUE(same_bits(second->keys(hpu(x)), heads_through(x, b.k)));
  EXPECT_TRUE(same_bits(second->values(hpu(x)), heads_through(x, b.v)));
  EXPECT_TRUE(same_bits(model["a"]->as<Attention>()->values(hpu(x)), through(x, 0.04f).to(at::kFloat)));
  detach_kv_cache(nodes);
  EXPECT_EQ(kv_cache_scheme(nodes), nullptr);
  EXPECT_TRUE(same_bits(second->keys(hpu(x)), x));
}

TEST(NodeHandler, QuantizeDequantizeGivesTheProductOfTheSameValues) {
  torch::manual_seed(9);
  const at::Tensor a = torch::randn({5, 16}), b = torch::randn({16, 7});
  runtime::Matmul m;
  attach(m, scheme(ModuleKind::matmul, {0.01f, 0.02f}));
  const at::Tensor in_fp8 = m(hpu(a), hpu(b));
  NodeScheme qdq = scheme(ModuleKind::matmul, {0.01f, 0.02f});
  qdq.compute = Compute::qdq;
  attach(m, qdq);
  EXPECT_LT(relative_error(m(hpu(a), hpu(b)), f64(in_fp8)), 1e-5);
  runtime::KVCache cache;
  NodeScheme kept = scheme(ModuleKind::kv_cache, {0.02f}, {0.02f});
  kept.compute = Compute::qdq;
  attach(cache, kept);
  cache->allocate({5, 16}, hpu(a));
  EXPECT_EQ(cache->cache().scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(cache->update(hpu(a), 0, 0), through(a, 0.02f).to(at::kFloat)));
}

// Who adds a kind is told here what it lacks: its scales (scheme.cpp), its handler's row (node_handler.cpp).
TEST(NodeHandler, EveryKindWithoutAWeightHasScalesAndAHandler) {
  constexpr int kExperts = 2;
  const auto tensors = [](int count) {
    return std::vector<measure::Amax>(static_cast<std::size_t>(count), measure::Amax{1.0f});
  };
  for (const auto& info : configs::module_kinds()) {
    if (info.weight || info.kind == ModuleKind::no_quantize) continue;
    SCOPED_TRACE(configs::name_of(info.kind));
    const int experts = info.kind == ModuleKind::dynamic_moe ? kExperts : 0;
    const measure::Measurement measured{"m", tensors(info.inputs), tensors(info.outputs + experts), std::nullopt};
    NodeScheme s = scheme(info.kind, {});
    std::vector<std::string> warnings;
    set_node_scales(s, &measured, {}, "m", kExperts, warnings);
    EXPECT_THAT(make_node_handler(s)->describe(), HasSubstr(configs::name_of(info.kind)));
  }
}

TEST(NodeHandler, ScalesAreCheckedAndCanBeChanged) {
  EXPECT_REFUSED(make_node_handler(scheme(ModuleKind::matmul, {1.0f})), "matmul", "expected 2 input");
  for (float bad : {0.0f, -1.0f, INFINITY, NAN})
    EXPECT_REFUSED(make_node_handler(scheme(ModuleKind::matmul, {1.0f, bad})), "scale_inv");
  EXPECT_REFUSED(make_node_handler(scheme(ModuleKind::linear, {1.0f})), "no handler", "linear");
  const auto h = make_node_handler(scheme(ModuleKind::kv_cache, {0.5f}, {0.5f}));
  h->set_input_scale_inv(0, 0.25f);
  EXPECT_EQ(h->scheme().output_scale_inv, std::vector<float>{0.25f}) << "one scale on both sides";
  EXPECT_REFUSED(h->set_input_scale_inv(3, 1.0f), "input 3");
  EXPECT_REFUSED(h->set_input_scale_inv(0, 0.0f), "scale_inv");
  EXPECT_EQ(h->scheme().input_scale_inv, std::vector<float>{0.25f});
}

// Gradients of a quantized Linear: dx = dy . dequantized w, db = sum of dy; the second derivative is refused by name.

struct Frozen {
  torch::nn::Linear linear{nullptr};
  at::Tensor values;
  explicit Frozen(bool bias, ActivationScaling activations = ActivationScaling::dynamic_token,
                  at::ScalarType dtype = at::kFloat) {
    torch::manual_seed(31);
    linear = torch::nn::Linear(torch::nn::LinearOptions(24, 10).bias(bias));
    linear->to(dtype);
    linear->to(test::kHpu);
    values = test::quantize_by_amax(linear->weight, 10).values;
    PlanOptions o{.activations = activations, .weights = Granularity::channel};
    torch::nn::Sequential holder;
    holder->push_back("m", linear);
    convert(*holder, o);
    linear->weight.set_requires_grad(false);
  }
};

TEST(StraightThrough, InputAndBiasLearn) {
  for (auto activations : {ActivationScaling::none, ActivationScaling::dynamic_token})
    for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{24}, {5, 24}, {2, 3, 24}}) {
      Frozen f(true, activations);
      const at::Tensor plain = hpu(torch::randn(sizes)), x = plain.clone().requires_grad_(true);
      const at::Tensor y = f.linear(x);
      test::within(torch::NoGradGuard(), [&] { EXPECT_TRUE(same_bits(y, f.linear(plain))); });
      const at::Tensor dy = hpu(torch::randn(y.sizes()));
      y.backward(dy);
      const at::Tensor d = dy.cpu().to(at::kDouble);
      EXPECT_TRUE(at::allclose(x.grad().cpu().to(at::kDouble), d.matmul(f.values), 1e-5, 1e-6));
      EXPECT_TRUE(at::allclose(f.linear->bias.grad().cpu().to(at::kDouble), d.reshape({-1, 10}).sum(0), 1e-5, 1e-6));
      EXPECT_FALSE(f.linear->weight.grad().defined());
    }
}

TEST(StraightThrough, TheGradientHasTheInputsType) {
  Frozen f(true);
  at::Tensor x = hpu(torch::randn({3, 24})).requires_grad_(true);
  at::autocast::set_autocast_enabled(at::kHPU, true);
  at::autocast::set_autocast_dtype(at::kHPU, at::kBFloat16);
  const at::Tensor y = f.linear(x);
  at::autocast::set_autocast_enabled(at::kHPU, false);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(f.linear->bias.grad().scalar_type(), at::kFloat);
  // w and the sum in bf16.
  EXPECT_TRUE(at::allclose(x.grad().cpu().to(at::kDouble), f.values.sum(0).expand({3, 24}), 0.02, 0.02));
}

TEST(StraightThrough, BackwardTwiceWithARetainedGraph) {
  Frozen f(false);
  const at::Tensor x = hpu(torch::randn({4, 24})).requires_grad_(true);
  const at::Tensor y = f.linear(x).sum();
  const auto first = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true)[0];
  EXPECT_TRUE(same_bits(first, torch::autograd::grad({y}, {x})[0]));
}

TEST(StraightThrough, ASecondDerivativeIsRefusedByName) {
  Frozen f(true);
  const at::Tensor x = hpu(torch::randn({4, 24})).requires_grad_(true);
  const at::Tensor y = f.linear(x).pow(2).sum();
  const auto g = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];  // first order passes
  EXPECT_REFUSED((g.pow(2).sum() + x.sum()).backward(), "fp8 product of fp8::quant has no second derivative");
  const auto b = torch::autograd::grad({y}, {f.linear->bias}, {}, true, true)[0];
  EXPECT_REFUSED((b.pow(2).sum() + x.sum()).backward(), "no second derivative");
}

TEST(StraightThrough, NothingIsRecordedWithoutNeed) {
  Frozen f(true);
  f.linear->bias.set_requires_grad(false);
  EXPECT_FALSE(f.linear(hpu(torch::randn({4, 24}))).requires_grad());
}

}  // namespace
}  // namespace fp8::quant
