// SPDX-License-Identifier: Apache-2.0
// What aten lacks for float8 tensors on hpu, where programs compare and rescale them as values: mul, isclose, allclose.
//
//   mul       float8 * float8 of the same dtype, or with a number or 0-dim tensor: f32 product, RNE, saturating as the
//             device does; result float8
//   isclose   of the values in f32; a tagged weight's are what its handler dequantizes
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fp8::runtime::ops {

/// aten::mul.Tensor and mul_.Tensor; other dtypes go to the fallback. A tagged weight is refused by name.
void multiply_or_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// aten::isclose; self and other of one dtype.
at::Tensor isclose(const at::Tensor& self, const at::Tensor& other, double rtol, double atol, bool equal_nan);

}  // namespace fp8::runtime::ops
