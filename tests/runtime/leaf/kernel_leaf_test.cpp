// SPDX-License-Identifier: Apache-2.0
// Leaves of what no fallback runs: casts and their numbers, products of few rows, steps of optimizers. Bytes and flops
// are counted by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/product.h"
#include "fp8/runtime/kernels/gemv.h"
#include "fp8/runtime/optim/fused_adam.h"
#include "fp8/runtime/optim/fused_sgd.h"
#include "runtime/leaf/heard.h"
#include "runtime/ops/op_call.h"
#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

using test::call;
using test::heard_of;
using test::on_hpu;
using ::testing::ElementsAre;

class Casts : public LeafListener {
 public:
  void leaf_ends(const LeafRecord& leaf) override {
    for (const auto& [name, value] : leaf.notes) notes[name] = value;
  }
  bool wants_numbers() const override { return true; }
  std::map<std::string, double> notes;
};

// E4M3 ends at 448 (OCP) and 240 (Gaudi2), E5M2 at 57344: the first value beyond is cut to the largest code.
TEST(KernelLeaf, CastsTellTheirNumbers) {
  const auto x = torch::tensor({1.0F, -500.0F, 300.0F, 1e6F}).to(test::kHpu);
  const auto share = [&](kernels::Format format, kernels::Dialect dialect) {
    Casts casts;
    {
      const Listening listening(casts);
      CastSpec spec;
      spec.format = format, spec.max = kernels::fp8_max(format, dialect);
      (void)quantize(x, spec);
    }
    EXPECT_EQ(casts.notes.at("amax"), 1e6);
    return casts.notes.at("saturated");
  };
  EXPECT_EQ(share(kernels::Format::E4M3, kernels::Dialect::ocp), 0.5);
  EXPECT_EQ(share(kernels::Format::E4M3, kernels::Dialect::gaudi2), 0.75);
  EXPECT_EQ(share(kernels::Format::E5M2, kernels::Dialect::ocp), 0.25);
}

// Of a cast to two formats each: of 1, -500, 300 and 1e6 two are beyond 448 and one beyond 57344.
TEST(KernelLeaf, CastsToTwoFormatsTellTheNumbersOfBoth) {
  const auto x = torch::tensor({1.0F, -500.0F, 300.0F, 1e6F}).to(test::kHpu);
  CastSpec wide, narrow;
  wide.format = kernels::Format::E5M2, narrow.format = kernels::Format::E4M3;
  const auto numbers = [](auto&& cast) {
    Casts casts;
    {
      const Listening listening(casts);
      cast();
    }
    EXPECT_EQ(casts.notes.at("amax"), 1e6);
    return std::vector{casts.notes.at("saturated"), casts.notes.at("saturated_2")};
  };
  EXPECT_THAT(numbers([&] { (void)quantize_both(x, wide, narrow); }), ElementsAre(0.25, 0.5));
  EXPECT_THAT(numbers([&] { (void)quantize_both(x, narrow, wide); }), ElementsAre(0.5, 0.25));
  EXPECT_THAT(numbers([&] { call("cast_to_fp8_hybrid", "", {x, test::kNone, test::kNone, false, false}); }),
              ElementsAre(0.25, 0.5));
}

// Codes are a byte, values four.
TEST(KernelLeaf, CastsAndProductsCountTheirOperands) {
  const auto a = torch::randn({6, 10}, on_hpu()), b = torch::randn({4, 10}, on_hpu());
  const auto& found = heard_of([&] {
    const Fp8Tensor x = quantize(a, {}), w = quantize(b, {});
    const at::Tensor y = matmul(x, false, w, true, at::kFloat);
    (void)dequantize(x, at::kFloat);
    (void)quantize_both(a, {}, {});
  });
  EXPECT_THAT(found.ops(), ElementsAre("fp8::quantize", "fp8::quantize", "hpu::fp8_gemm_v2", "fp8::dequantize",
                                       "fp8::quantize_both"));
  EXPECT_EQ(found.heard[0].bytes, 60 * (4 + 1));
  EXPECT_EQ(found.heard[1].bytes, 40 * (4 + 1));
  EXPECT_EQ(found.heard[2].bytes, 60 + 40 + 4 * 24);
  EXPECT_EQ(found.heard[2].flops, 2 * 6 * 10 * 4);
  EXPECT_EQ(found.heard[3].bytes, 60 * (1 + 4));
  EXPECT_EQ(found.heard[4].bytes, 60 * (4 + 1 + 1));
  found.expect_none_within_another();
}

