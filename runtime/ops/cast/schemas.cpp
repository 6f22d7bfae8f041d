// SPDX-License-Identifier: Apache-2.0
// The hpu:: schemas of casts and products. Names, argument order and defaults are the vendor's (bridge 1.19), so that
// programs written for the device run unchanged; the semantics stand in the headers of ops/. `ScalarType dtype=None` is
// the vendor's spelling: callers must pass it.
//
// Register a schema here, its kernel and meta function in register_fp8.cpp, its work in <op>.cpp.
#include <torch/library.h>

#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/intercept/autocast_rules.h"

FP8_LIBRARY(hpu, m) {
  // --- casts
  m.def(
      "cast_to_fp8(Tensor input, Tensor? scale, bool stochastic_rounding, Tensor(a!) out, Tensor(b!) amax) -> "
      "(Tensor(a!), Tensor(b!))");
  m.def(
      "cast_to_fp8_v2(Tensor input, Tensor? scale=None, bool stochastic_rounding=False, bool is_amax=False, ScalarType "
      "dtype=None, int[]? scale_shape=None) -> (Tensor, Tensor)");
  m.def(
      "cast_to_fp8_v2.scalar(Tensor input, float scale, bool stochastic_rounding=False, bool is_amax=False, ScalarType "
      "dtype=None, int[]? scale_shape=None) -> (Tensor, Tensor)");
  m.def(
      "cast_to_fp8_v2.scalar_list(Tensor input, float[] scale, bool stochastic_rounding=False, bool is_amax=False, "
      "ScalarType dtype=None, int[]? scale_shape=None) -> (Tensor, Tensor)");
  m.def(
      "cast_to_fp8_hybrid(Tensor input, Tensor? scale_152=None, Tensor? scale_143=None, bool "
      "stochastic_rounding=False, "
      "bool is_amax=False) -> (Tensor, Tensor, Tensor)");
  m.def("cast_from_fp8(Tensor input, Tensor? scale, ScalarType out_dtype, int[]? scale_shape=None) -> Tensor");
  m.def("cast_from_fp8.scalar(Tensor input, float scale, ScalarType out_dtype, int[]? scale_shape=None) -> Tensor");
  m.def(
      "cast_from_fp8.scalar_list(Tensor input, float[] scale, ScalarType out_dtype, int[]? scale_shape=None) -> "
      "Tensor");
  m.def(
      "calculate_scale_for_cast(Tensor input, int maxMode, int scaleMode, int reduceAxis=0, bool reduceKeepdim=False, "
      "float fullscale=1.0, float backoff=1.0) -> Tensor");

  // --- products
  m.def(
      "fp8_gemm_v2(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, Tensor? "
      "A_scale_inv=None, Tensor? B_scale_inv=None, Tensor? bias=None, bool accumulate=False, int[]? "
      "B_scale_shape=None) -> Tensor");
  m.def(
      "fp8_gemm_v2.scalar(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, float "
      "A_scale_inv, float B_scale_inv, Tensor? bias=None, bool accumulate=False, int[]? B_scale_shape=None) -> Tensor");
  m.def(
      "fp8_gemm_v2.scalar_list(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, "
      "float[] A_scale_inv, float[] B_scale_inv, Tensor? bias=None, bool accumulate=False, int[]? B_scale_shape=None) "
      "-> Tensor");
  m.def(
      "conv2d_fp8(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] "
      "dilation=1, int groups=1, ScalarType? out_dtype=None, Tensor? scale_input=None, Tensor? scale_weight=None) -> "
      "Tensor");
  m.def(
      "conv2d_fp8.scalar(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, "
      "SymInt[2] dilation=1, int groups=1, ScalarType? out_dtype=None, float scale_input=1.0, float scale_weight=1.0) "
      "-> Tensor");
  fp8::runtime::autocast::keep_out_of_own_ops();
}
