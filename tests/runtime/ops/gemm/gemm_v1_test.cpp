// SPDX-License-Identifier: Apache-2.0
// The deprecated fp8_gemm against the exact product; the result lands in `out`.
#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

using at::Tensor;

TEST(Fp8GemmV1, WritesTheProductToOut) {
  const Tensor a = random_codes({5, 12}, kE4M3, 1), b = random_codes({7, 12}, kE4M3, 2),
               bias = at::randn({7}, on_hpu()), d = at::randn({5, 7}, on_hpu());
  const Tensor exact = at::matmul(values_of(a), values_of(b).t()) * 0.125 + bias.cpu().to(at::kDouble);
  for (const bool accumulate : {false, true}) {
    Tensor out = at::full({5, 7}, 99, on_hpu());
    const Tensor y = call("fp8_gemm", "",
                          {a, false, b, true, d, code(at::kFloat), at::full({1}, 0.5f, on_hpu()),
                           at::full({1}, 0.25f, on_hpu()), bias, accumulate, out})[0];
    EXPECT_EQ(y.unsafeGetTensorImpl(), out.unsafeGetTensorImpl());
    const Tensor expected = accumulate ? exact + d.cpu().to(at::kDouble) : exact;
    EXPECT_TRUE(at::allclose(out.cpu().to(at::kDouble), expected, 1e-5, 1e-5)) << accumulate;
  }
}

TEST(Fp8GemmV1, TransposedOperandsAndBf16) {
  const Tensor a = random_codes({12, 5}, kE4M3, 1), b = random_codes({12, 7}, kE4M3, 2);
  Tensor out = at::empty({5, 7}, on_hpu(at::kBFloat16));
  call("fp8_gemm", "",
       {a, true, b, false, at::empty({0}, on_hpu()), code(at::kBFloat16), at::IValue(), at::IValue(), at::IValue(),
        false, out});
  const Tensor exact = at::matmul(values_of(a).t(), values_of(b));
  EXPECT_TRUE(at::allclose(out.cpu().to(at::kDouble), exact, std::ldexp(1.0, -8), 1e-5));
}

TEST(Fp8GemmV1, AWrongOutIsNamed) {
  const Tensor a = random_codes({5, 12}, kE4M3, 1), b = random_codes({7, 12}, kE4M3, 2),
               none = at::empty({0}, on_hpu());
  const auto with = [&](const Tensor& out) {
    return [&, out] {
      call("fp8_gemm", "",
           {a, false, b, true, none, code(at::kFloat), at::IValue(), at::IValue(), at::IValue(), false, out});
    };
  };
  EXPECT_TRUE(throws_with({"[fp8_gemm]", "sizes [5, 7]", "[7, 5]"}, with(at::empty({7, 5}, on_hpu()))));
  EXPECT_TRUE(throws_with({"[fp8_gemm]", "dtype Float", "BFloat16"}, with(at::empty({5, 7}, on_hpu(at::kBFloat16)))));
}

}  // namespace
}  // namespace fp8::test
