// SPDX-License-Identifier: Apache-2.0
// The modules of attention: with an empty slot each is its plain ATen call, bit for bit; with a handler it is the
// handler's.
#include "fp8/runtime/modules/op_modules.h"

#include "fp8/runtime/modules/node.h"
#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

/// Doubles what passes, keeps caches as bytes of halves, and remembers what it was asked.
struct Doubling final : ModuleHandler {
  std::vector<std::string> calls;
  std::optional<double> scale;
  std::string mode;

  at::Tensor matmul(const MatmulCall& call) override { return remember("matmul", call.original()); }
  at::Tensor softmax(const SoftmaxCall& call) override {
    return remember("softmax" + std::to_string(call.dim), call.original());
  }
  at::Tensor attention(const AttentionCall& call) override {
    scale = call.scale, mode = call.softmax_mode;
    return remember(call.is_causal ? "causal" : "attention", call.original());
  }
  at::ScalarType cache_dtype(at::ScalarType) const override { return at::kHalf; }
  at::Tensor store(const at::Tensor& current) override {
    calls.push_back("store");
    return (current * 2).to(at::kHalf);
  }
  at::Tensor fetch(const at::Tensor& stored, at::ScalarType dtype) override {
    calls.push_back("fetch");
    return stored.to(dtype);
  }
  std::string describe() const override { return "doubles"; }

 private:
  at::Tensor remember(const std::string& name, const at::Tensor& result) {
    calls.push_back(name);
    return result * 2;
  }
};

std::shared_ptr<Doubling> handle(const OpModule& module) {
  auto handler = std::make_shared<Doubling>();
  module.slot()->handler = handler;
  return handler;
}

TEST(AttentionModules, MatmulIsAtensUntilHandled) {
  const at::Tensor a = hpu(torch::randn({2, 3, 4, 5})), b = hpu(torch::randn({2, 3, 5, 6}));
  for (Matmul m : {Matmul(), Matmul(std::static_pointer_cast<MatmulImpl>(B2BMatmul().ptr()))}) {
    EXPECT_TRUE(same_bits(m(a, b), torch::matmul(a, b)));
    const auto handler = handle(*m);
    EXPECT_TRUE(same_bits(m(a, b), torch::matmul(a, b) * 2));
    EXPECT_EQ(handler->calls, std::vector<std::string>{"matmul"});
    m->slot()->handler = nullptr;
    EXPECT_TRUE(same_bits(m(a, b), torch::matmul(a, b)));
  }
}

TEST(AttentionModules, ClassNamesAreThoseOfTheLists) {
  EXPECT_EQ(Matmul()->name(), "Matmul");
  EXPECT_EQ(B2BMatmul()->name(), "B2BMatmul");
  EXPECT_EQ(Softmax()->name(), "Softmax");
  EXPECT_EQ(ModuleFusedSDPA()->name(), "ModuleFusedSDPA");
  EXPECT_EQ(KVCache()->name(), "KVCache");
  EXPECT_EQ(VLLMKVCache()->name(), "VLLMKVCache");
}

TEST(AttentionModules, SoftmaxIsAtensUntilHandled) {
  const at::Tensor x = hpu(torch::randn({2, 3, 4}));
  Softmax m;
  EXPECT_TRUE(same_bits(m(x), torch::softmax(x, -1)));
  EXPECT_TRUE(same_bits(m(x, 1), torch::softmax(x, 1)));
  const auto handler = handle(*m);
  EXPECT_TRUE(same_bits(m(x, 1), torch::softmax(x, 1) * 2));
  EXPECT_EQ(handler->calls, std::vector<std::string>{"softmax1"});
}

TEST(AttentionModules, FusedAttentionPassesItsOptionsOn) {
  const at::Tensor q = hpu(torch::randn({1, 4, 5, 8})), k = hpu(torch::randn({1, 2, 6, 8})),
                   v = hpu(torch::randn({1, 2, 6, 8}));
  const at::Tensor mask = hpu(torch::rand({5, 6}).gt(0.3));
  const AttentionOptions options{.mask = mask, .scale = 0.7, .enable_gqa = true};
  ModuleFusedSDPA m;
  const at::Tensor plain = at::scaled_dot_product_attention(q, k, v, mask, 0.0, false, 0.7, true);
  EXPECT_TRUE(same_bits(m(q, k, v, options), plain));
  const at::Tensor wide = hpu(torch::randn({1, 4, 6, 8}));
  EXPECT_TRUE(same_bits(m->forward(wide, k, v, {.is_causal = true, .enable_gqa = true}),
                        at::scaled_dot_product_attention(wide, k, v, {}, 0.0, true, {}, true)));
  const auto handler = handle(*m);
  EXPECT_TRUE(same_bits(m->forward(q, k, v, {.mask = mask, .scale = 0.7, .enable_gqa = true, .softmax_mode = "fast"}),
                        plain * 2));
  EXPECT_EQ(handler->scale, 0.7);
  EXPECT_EQ(handler->mode, "fast");
}

