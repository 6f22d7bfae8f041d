// SPDX-License-Identifier: Apache-2.0
// The registered schemas equal the vendor's (bridge 1.19), argument by argument, default by default.
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "runtime/ops/op_call.h"
#include "support/schema_test.h"

namespace fp8::test {
namespace {

const char* const kVendorCasts[] = {
    "hpu::cast_to_fp8(Tensor input, Tensor? scale, bool stochastic_rounding, Tensor(a!) out, Tensor(b!) amax) -> "
    "(Tensor(a!), Tensor(b!))",
    "hpu::cast_to_fp8_v2(Tensor input, Tensor? scale=None, bool stochastic_rounding=False, bool is_amax=False, "
    "ScalarType dtype=None, int[]? scale_shape=None) -> (Tensor, Tensor)",
    "hpu::cast_to_fp8_v2.scalar(Tensor input, float scale, bool stochastic_rounding=False, bool is_amax=False, "
    "ScalarType dtype=None, int[]? scale_shape=None) -> (Tensor, Tensor)",
    "hpu::cast_to_fp8_v2.scalar_list(Tensor input, float[] scale, bool stochastic_rounding=False, bool is_amax=False, "
    "ScalarType dtype=None, int[]? scale_shape=None) -> (Tensor, Tensor)",
    "hpu::cast_to_fp8_hybrid(Tensor input, Tensor? scale_152=None, Tensor? scale_143=None, bool "
    "stochastic_rounding=False, bool is_amax=False) -> (Tensor, Tensor, Tensor)",
    "hpu::cast_from_fp8(Tensor input, Tensor? scale, ScalarType out_dtype, int[]? scale_shape=None) -> Tensor",
    "hpu::cast_from_fp8.scalar(Tensor input, float scale, ScalarType out_dtype, int[]? scale_shape=None) -> Tensor",
    "hpu::cast_from_fp8.scalar_list(Tensor input, float[] scale, ScalarType out_dtype, int[]? scale_shape=None) -> "
    "Tensor",
    "hpu::fp8_gemm_v2(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, Tensor? "
    "A_scale_inv=None, Tensor? B_scale_inv=None, Tensor? bias=None, bool accumulate=False, int[]? B_scale_shape=None) "
    "-> Tensor",
    "hpu::fp8_gemm_v2.scalar(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, float "
    "A_scale_inv, float B_scale_inv, Tensor? bias=None, bool accumulate=False, int[]? B_scale_shape=None) -> Tensor",
    "hpu::fp8_gemm_v2.scalar_list(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, "
    "float[] A_scale_inv, float[] B_scale_inv, Tensor? bias=None, bool accumulate=False, int[]? B_scale_shape=None) -> "
    "Tensor",
    "hpu::conv2d_fp8(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, "
    "SymInt[2] dilation=1, int groups=1, ScalarType? out_dtype=None, Tensor? scale_input=None, Tensor? "
    "scale_weight=None) -> Tensor",
    "hpu::conv2d_fp8.scalar(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, "
    "SymInt[2] dilation=1, int groups=1, ScalarType? out_dtype=None, float scale_input=1.0, float scale_weight=1.0) -> "
    "Tensor",
};

TEST(Schemas, EqualTheVendors) {
  for (const char* text : kVendorCasts) test::expect_schema(text);
}

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
