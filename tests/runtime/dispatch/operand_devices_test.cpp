// SPDX-License-Identifier: Apache-2.0
// One device for all operands: what the fallback refuses, what it lets pass, and what FP8_HPU_MOVE_HOST_OPERANDS=1
// moves. Results that are no dense tensors, conj and neg bits of results, and named refusals of float8.
#include "fp8/runtime/dispatch/operand_devices.h"

#include "support/hpu_test.h"
#include "support/scoped_variable.h"

namespace fp8::test {
namespace {

using at::Tensor;

constexpr const char* kMove = "FP8_HPU_MOVE_HOST_OPERANDS";

/// Counts warnings while it lives.
struct Warnings final : c10::WarningHandler {
  std::vector<std::string> seen;
  c10::WarningUtils::WarningHandlerGuard guard{this};
  void process(const c10::Warning& warning) override { seen.push_back(warning.msg()); }
};

TEST(HostOperands, AreMovedWithOneWarningWhereTheFlagSaysSo) {
  const ScopedVariable flag(kMove, "1");
  Warnings warnings;
  const Tensor a = at::arange(6, at::kFloat).view({2, 3}), b = at::randn({2, 3}),
               indices = at::tensor({1, 0}, at::kLong);
  const Tensor x = hpu(a);
  EXPECT_TRUE(same_bits(x + b, a + b));
  EXPECT_TRUE(same_bits(b + x, a + b));
  EXPECT_EQ((b + x).device(), kHpu);
  EXPECT_TRUE(same_bits(at::cat({x, b}), at::cat({a, b})));
  EXPECT_TRUE(same_bits(at::mm(x, b.t()), at::mm(a, b.t())));
  EXPECT_TRUE(same_bits(x.index_select(0, indices), a.index_select(0, indices)));
  EXPECT_TRUE(same_bits(at::embedding(x, indices), at::embedding(a, indices)));
  EXPECT_TRUE(same_bits(at::where(x > 1, b, x), at::where(a > 1, b, a)));
  Tensor in_place = x.clone();
  in_place.add_(b);
  EXPECT_TRUE(same_bits(in_place, a + b));
  EXPECT_EQ(b.device(), at::Device(at::kCPU)) << "the caller's tensor stays where it was";
  std::size_t moves = 0;
  for (const auto& text : warnings.seen) moves += text.find("FP8_HPU_MOVE_HOST_OPERANDS") != std::string::npos;
  EXPECT_EQ(moves, 1u);
  ASSERT_FALSE(warnings.seen.empty());
  EXPECT_NE(warnings.seen[0].find("[aten::add]"), std::string::npos) << warnings.seen[0];
}

TEST(HostOperands, ThatNeedAGradientStayRefused) {
  const ScopedVariable flag(kMove, "1");
  const Tensor b = at::randn({3}).requires_grad_(true), x = at::ones({3}, on_hpu());
  EXPECT_REFUSED(x * b, "hpu:0 and cpu!", "aten::mul", "gradient", ".to(\"hpu\")");
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(same_bits(x * b, b.detach()));
}

TEST(HostOperands, ThatWouldBeWrittenStayRefused) {
  const ScopedVariable flag(kMove, "1");
  const Tensor x = at::ones({3}, on_hpu());
  Tensor host = at::zeros({3});
  EXPECT_REFUSED(at::add_out(host, x, x), "hpu:0 and cpu!", "aten::add", "written");
  EXPECT_REFUSED(host.add_(x), "hpu:0 and cpu!", "written");
  EXPECT_TRUE(same_bits(host, at::zeros({3})));
}

TEST(HostOperands, AreRefusedWithoutTheFlagAndTheMessageNamesIt) {
  const Tensor x = at::ones({3}, on_hpu()), b = at::ones({3});
  for (const char* value : {"0", ""}) {
    const ScopedVariable flag(kMove, value);
    EXPECT_REFUSED(at::add(x, b), "hpu:0 and cpu!", "aten::add", "FP8_HPU_MOVE_HOST_OPERANDS=1");
  }
  const ScopedVariable flag(kMove, "yes");
  EXPECT_REFUSED(at::add(x, b), "FP8_HPU_MOVE_HOST_OPERANDS: found 'yes', allowed: 0, 1");
}

TEST(HostOperands, AnIndexOnTheHostIsWelcomeButNoHostTensorUnderADeviceIndex) {
  const Tensor host = at::arange(6, at::kFloat).view({3, 2}), rows = at::tensor({2, 0}, at::kLong);
  EXPECT_TRUE(same_bits(hpu(host).index({rows}), host.index({rows})));
  EXPECT_REFUSED(host.index({hpu(rows)}), "hpu:0 and cpu!");
  Tensor x = hpu(host);
  EXPECT_REFUSED(x.index_put_({rows}, at::zeros({2, 2})), "hpu:0 and cpu!");
  EXPECT_TRUE(same_bits(x, host));
}

TEST(SparseResults, AreRefusedByName) {
  const Tensor x = at::eye(3, on_hpu());
  EXPECT_REFUSED(x.to_sparse(), "aten::", "dense tensors only", "Sparse", ".cpu()");
  EXPECT_REFUSED(x.to_sparse_csr(), "aten::", "dense tensors only");
  EXPECT_REFUSED(x.to_mkldnn(), "aten::", "dense tensors only");
  EXPECT_EQ(x.cpu().to_sparse()._nnz(), 3);
}

TEST(OutResults, KeepConjAndNegBits) {
  torch::manual_seed(1);
  const Tensor a = at::randn({4, 4}, at::kComplexFloat), b = at::randn({4, 2}, at::kComplexFloat);
  const auto [lu, pivots] = at::linalg_lu_factor(a);
  for (const bool adjoint : {false, true}) {
    for (const bool left : {true, false}) {
      const Tensor rhs = left ? b : b.t().contiguous();
      const Tensor expected = at::linalg_lu_solve(lu, pivots, rhs, left, adjoint);
      Tensor out = at::empty({0}, on_hpu(at::kComplexFloat));
      at::linalg_lu_solve_out(out, hpu(lu), hpu(pivots), hpu(rhs), left, adjoint);
      EXPECT_TRUE(at::allclose(out.cpu().resolve_conj(), expected.resolve_conj(), 1e-4, 1e-5)) << adjoint << left;
      EXPECT_TRUE(at::allclose(at::linalg_lu_solve(hpu(lu), hpu(pivots), hpu(rhs), left, adjoint).cpu().resolve_conj(),
                               expected.resolve_conj(), 1e-4, 1e-5));
    }
  }
  // Every out= op sees the bits that `out` comes with, and leaves those that its kernel set.
  Tensor conj = at::zeros({2}, on_hpu(at::kComplexFloat)).conj(), values = at::randn({2}, at::kComplexFloat);
  at::add_out(conj, hpu(values), hpu(values));
  EXPECT_TRUE(same_bits(conj, values + values));
}

TEST(Float8, WhatHasNoKernelIsRefusedWithTheOpsNameAndAWayOut) {
  const Tensor x = at::ones({2, 4}, on_hpu()).to(at::kFloat8_e4m3fn);
  const auto refused = [](const char* op, const std::function<void()>& run) {
    EXPECT_TRUE(throws_with({op, "Float8_e4m3fn", "hpu::cast_from_fp8", "fp8::values_dtype(weight)"}, run)) << op;
  };
  refused("aten::exp", [&] { at::exp(x); });
  refused("aten::sqrt", [&] { at::sqrt(x); });
  refused("aten::_softmax", [&] { at::softmax(x, -1); });
  refused("aten::mean", [&] { at::mean(x); });
  refused("aten::native_layer_norm", [&] { at::layer_norm(x, {4}); });
}

}  // namespace
}  // namespace fp8::test