TEST(AttentionModules, AttentionOfThreeModules) {
  const at::Tensor q = hpu(torch::randn({1, 4, 5, 8})), k = hpu(torch::randn({1, 2, 6, 8})),
                   v = hpu(torch::randn({1, 2, 6, 8}));
  const at::Tensor seen = hpu(torch::rand({5, 6}).gt(0.3).logical_or(torch::arange(6).eq(0)));
  const at::Tensor bias = hpu(torch::zeros({5, 6})).masked_fill(seen.logical_not(), -1e30);
  Matmul qk, av;
  Softmax p;
  const auto by_parts = [&](const AttentionOptions& o) { return std::get<0>(attend(*qk, *p, *av, q, k, v, o)); };
  const auto fused = [&](const AttentionOptions& o) {
    return at::scaled_dot_product_attention(q, k, v, o.mask, 0.0, o.is_causal, o.scale, true);
  };
  for (const AttentionOptions& o : {AttentionOptions{}, {.scale = 0.7}, {.mask = seen}, {.mask = bias}})
    EXPECT_TRUE(at::allclose(by_parts(o), fused(o), 1e-5, 1e-6));
  const at::Tensor last_rows = hpu(torch::ones({5, 6}, at::kBool).tril(1));  // the queries are the last of the keys
  EXPECT_TRUE(same_bits(by_parts({.is_causal = true}), by_parts({.mask = last_rows})));
  EXPECT_TRUE(at::isfinite(std::get<0>(attend(*qk, *p, *av, q.to(at::kHalf), k.to(at::kHalf), v.to(at::kHalf),
                                              {.is_causal = true})))
                  .all()
                  .item<bool>());
  const auto handler = handle(*qk);
  p->slot()->handler = av->slot()->handler = handler;
  by_parts({});
  EXPECT_EQ(handler->calls, (std::vector<std::string>{"matmul", "softmax-1", "matmul"}));
}

TEST(AttentionModules, LengthsNeedAHandler) {
  const at::Tensor q = hpu(torch::randn({1, 1, 2, 4}));
  ModuleFusedSDPA m;
  EXPECT_REFUSED(m->forward(q, q, q, {.valid_seq_len = hpu(torch::tensor({2}))}), "ModuleFusedSDPA", "valid_seq_len");
}

TEST(AttentionModules, CacheGrowsAlongItsDimension) {
  const at::Tensor first = hpu(torch::randn({1, 2, 3, 4})), second = hpu(torch::randn({1, 2, 1, 4}));
  KVCache m;
  EXPECT_FALSE(m->allocated());
  EXPECT_REFUSED(m->update(first, 2, 0), "KVCache", "allocate()");
  m->allocate({1, 2, 6, 4}, first);
  EXPECT_TRUE(same_bits(m->update(first, 2, 0), first));
  EXPECT_TRUE(same_bits(m->update(second, 2, 3), torch::cat({first, second}, 2)));
  EXPECT_TRUE(same_bits(m->cache().narrow(2, 4, 2), torch::zeros({1, 2, 2, 4})));
  EXPECT_REFUSED(m->update(first, 2, 4), "[4, 7)", "6");
  EXPECT_REFUSED(m->update(first, 2, -1), "[-1, 2)");
  EXPECT_TRUE(same_bits(m->forward(first), first));
  const at::Tensor own = m->room({1, 2, 6, 4}, first);  // the caller's
  EXPECT_TRUE(same_bits(m->update(own, second, 2, 3, at::kDouble).narrow(2, 3, 1), second));
  EXPECT_TRUE(same_bits(own.narrow(2, 3, 1), second));
  EXPECT_THROW(m->update(own, first, 2, 4, at::kFloat), c10::ValueError);
  m->clear();
  EXPECT_FALSE(m->allocated());
}

