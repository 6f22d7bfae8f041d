// SPDX-License-Identifier: Apache-2.0
// fp8 codes with the scales that give them meaning: what casts return, and what products and decodes take.
//
//   value(r, c) = codes[r, c] * scale_inv of the block that (r, c) lies in
//
//   layout          one scale for     scales                                       made for
//   per_tensor()    all               scale_inv                                    static and per-tensor scales
//   per_row()       a row             grid [..., 1]                                tokens, output channels
//   per_column()    a column          grid [..., 1, C]                             the right operand of a product
//   blocks(r, c)    r x c elements    grid [ceil(R / r), ceil(C / c)]              groups of a token (1 x c), weights
//                                                                                  (128 x 128), MX (1 x 32, E8M0)
//
// codes [..., C] are seen as a matrix [R, C]: all dimensions but the last are rows. Per row and in groups the grid
// keeps the dimensions of the codes, with the number of groups as the last.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "fp8/runtime/kernels/cast.h"

namespace fp8::runtime {

using kernels::ScaleLayout;

struct Fp8Tensor {
  at::Tensor codes;        ///< float8_e4m3fn or float8_e5m2
  float scale_inv = 1.0f;  ///< of the layout per_tensor(): a number, so that the common case allocates nothing
  at::Tensor grid = {};    ///< of the others: f32, or float8_e8m0fnu; on any device, all of which are host memory
  ScaleLayout layout = {};
  bool power_of_two = false;  ///< every scale is: values are exact in bf16
  /// The reading of E4M3 that the codes need. What is cast here has no code that two dialects read differently,
  /// whatever it saturates at: only codes that come from elsewhere (a loaded weight) say gaudi2.
  kernels::Dialect dialect = kernels::Dialect::ocp;
  bool reused = false;  ///< a model's weight, which many products read: worth packing (device/block.h)
};

/// codes * scales as `dtype` (f32, bf16 or f16): the f32 product, rounded once. Sizes and device of the codes. Throws
/// c10::Error where the grid does not fit the codes.
at::Tensor dequantize(const Fp8Tensor& x, at::ScalarType dtype);
/// dequantize() for operators, which are traced by their own names and checked.
at::Tensor decode(const Fp8Tensor& x, at::ScalarType dtype);

// LibTorch's dtypes and the kernels' formats and types.

bool is_fp8(at::ScalarType type);                ///< float8_e4m3fn or float8_e5m2
kernels::Format format_of(at::ScalarType type);  ///< of an fp8 dtype
at::ScalarType dtype_of(kernels::Format format);
at::ScalarType dtype_of(kernels::FloatType type);
kernels::FloatType float_type_of(at::ScalarType type);  ///< f32, bf16, f16
kernels::Storage storage_of(at::ScalarType type);       ///< those and the two of fp8
bool is_high_precision(at::ScalarType type);            ///< f32, bf16, f16

/// Throws "[op] expected <what> of dtype float8_e4m3fn or float8_e5m2, got ..." unless it is.
void check_fp8(const char* op, const char* what, at::ScalarType type);
/// Throws "[op] expected <what> Float, BFloat16 or Half, got ..." unless it is. what: "x of dtype", "out_dtype".
void check_high_precision(const char* op, const char* what, at::ScalarType type);

}  // namespace fp8::runtime
