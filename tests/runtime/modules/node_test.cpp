// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/modules/node.h"

#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

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
