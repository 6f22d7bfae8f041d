// SPDX-License-Identifier: Apache-2.0
// sum_fp8: with a float out_dtype the float sum of the same values, as the vendor promises; in fp8 that sum rounded
// once.
#include "runtime/ops/attention/sdpa_reference.h"

namespace fp8::test {
namespace {

using Dims = std::vector<std::int64_t>;

TEST(SumFp8, EqualsTheFloatSum) {
  for (const auto type : {kE4M3, kE5M2}) {
    torch::manual_seed(1);
    const at::Tensor host = (at::randn({10, 20, 30}) * 10).to(type), x = host.to(kHpu), values = host.to(at::kFloat);
    for (const at::IValue& dim : {at::IValue(Dims{0}), at::IValue(Dims{1}), at::IValue(Dims{-1}),
                                  at::IValue(Dims{0, 1}), at::IValue(Dims{}), kNone}) {
      for (const bool keep : {false, true}) {
        const auto list = dim.isNone() ? Dims{} : dim.toIntVector();
        const at::Tensor exact = at::sum(values, list, keep);
        EXPECT_TRUE(same_bits(call("sum_fp8", "", {x, dim, keep, code(at::kFloat)})[0], exact));
        EXPECT_TRUE(same_bits(call("sum_fp8", "", {x, dim, keep, code(at::kBFloat16)})[0], exact.to(at::kBFloat16)));
        const at::Tensor own = call("sum_fp8", "", {x, dim, keep})[0];
        EXPECT_EQ(own.scalar_type(), type);
        const at::Tensor rounded = rounded_fp8(exact.to(at::kDouble), type == kE5M2, type == kE5M2 ? 57344 : 448);
        EXPECT_TRUE(same_bits(values_of(own), rounded));
      }
    }
  }
}

TEST(SumFp8, OtherInputsAndEdges) {
  const at::Tensor x = random_hpu({3, 4}, at::kBFloat16, 1);
  EXPECT_TRUE(same_bits(call("sum_fp8", "", {x, Dims{1}, false, code(at::kFloat)})[0],
                        at::sum(x.cpu().to(at::kFloat), Dims{1})));
  EXPECT_EQ(call("sum_fp8", "", {x.to(kE4M3).t(), Dims{0}})[0].sizes(), at::IntArrayRef({3}));
  EXPECT_EQ(
      values_of(call("sum_fp8", "", {at::empty({0, 4}, on_hpu()).to(kE4M3), Dims{0}})[0]).abs().max().item<double>(),
      0.0);
  EXPECT_TRUE(throws_with({"[sum_fp8]", "Int"}, [] { call("sum_fp8", "", {at::ones({2}, on_hpu(at::kInt))}); }));
  EXPECT_TRUE(throws_with({"[sum_fp8]", "out_dtype", "Long"},
                          [&] { call("sum_fp8", "", {x, kNone, false, code(at::kLong)}); }));
  EXPECT_NE(error_of([&] { call("sum_fp8", "", {x, Dims{2}}); }), "");
}

}  // namespace
}  // namespace fp8::test
