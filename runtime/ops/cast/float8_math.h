// SPDX-License-Identifier: Apache-2.0
// Operations that aten lacks for float8 tensors on hpu, where programs compare and rescale them as values. Codes are
// read as the device in force reads them (gaudi2: infinity and NaN from 0x78 on), arithmetic is f32.
//
//   add sub rsub mul div neg abs   float8 with float8 of the same dtype, or with a number or 0-dim tensor: result
//                                  float8, RNE, saturating as the device does; Scalar and out forms and in place too
//   eq ne lt le gt ge isnan isinf  bool
//   sum                            f32 sums; the dtype asked for, else float8 again (as hpu::sum_fp8)
//   isclose, allclose              of the values in f32; a tagged weight's are what its handler dequantizes
//
// PyTorch's promotions hold: float8 beside a tensor of another dtype stays refused. Everything else either moves codes
// (cat, index, where, ...) or is refused by name (dispatch/fallback.h).
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fp8::runtime::ops {

/// The ops above but isclose, of float8 (runtime::BeforeFallback). A tagged weight is refused by name.
bool take_float8(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// aten::isclose; self and other of one dtype.
at::Tensor isclose(const at::Tensor& self, const at::Tensor& other, double rtol, double atol, bool equal_nan);

}  // namespace fp8::runtime::ops
