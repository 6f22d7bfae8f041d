// SPDX-License-Identifier: Apache-2.0
// For autograd functions of our own that have first derivatives only.
#pragma once
#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string_view>

namespace fp8::runtime::ops {

/// What such a function's backward returns. First order passes; asking for a second derivative (create_graph) throws by
/// name instead of silently losing this part, by backward() and by autograd::grad() alike: "WHAT has no second
/// derivative", with a module "'MODULE': WHAT has ...". Call it inside of the function's backward; incoming: the
/// gradients that this got.
at::Tensor once_differentiable(const at::Tensor& gradient, std::string_view what, std::string_view module = {},
                               at::TensorList incoming = {});

/// Throws by name where an input has a forward-mode tangent, which such a function would drop: "'MODULE': WHAT has no
/// forward-mode derivative".
void refuse_tangents(std::initializer_list<at::Tensor> inputs, std::string_view what, std::string_view module = {});

}  // namespace fp8::runtime::ops
