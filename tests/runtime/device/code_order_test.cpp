// SPDX-License-Identifier: Apache-2.0
// Codes that products put into another order read as the same codes everywhere else.

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/product.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using runtime::Fp8Tensor;
using runtime::ScaleLayout;

constexpr std::int64_t kN = 48, kK = 20;

at::Tensor codes_of(std::int64_t n, std::int64_t k) { return at::randn({n, k}).to(at::kFloat8_e4m3fn); }

bool is_packed(const at::Tensor& t) {
  const auto* order = runtime::block_of(t)->order.load();
  return order != nullptr && order->packed;
}

/// A weight on hpu, its codes on the host, and what is multiplied with it.
struct Weight {
  at::Tensor host = codes_of(kN, kK), codes = host.to(kHpu), x = at::randn({3, kK}).to(at::kBFloat16).to(kHpu);
  Fp8Tensor in{at::randn({3, kK}).to(at::kFloat8_e4m3fn).to(kHpu)};

  Fp8Tensor operand(bool again = true) const {
    Fp8Tensor w{codes};
    w.scale_inv = 0.5f;
    w.reused = again;
    return w;
  }
  at::Tensor product(bool again = true) const { return runtime::matmul(in, false, operand(again), true, at::kFloat); }
  /// Packs the codes.
  void multiply_often() const {
    for (int i = 0; i < 10000 && !is_packed(codes); ++i) product();
    ASSERT_TRUE(is_packed(codes));
  }
};

struct CodeOrder : ::testing::Test {
  const Weight w;
};

TEST_F(CodeOrder, ProductsPackAWeightThatTheyReadAgain) {
  const at::Tensor once = w.product(false);
  for (int i = 0; i < 10; ++i) w.product(false);
  EXPECT_FALSE(is_packed(w.codes));
  EXPECT_TRUE(same_bits(w.product(), once));
  EXPECT_FALSE(is_packed(w.codes)) << "one product does not pay for it";
  EXPECT_TRUE(same_bits(w.product(), once));
  EXPECT_TRUE(is_packed(w.codes));
  EXPECT_TRUE(same_bits(w.product(), once));
  EXPECT_TRUE(same_bits(w.product(false), once)) << "packed codes serve every product";
  EXPECT_TRUE(is_packed(w.codes));
}

TEST_F(CodeOrder, EveryProductGivesTheSameBits) {
  const Weight w, rows;
  Fp8Tensor per_row = w.operand(), blocks = rows.operand();
  per_row.grid = at::rand({kN, 1}).to(kHpu);
  per_row.layout = ScaleLayout::per_row();
  blocks.grid = at::rand({3, 5}).to(kHpu);
  blocks.layout = ScaleLayout::blocks(16, 4);
  Fp8Tensor groups = w.in;
  groups.grid = at::rand({3, 5}).to(kHpu);
  groups.layout = ScaleLayout::blocks(1, 4);
  const auto all = [&] {
    return std::vector{runtime::matmul(w.in, false, per_row, true, at::kBFloat16),
                       runtime::linear(w.x, per_row, at::kFloat), runtime::linear(w.x, blocks, at::kFloat),
                       runtime::matmul(groups, false, blocks, true, at::kFloat)};
  };
  const auto first = all();
  all();
  ASSERT_TRUE(is_packed(w.codes));
  ASSERT_TRUE(is_packed(rows.codes));
  const auto packed = all();
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(same_bits(packed[i], first[i])) << i;
}

TEST_F(CodeOrder, RowsOfAPackedWeightAreServedFromIt) {
  const auto part = [&](std::int64_t first, std::int64_t rows) {
    Fp8Tensor p = w.operand(false);
    p.codes = w.codes.narrow(0, first, rows);
    return runtime::matmul(w.in, false, p, true, at::kFloat);
  };
  const at::Tensor expected = w.product();
  w.multiply_often();
  EXPECT_TRUE(same_bits(part(16, 32), expected.narrow(1, 16, 32)));
  EXPECT_TRUE(is_packed(w.codes));
  EXPECT_TRUE(same_bits(part(7, 20), expected.narrow(1, 7, 20)));
  EXPECT_FALSE(is_packed(w.codes)) << "these rows do not lie together";
}

