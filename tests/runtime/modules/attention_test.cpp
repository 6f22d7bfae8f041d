// SPDX-License-Identifier: Apache-2.0
// The modules of attention: with an empty slot each is its plain ATen call, bit for bit; with a handler it is the
// handler's.
#include "fp8/runtime/modules/op_modules.h"
#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

using test::hpu;
using test::same_bits;

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
    const at::Tensor after = m(input, cache, slots);
    EXPECT_TRUE(after.is_same(cache));
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

}  // namespace
}  // namespace fp8::runtime