// A token's product: its own kernel, one leaf, with the name of the product that it stands for.
TEST(KernelLeaf, ProductOfFewRows) {
  const auto bf16 = on_hpu().dtype(at::kBFloat16);
  const auto x = torch::ones({1, 1024}, bf16), w = torch::ones({1024, 1024}, bf16), bias = torch::ones({1024}, bf16);
  const auto& found = heard_of([&] {
    const c10::InferenceMode inference;
    (void)at::mm(x, w.t());
    (void)at::addmm(bias, x, w.t());
  });
  ASSERT_EQ(found.heard.size(), 2U);
  EXPECT_EQ(found.heard[0].op, "aten::mm");
  EXPECT_EQ(found.heard[0].bytes, 2 * (1024 + 1024 * 1024 + 1024));
  EXPECT_EQ(found.heard[1].op, "aten::mm") << "with its bias";
  EXPECT_EQ(found.heard[1].bytes, 2 * (1024 + 1024 * 1024 + 1024 + 1024));
  for (const auto& leaf : found.heard) EXPECT_EQ(leaf.flops, 2 * 1024 * 1024);
}

/// The leaves of one step over parameters of 12 and 5 elements, the buffers of which were made before.
template <class Optimizer, class Options>
test::HeardLeaves& step_of(Options options) {
  std::vector<at::Tensor> parameters = {torch::ones({3, 4}, on_hpu()), torch::ones(5, on_hpu())};
  for (auto& p : parameters) p.mutable_grad() = torch::ones_like(p);
  Optimizer optimizer(parameters, options);
  optimizer.step();
  return heard_of([&] {
    const PhaseScope phase("optimizer");
    optimizer.step();
  });
}

// One leaf for all parameters: weight, gradient and buffers read, all but the gradient written, f32.
TEST(KernelLeaf, StepsOfOptimizers) {
  const auto& adam = step_of<optim::FusedAdamW>(optim::FusedAdamWOptions());
  ASSERT_EQ(adam.heard.size(), 1U);
  EXPECT_EQ(adam.heard[0].bytes, 4 * 17 * (4 + 3));
  EXPECT_EQ(adam.heard[0].inputs, 2 * 4U);
  EXPECT_EQ(adam.heard[0].outputs, 2 * 3U);
  EXPECT_EQ(adam.heard[0].phase, "optimizer");
  const auto& momentum = step_of<optim::FusedSGD>(optim::FusedSGDOptions(0.1).momentum(0.9));
  ASSERT_EQ(momentum.heard.size(), 1U);
  EXPECT_EQ(momentum.heard[0].bytes, 4 * 17 * (3 + 2));
  const auto& plain = step_of<optim::FusedSGD>(optim::FusedSGDOptions(0.1));
  ASSERT_EQ(plain.heard.size(), 1U);
  EXPECT_EQ(plain.heard[0].bytes, 4 * 17 * (2 + 1));
  const auto& lamb = step_of<optim::FusedLamb>(optim::FusedLambOptions());
  for (const auto& leaf : lamb.heard) EXPECT_EQ(leaf.phase, "optimizer") << leaf.line;
  lamb.expect_none_within_another();
  std::int64_t most = 0;
  for (const auto& leaf : lamb.heard) most = std::max(most, leaf.bytes);
  EXPECT_EQ(most, 4 * 17 * (4 + 3)) << "the direction: weight, gradient and moments; moments and step";
}

}  // namespace
}  // namespace fp8::runtime
