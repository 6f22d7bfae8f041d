// SPDX-License-Identifier: Apache-2.0
// The meta functions say what the real ones give: sizes, dtypes, and the same refusals; and the ops run from
// TorchScript.
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/script.h>

#include "runtime/ops/op_call.h"
#include "support/schema_test.h"

namespace fp8::test {
namespace {

using Sizes = std::vector<std::int64_t>;

TEST(Meta, AgreesWithTheRealOps) {
  const at::Tensor x = at::randn({2, 5, 8}, on_hpu(at::kBFloat16)), q = x.to(kE4M3), w = random_codes({6, 8}, kE4M3, 1);
  const at::Tensor image = random_codes({2, 4, 9, 7}, kE4M3, 2), kernel = random_codes({6, 2, 3, 3}, kE4M3, 3),
                   one = at::full({1}, 0.5f, on_hpu());
  const at::IValue none;
  expect_meta_agrees("cast_to_fp8_v2", "", {x, one, false, true, code(kE4M3)});
  expect_meta_agrees("cast_to_fp8_v2", "", {x, none, false, false, code(at::kFloat8_e5m2)});
  expect_meta_agrees("cast_to_fp8_v2", "scalar", {x, 0.5, false, true, code(kE4M3)});
  expect_meta_agrees("cast_to_fp8_v2", "scalar_list", {x, c10::List<double>({0.5}), false, false, code(kE4M3)});
  expect_meta_agrees("cast_to_fp8", "", {x, none, false, at::empty_like(q), at::empty({1}, on_hpu())});
  expect_meta_agrees("cast_to_fp8_hybrid", "", {x, one, none, false, true});
  expect_meta_agrees("cast_to_fp8_hybrid", "", {x});
  expect_meta_agrees("cast_from_fp8", "", {q, one, code(at::kFloat)});
  expect_meta_agrees("cast_from_fp8", "scalar", {q, 0.5, code(at::kBFloat16)});
  expect_meta_agrees("cast_from_fp8", "scalar_list", {q, c10::List<double>({0.5}), code(at::kBFloat16)});
  expect_meta_agrees("calculate_scale_for_cast", "", {x, 0, 0});
  expect_meta_agrees("calculate_scale_for_cast", "", {x, 1, 0});
  expect_meta_agrees("calculate_scale_for_cast", "", {x, 2, 1, 1, true});
  expect_meta_agrees("calculate_scale_for_cast", "", {x, 2, 1, -1});
  expect_meta_agrees("fp8_gemm_v2", "", {q, false, w, true, none, code(at::kFloat), one, one});
  expect_meta_agrees("fp8_gemm_v2", "", {q[0][0], false, w, true, none, code(at::kBFloat16)});
  expect_meta_agrees("fp8_gemm_v2", "scalar", {q, false, w, true, none, code(at::kBFloat16), 1.0, 1.0});
  expect_meta_agrees("fp8_gemm_v2", "scalar_list",
                     {q[0], false, w, true, none, code(at::kFloat), c10::List<double>({1}), c10::List<double>({1})});
  expect_meta_agrees("conv2d_fp8", "", {image, kernel, none, Sizes{2, 1}, Sizes{1, 0}, Sizes{1, 2}, 2});
  expect_meta_agrees("conv2d_fp8", "scalar", {image, kernel, none, Sizes{1}, Sizes{1}, Sizes{1}, 2, code(at::kFloat)});
}

TEST(Meta, RefusesWhatTheRealOnesRefuse) {
  const at::Tensor q = at::empty({2, 5}, at::TensorOptions(at::kMeta).dtype(kE4M3)),
                   x = at::empty({2, 5}, at::TensorOptions(at::kMeta));
  EXPECT_REFUSED(call("fp8_gemm_v2", "", {q, false, q, false, kNone, code(at::kFloat)}), "inner dimensions");
  EXPECT_REFUSED(call("cast_to_fp8_v2", "", {q, kNone, false, true, code(kE4M3)}), "no amax for float8");
  EXPECT_REFUSED(call("cast_from_fp8", "scalar", {x, 1.0, code(at::kFloat)}), "[cast_from_fp8]");
  EXPECT_REFUSED(call("conv2d_fp8", "", {q, q}), "[conv2d_fp8]");
}

TEST(TorchScript, RunsTheOps) {
  ASSERT_EQ(code(kE4M3), 24);
  ASSERT_EQ(code(at::kFloat), 6);
  const auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(R"(
graph(%x : Tensor, %w : Tensor, %scale : float):
  %no : bool = prim::Constant[value=0]()
  %yes : bool = prim::Constant[value=1]()
  %none : NoneType = prim::Constant()
  %e4m3 : int = prim::Constant[value=24]()
  %f32 : int = prim::Constant[value=6]()
  %one : float = prim::Constant[value=1.]()
  %scale_inv : float = aten::div(%one, %scale)
  %q : Tensor, %amax : Tensor = hpu::cast_to_fp8_v2(%x, %scale, %no, %yes, %e4m3, %none)
  %y : Tensor = hpu::fp8_gemm_v2(%q, %no, %w, %yes, %none, %f32, %scale_inv, %one, %none, %no, %none)
  %both : (Tensor, Tensor) = prim::TupleConstruct(%y, %amax)
  return (%both))",
                      graph.get());
  torch::jit::CompilationUnit unit;
  auto* function = unit.create_function(c10::QualifiedName("f"), graph);
  const at::Tensor x = at::randn({3, 8}, on_hpu()), w = random_codes({5, 8}, kE4M3, 1);
  for (int run = 0; run < 3; ++run) {
    const auto result = (*function)({x, w, 16.0}).toTuple();
    const at::Tensor q = call("cast_to_fp8_v2", "scalar", {x, 16.0, false, false, code(kE4M3)})[0];
    EXPECT_TRUE(at::allclose(result->elements()[0].toTensor().cpu().to(at::kDouble),
                             at::matmul(values_of(q), values_of(w).t()) / 16, 1e-5, 1e-5));
    EXPECT_EQ(result->elements()[1].toTensor().item<float>(), x.abs().max().item<float>());
  }
}

TEST(InferenceModeAndGrad, RunTheSameKernels) {
  const at::Tensor x = at::randn({3, 8}, on_hpu()).requires_grad_(true);
  const at::Tensor a = call("cast_to_fp8_v2", "scalar", {x.detach(), 2.0, false, false, code(kE4M3)})[0];
  const c10::InferenceMode inference;
  EXPECT_TRUE(same_bits(call("cast_to_fp8_v2", "scalar", {x.detach(), 2.0, false, false, code(kE4M3)})[0], a));
}

// The registered schemas equal the vendor's (bridge 1.19), argument by argument, default by default.

TEST(Schemas, EqualTheVendors) { expect_schemas("casts, products and convolutions", 13); }

TEST(Schemas, CalculateScaleForCastHasThePositionalArguments) {
  const auto& arguments =
      c10::Dispatcher::singleton().findSchemaOrThrow("hpu::calculate_scale_for_cast", "").schema().arguments();
  std::vector<std::string> names;
  for (const auto& argument : arguments) names.push_back(argument.name());
  EXPECT_EQ(names, (std::vector<std::string>{"input", "maxMode", "scaleMode", "reduceAxis", "reduceKeepdim",
                                             "fullscale", "backoff"}));
  EXPECT_EQ(arguments[3].default_value()->toInt(), 0);
  EXPECT_FALSE(arguments[4].default_value()->toBool());
  EXPECT_EQ(arguments[5].default_value()->toDouble(), 1.0);
  EXPECT_EQ(arguments[6].default_value()->toDouble(), 1.0);
}

}  // namespace
}  // namespace fp8::test
