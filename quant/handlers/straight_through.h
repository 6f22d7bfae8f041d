// SPDX-License-Identifier: Apache-2.0
// Straight-through gradients: the forward pass computes in fp8, the backward pass is that of the same operation on the
// dequantized values.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fp8/runtime/intercept/op_handler.h"

namespace fp8::quant {

class Fp8Handler;

/// What a 2-D convolution is besides its operands. One value per spatial dimension.
struct ConvolutionGeometry {
  std::vector<std::int64_t> stride, padding, dilation;
  std::int64_t groups = 1;
};

/// For x and bias of a quantized product: dx = dy . dequantized(w), db = sum of dy.
at::Tensor product_with_gradient(const std::shared_ptr<const Fp8Handler>& handler, const runtime::WeightView& view,
                                 const at::Tensor& weight, const at::Tensor& x, const std::optional<at::Tensor>& bias);

/// The same of a 2-D convolution: dx = the transposed convolution of dy with the dequantized w, db = sum of dy over all
/// but channels.
at::Tensor convolution_with_gradient(const std::shared_ptr<const Fp8Handler>& handler,
                                     const ConvolutionGeometry& geometry, const at::Tensor& weight, const at::Tensor& x,
                                     const std::optional<at::Tensor>& bias);

using Tensors = std::vector<at::Tensor>;

/// Any operation of several tensors and one result.
struct StraightThrough {
  std::function<at::Tensor(const Tensors&)> forward;         ///< in fp8, no gradients asked
  std::function<Tensors(const Tensors&)> values;             ///< inputs as fp8 saw them; empty: as they are
  std::function<at::Tensor(const Tensors&)> differentiable;  ///< of those values, in ATen ops
};

/// op.forward(inputs), with gradients for the inputs when they are wanted. One to three inputs, all defined.
at::Tensor straight_through(const StraightThrough& op, const Tensors& inputs);

}  // namespace fp8::quant
