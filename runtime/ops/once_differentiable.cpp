// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/once_differentiable.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <string>

namespace fp8::runtime::ops {

at::Tensor once_differentiable(const at::Tensor& gradient, std::string_view what, std::string_view module) {
  if (!gradient.defined() || !at::GradMode::is_enabled()) return gradient;
  const std::string who = module.empty() ? "" : "'" + std::string(module) + "': ";
  const auto error = c10::make_intrusive<torch::autograd::DelayedError>(who + std::string(what) + " has no second derivative", 1);
  return (*error)({gradient.detach().requires_grad_(true)})[0];
}

}  // namespace fp8::runtime::ops
