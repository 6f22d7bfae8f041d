// SPDX-License-Identifier: Apache-2.0
// For autograd functions of our own that have first derivatives only.
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>

namespace fp8::runtime::ops {

/// What such a function's backward returns. First order passes; asking for a second derivative (create_graph) throws by name instead of
/// silently losing this part: "WHAT has no second derivative", with a module "'MODULE': WHAT has ...".
at::Tensor once_differentiable(const at::Tensor& gradient, std::string_view what, std::string_view module = {});

}  // namespace fp8::runtime::ops