TEST_F(CodeOrder, WhatReadsOrWritesMeetsRows) {
  const at::Tensor bytes = w.host.view(at::kByte);
  const auto on_host = [](const at::Tensor& t) { return t.view(at::kByte).cpu(); };
  const std::vector<std::pair<const char*, std::function<at::Tensor()>>> readers = {
      {"cpu", [&] { return w.codes.cpu().view(at::kByte); }},
      {"clone", [&] { return on_host(w.codes.clone()); }},
      {"bytes", [&] { return w.codes.view(at::kByte).cpu(); }},
      {"alias", [&] { return runtime::cpu_alias(w.codes).view(at::kByte).clone(); }},
      {"transposed", [&] { return on_host(w.codes.view(at::kByte).t().contiguous()).t().contiguous(); }},
      {"rows", [&] { return at::cat({on_host(w.codes.narrow(0, 0, 5)), on_host(w.codes.narrow(0, 5, kN - 5))}); }},
      {"index_select",
       [&] { return on_host(w.codes.view(at::kByte).index_select(0, at::arange(kN, at::kLong).to(kHpu))); }},
      {"copy_",
       [&] {
         const at::Tensor to = at::empty({kN, kK}, on_hpu(at::kFloat8_e4m3fn));
         to.copy_(w.codes);
         return on_host(to);
       }},
      {"save", [&] {
         std::stringstream stream;
         torch::save(w.codes, stream);
         at::Tensor back;
         torch::load(back, stream);
         return back.cpu().view(at::kByte);
       }}};
  for (const auto& [name, read] : readers) {
    w.multiply_often();
    EXPECT_TRUE(same_bits(read(), bytes)) << name;
  }
  w.multiply_often();
  EXPECT_TRUE(same_bits(runtime::dequantize(w.operand(), at::kFloat).cpu(), w.host.to(at::kFloat) * 0.5));
  w.multiply_often();
  w.codes.view(at::kByte).narrow(0, 3, 1).fill_(0x38);  // 1.0
  EXPECT_TRUE(same_bits(w.codes.view(at::kByte).cpu().narrow(0, 4, kN - 4), bytes.narrow(0, 4, kN - 4)));
  EXPECT_EQ(w.codes.view(at::kByte).cpu().narrow(0, 3, 1).eq(0x38).sum().item<std::int64_t>(), kK);
  const at::Tensor changed = w.product();
  w.multiply_often();
  EXPECT_TRUE(same_bits(w.product(), changed));
}

TEST_F(CodeOrder, AnAddressOfPackedCodesIsRefused) {
  w.multiply_often();
  EXPECT_REFUSED(w.codes.const_data_ptr(), "lie packed for products", "cpu_alias");
  EXPECT_REFUSED(w.codes.mutable_data_ptr(), "lie packed for products");
  EXPECT_REFUSED(w.codes.storage().data_ptr(), "lie packed for products");
  runtime::cpu_alias(w.codes);
  EXPECT_NE(w.codes.const_data_ptr(), nullptr);
}

TEST_F(CodeOrder, WhoeverHoldsAnAliasKeepsTheRows) {
  {
    const at::Tensor alias = runtime::cpu_alias(w.codes);
    for (int i = 0; i < 50; ++i) w.product();
    EXPECT_FALSE(is_packed(w.codes));
    EXPECT_TRUE(same_bits(alias.view(at::kByte), w.host.view(at::kByte)));
  }
  w.multiply_often();
}

TEST_F(CodeOrder, EachReturnDoublesThePatience) {
  for (const int expected : {2, 4, 8, 16}) {
    int products = 0;
    for (; !is_packed(w.codes) && products < 1000; ++products) w.product();
    EXPECT_EQ(products, expected);
    runtime::cpu_alias(w.codes);
  }
}

TEST_F(CodeOrder, OnlyWholeMatricesOfGroupsArePacked) {
  const auto stays = [](const at::Tensor& codes) {
    Fp8Tensor w{codes}, x{at::randn({2, codes.size(1)}).to(at::kFloat8_e4m3fn).to(kHpu)};
    w.reused = true;
    for (int i = 0; i < 20; ++i) runtime::matmul(x, false, w, true, at::kFloat);
    return !is_packed(codes);
  };
  EXPECT_TRUE(stays(codes_of(17, 8).to(kHpu)));
  EXPECT_TRUE(stays(codes_of(16, 6).to(kHpu)));
  EXPECT_TRUE(stays(codes_of(32, 8).to(kHpu).narrow(0, 0, 16))) << "not alone in its memory";
  EXPECT_TRUE(stays(codes_of(16, 16).to(kHpu).t()));
  EXPECT_TRUE(stays(codes_of(0, 8).to(kHpu)));
  EXPECT_FALSE(stays(codes_of(16, 8).to(kHpu)));
}

TEST_F(CodeOrder, ThreadsThatMultiplyAndReadMeetTheSameCodes) {
  const at::Tensor expected = w.product(false).cpu(), bytes = w.host.view(at::kByte);
  std::atomic<int> wrong = 0;
  const auto run = [&](auto&& work) {
    return std::thread([&wrong, work] {
      for (int i = 0; i < 300; ++i)
        if (!work()) ++wrong;
    });
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.push_back(run([&] { return at::equal(w.product().cpu(), expected); }));
  for (int i = 0; i < 2; ++i) {
    threads.push_back(run([&] {
      for (int j = 0; j < 10; ++j) std::this_thread::yield();
      return at::equal(w.codes.view(at::kByte).cpu(), bytes);
    }));
  }
  threads.push_back(run([&] {
    const at::Tensor values = runtime::dequantize(w.operand(), at::kFloat);
    return at::equal(values.cpu(), w.host.to(at::kFloat) * 0.5);
  }));
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace fp8::test
