// SPDX-License-Identifier: Apache-2.0
// Rows of tables against the CPU's kernels: tables and indices of all dtypes and ranks, and the calls that its kernel
// must see.
#include "fp8/runtime/dispatch/minimal_ops.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

TEST(RowsOfTable, AreTheCpus) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kBool}) {
    for (const auto index : {at::kLong, at::kInt}) {
      const at::Tensor table = (at::randn({7, 5}) * 3).to(type), line = at::randint(0, 7, {11}, index);
      const at::Tensor block = (at::randn({3, 2, 4}) * 3).to(type), few = at::randint(0, 3, {4}, index);
      EXPECT_TRUE(same_bits(at::index_select(hpu(table), 0, hpu(line)), at::index_select(table, 0, line))) << type;
      EXPECT_TRUE(same_bits(at::index_select(hpu(block), 0, hpu(few)), at::index_select(block, 0, few))) << type;
      EXPECT_TRUE(same_bits(at::index_select(hpu(block), 1, hpu(few).clamp_max(1)),
                            at::index_select(block, 1, few.clamp_max(1))))
          << type;
      EXPECT_TRUE(same_bits(at::index_select(hpu(line).to(type), 0, hpu(few)), at::index_select(line.to(type), 0, few)))
          << type;
      for (const at::Tensor& indices :
           {line, line.narrow(0, 2, 6).view({2, 3}), line.narrow(0, 0, 1).view({1, 1, 1})}) {
        const at::Tensor y = at::embedding(hpu(table), hpu(indices)), expected = at::embedding(table, indices);
        EXPECT_TRUE(same_bits(y, expected)) << type;
        EXPECT_EQ(y.strides(), expected.strides()) << type;
      }
    }
  }
}

TEST(RowsOfTable, AreCopiesOfTheirOwn) {
  const at::Tensor table = hpu(at::ones({4, 3})), row = at::embedding(table, hpu(at::zeros({1}, at::kLong)));
  table.zero_();
  EXPECT_EQ(row.sum().item<float>(), 3.0f);
}

TEST(RowsOfTable, OtherCallsStayTheCpus) {
  const at::Tensor table = at::randn({6, 4}), x = hpu(table), rows = at::tensor({5, 0, 3}, at::kLong);
  EXPECT_TRUE(same_bits(at::embedding(x.t().contiguous().t(), hpu(rows)), at::embedding(table, rows)));
  EXPECT_TRUE(
      same_bits(at::embedding(x, hpu(rows.repeat_interleave(2)).slice(0, 0, 6, 2)), at::embedding(table, rows)));
  EXPECT_TRUE(same_bits(at::embedding(x, hpu(rows.select(0, 1))), at::embedding(table, rows.select(0, 1))));
  EXPECT_TRUE(
      same_bits(at::index_select(x, -1, hpu(rows).clamp_max(3)), at::index_select(table, -1, rows.clamp_max(3))));
  EXPECT_EQ(at::embedding(x, hpu(rows.slice(0, 0, 0))).sizes(), at::IntArrayRef({0, 4}));
  EXPECT_EQ(at::index_select(x.slice(1, 0, 0), 0, hpu(rows)).sizes(), at::IntArrayRef({3, 0}));
  const at::Tensor large = at::randn({40, 1000}), many = at::randint(0, 40, {700}, at::kLong);
  EXPECT_TRUE(same_bits(at::embedding(hpu(large), hpu(many)), at::embedding(large, many)));
  for (const std::int64_t wrong : {-1, 6}) {
    EXPECT_TRUE(throws_with({"out of range"}, [&] { at::embedding(x, hpu(at::tensor({wrong}, at::kLong))); }));
    EXPECT_TRUE(throws_with({"out of range"}, [&] { at::index_select(x, 0, hpu(at::tensor({wrong}, at::kLong))); }));
  }
  EXPECT_TRUE(throws_with({"aten::embedding"}, [&] { at::embedding(x, rows); }));
}

TEST(RowsOfTable, LearnAsOnTheCpu) {
  const at::Tensor table = at::randn({6, 4}), rows = at::tensor({5, 0, 5}, at::kLong);
  const at::Tensor a = table.clone().set_requires_grad(true), x = hpu(table).set_requires_grad(true);
  (at::embedding(a, rows) * 2).sum().backward();
  (at::embedding(x, hpu(rows)) * 2).sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), a.grad()));
}

}  // namespace
}  // namespace fp8::test