TEST(AttentionModules, AHandlerDecidesWhatTheCacheHolds) {
  const at::Tensor current = hpu(torch::full({1, 2, 3, 4}, 1.5f));
  KVCache m;
  m->allocate({1, 2, 6, 4}, current);
  const auto handler = handle(*m);
  EXPECT_REFUSED(m->update(current, 2, 0), "KVCache", "Float", "Half", "allocate()");
  m->allocate({1, 2, 6, 4}, current);
  EXPECT_EQ(m->cache().scalar_type(), at::kHalf);
  EXPECT_TRUE(same_bits(m->update(current, 2, 0), current * 2));
  EXPECT_TRUE(same_bits(m->forward(current), current * 2));
}

TEST(AttentionModules, CachesOfCodesStartAtZero) {
  struct Codes final : ModuleHandler {
    at::ScalarType cache_dtype(at::ScalarType) const override { return at::kFloat8_e4m3fn; }
    std::string describe() const override { return "codes"; }
  };
  KVCache m;
  m->slot()->handler = std::make_shared<Codes>();
  m->allocate({2, 3}, hpu(torch::ones({1})));
  EXPECT_EQ(m->cache().scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_TRUE(same_bits(m->cache().view(at::kByte), torch::zeros({2, 3}, at::kByte)));
}

TEST(AttentionModules, PagedCacheWritesSlotsAndReadsBlocks) {
  const at::Tensor input = hpu(torch::randn({3, 2, 4})), slots = hpu(torch::tensor({5, 0, 2}));
  for (const bool blocked : {true, false}) {
    VLLMKVCache m;
    EXPECT_EQ(m->cache_dtype(at::kBFloat16), at::kBFloat16);
    const at::Tensor cache = hpu(blocked ? torch::zeros({3, 2, 2, 4}) : torch::zeros({6, 2, 4}));
    EXPECT_TRUE(same_bits(m(at::Tensor(), cache, slots), torch::zeros_like(cache)));
    EXPECT_TRUE(m(input, cache, slots).is_same(cache));
    at::Tensor expected = torch::zeros({6, 2, 4});
    expected.index_copy_(0, slots.cpu(), input.cpu());
    EXPECT_TRUE(same_bits(cache.view({6, 2, 4}), expected));
    if (!blocked) continue;
    const at::Tensor read = m->fetch_from_cache(cache, hpu(torch::tensor({2, 1})), at::kDouble);
    EXPECT_TRUE(same_bits(read, expected.view({3, 2, 2, 4}).index_select(0, torch::tensor({2, 1})).to(at::kDouble)));
  }
}

TEST(AttentionModules, PagedCacheInTheHandlersForm) {
  VLLMKVCache m;
  const auto handler = handle(*m);
  EXPECT_EQ(m->cache_dtype(at::kFloat), at::kHalf);
  const at::Tensor input = hpu(torch::full({1, 2, 4}, 3.0f)), slots = hpu(torch::tensor({1}));
  EXPECT_REFUSED(m(input, hpu(torch::zeros({4, 2, 4})), slots), "VLLMKVCache", "Half", "Float");
  const at::Tensor cache = hpu(torch::zeros({2, 2, 2, 4}, at::kHalf));
  m(input, cache, slots);
  EXPECT_TRUE(
      same_bits(m->fetch_from_cache(cache, hpu(torch::tensor({0})), at::kFloat)[0][1], torch::full({2, 4}, 6.0f)));
}

TEST(AttentionModules, SlotsAreTheModulesOwn) {
  Matmul a, b;
  EXPECT_NE(a->slot(), b->slot());
  handle(*a);
  EXPECT_EQ(b->handler(), nullptr);
}

// The mixture against a sum over tokens and experts, written down term by term in f64.

MixtureOfExperts mixture(const MixtureOfExpertsOptions& options) {
  torch::manual_seed(2);
  MixtureOfExperts m(options);
  const torch::NoGradGuard no_grad;
  for (auto& p : m->parameters()) p.normal_();
  m->to(test::kHpu);
  return m;
}

at::Tensor activated(const std::string& name, const at::Tensor& x) {
  return name == "silu"   ? x * torch::sigmoid(x)
         : name == "relu" ? x.clamp_min(0)
                          : 0.5 * x * (1 + torch::erf(x / std::sqrt(2.0)));
}

/// y[t] = sum over k of weight[t, k] * expert[table[t, k]](x[t]), experts outside of the range giving nothing.
at::Tensor expected(MixtureOfExperts& m, const at::Tensor& hidden, const at::Tensor& table, const at::Tensor& weights) {
  const auto parameters = m->named_parameters();
  const auto& o = m->options();
  const auto f64 = [](const at::Tensor& t) { return t.cpu().to(at::kDouble); };
  at::Tensor y = torch::zeros({hidden.size(0), hidden.size(1)}, at::kDouble);
  for (std::int64_t t = 0; t < table.size(0); ++t)
    for (std::int64_t k = 0; k < table.size(1); ++k) {
      const auto e = table.cpu()[t][k].item<std::int64_t>() - o.experts_min;
      if (e < 0 || e > o.experts_max - o.experts_min) continue;
      const at::Tensor w13 = f64(parameters["w13_list." + std::to_string(e) + ".weight"]),
                       w2 = f64(parameters["w2_list." + std::to_string(e) + ".weight"]);
      const at::Tensor up = torch::mv(w13, f64(hidden)[t]);
      const at::Tensor inner = activated(o.activation, up.narrow(0, 0, o.intermediate_size)) *
                               up.narrow(0, o.intermediate_size, o.intermediate_size);
      y[t] += f64(weights)[t][k] * torch::mv(w2, inner);
    }
  return y;
}

TEST(MixtureOfExperts, IsTheWeightedSumOfItsExperts) {
  const at::Tensor hidden = hpu(torch::randn({7, 6})), table = hpu(torch::randint(5, {7, 2}, at::kLong)),
                   weights = hpu(torch::rand({7, 2}));
  for (const char* activation : {"silu", "gelu", "relu"})
    for (const auto& [first, last] : {std::pair<std::int64_t, std::int64_t>{0, -1}, {1, 3}, {4, 4}}) {
      auto m = mixture({5, 6, 4, first, last, activation});
      const at::Tensor y = m(hidden, table, weights);
      const at::Tensor reference = expected(m, hidden, table, weights);
      EXPECT_LT((y.cpu().to(at::kDouble) - reference).abs().max().item<double>(), 1e-5) << activation << first;
    }
}

TEST(MixtureOfExperts, TokensOfOtherRanksGiveZeros) {
  auto m = mixture({4, 6, 4, 0, 1, "silu"});
  const at::Tensor y = m(hpu(torch::randn({3, 6})), hpu(torch::full({3, 2}, 3, at::kLong)), hpu(torch::ones({3, 2})));
  EXPECT_TRUE(same_bits(y, torch::zeros({3, 6})));
}

TEST(MixtureOfExperts, HoldsOnlyItsOwnExperts) {
  auto m = mixture({8, 6, 4, 2, 4, "silu"});
  EXPECT_EQ(m->w13_list->size(), 3u);
  EXPECT_EQ(m->named_parameters()["w13_list.0.weight"].sizes(), (std::vector<std::int64_t>{8, 6}));
  EXPECT_EQ(m->named_parameters()["w2_list.2.weight"].sizes(), (std::vector<std::int64_t>{6, 4}));
  EXPECT_EQ(m->name(), "VllmMixtureOfExpertsOp");
  EXPECT_EQ(m->w13_list->ptr(0)->name(), "MoeMatmul");
}

TEST(MixtureOfExperts, ExpertsMultiplyByTheirTranspose) {
  const at::Tensor w = torch::randn({4, 6}), x = torch::randn({3, 6});
  EXPECT_TRUE(same_bits(MoeMatmul(w)->forward(x), torch::linear(x, w)));
}

TEST(MixtureOfExperts, AHandlerGetsTheExpertsWeights) {
  struct Seen final : ModuleHandler {
    std::vector<at::Tensor> w12, w3;
    std::int64_t first = -1, last = -1;
    std::string activation;
    at::Tensor mixture_of_experts(const MoeCall& call) override {
      w12 = call.w12, w3 = call.w3, first = call.experts_min, last = call.experts_max, activation = call.activation;
      EXPECT_TRUE(call.permuted_weights);
      return call.original() * 2;
    }
    std::string describe() const override { return "seen"; }
  };
  auto m = mixture({4, 6, 4, 1, 2, "gelu"});
  const at::Tensor hidden = hpu(torch::randn({3, 6})), table = hpu(torch::tensor({{0, 1}, {2, 3}, {1, 2}})),
                   weights = hpu(torch::rand({3, 2}));
  const at::Tensor plain = m(hidden, table, weights);
  const auto seen = std::make_shared<Seen>();
  m->slot()->handler = seen;
  EXPECT_TRUE(same_bits(m(hidden, table, weights), plain * 2));
  ASSERT_EQ(seen->w12.size(), 2u);
  EXPECT_TRUE(seen->w12[1].is_same(m->w13_list->ptr(1)->as<MoeMatmulImpl>()->weight));
  EXPECT_TRUE(seen->w3[0].is_same(m->w2_list->ptr(0)->as<MoeMatmulImpl>()->weight));
  EXPECT_EQ(seen->first, 1);
  EXPECT_EQ(seen->last, 2);
  EXPECT_EQ(seen->activation, "gelu");
}

TEST(MixtureOfExperts, BadOptionsAreNamed) {
  EXPECT_REFUSED(MixtureOfExperts(MixtureOfExpertsOptions{4, 6, 4, 2, 4, "silu"}), "experts_min, experts_max", "[2, 4]",
                 "[0, 3]");
  EXPECT_REFUSED(MixtureOfExperts(MixtureOfExpertsOptions{0, 6, 4, 0, -1, "silu"}), "experts_min");
  EXPECT_REFUSED(MixtureOfExperts(MixtureOfExpertsOptions{4, 6, 4, 0, -1, "swish"}), "'swish'", "silu, gelu, relu");
}

const auto kOptions = at::TensorOptions(at::kHPU);

/// Doubles what comes out, and stores bytes.
struct TwiceOfAll final : ModuleHandler {
  at::Tensor matmul(const MatmulCall& call) override { return call.original() * 2; }
  at::Tensor softmax(const SoftmaxCall& call) override { return call.original() * 2; }
  at::Tensor attention(const AttentionCall& call) override { return call.original() * 2; }
  at::Tensor store(const at::Tensor& current) override { return current.to(at::kByte); }
  std::string describe() const override { return "doubling"; }
};

TEST(Node, IsTorchsOperationUnhandledAndTheHandlersElse) {
  const at::Tensor a = at::randn({2, 4, 8}, kOptions), b = at::randn({2, 8, 4}, kOptions), none;
  const at::Tensor q = at::randn({1, 4, 5, 8}, kOptions), k = at::randn({1, 2, 5, 8}, kOptions);
  Node matmul("Matmul"), softmax("Softmax"), attention("ModuleFusedSDPA"), cache("KVCache");
  const auto sdpa = at::scaled_dot_product_attention(q, k, k, std::nullopt, 0.0, true, std::nullopt, true);
  const auto attend = [&] { return attention.attention(q, k, k, std::nullopt, 0.0, true, std::nullopt, true); };
  EXPECT_TRUE(at::equal(matmul.matmul(a, b), at::matmul(a, b)));
  EXPECT_TRUE(at::equal(softmax.softmax(a, 1), at::softmax(a, 1)));
  EXPECT_TRUE(at::equal(attend(), sdpa));
  EXPECT_TRUE(cache.store(a).is_same(a));
  EXPECT_TRUE(cache.fetch(a, b).is_same(a));
  EXPECT_EQ(cache.describe(), "");
  for (const Node* node : {&matmul, &softmax, &attention, &cache})
    node->slot()->handler = std::make_shared<TwiceOfAll>();
  EXPECT_TRUE(at::equal(matmul.matmul(a, b), at::matmul(a, b) * 2));
  EXPECT_TRUE(at::equal(softmax.softmax(a, 1), at::softmax(a, 1) * 2));
  EXPECT_TRUE(at::equal(attend(), sdpa * 2));
  EXPECT_EQ(cache.store(a).scalar_type(), at::kByte);
  EXPECT_EQ(cache.fetch(cache.store(a), b).scalar_type(), at::kFloat);
  EXPECT_EQ(cache.copy()->describe(), "doubling");
}

TEST(Node, RefusesOtherTypesAndUses) {
  EXPECT_REFUSED(Node("Linear"), "type: found 'Linear'", "KVCache");
  EXPECT_REFUSED(Node("Softmax").matmul(at::ones({1, 1}), at::ones({1, 1})), "matmul", "type Softmax");
  EXPECT_REFUSED(Node("Matmul").store(at::ones({1})), "store", "type Matmul");
}

}  // namespace
}  // namespace fp8::runtime
