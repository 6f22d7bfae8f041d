// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/common/once_differentiable.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>

namespace fp8::runtime::ops {
namespace {

/// In the graph of a gradient, where the derivatives of that gradient would be.
struct NoSecondDerivative final : torch::autograd::Node {
  std::string message;
  std::string name() const override { return "fp8::NoSecondDerivative"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { TORCH_CHECK(false, message); }
};

}  // namespace

at::Tensor once_differentiable(const at::Tensor& gradient, std::string_view what, std::string_view module,
                               at::TensorList incoming) {
  if (!gradient.defined() || !at::GradMode::is_enabled()) return gradient;
  auto error = c10::make_intrusive<NoSecondDerivative>();
  if (!module.empty()) error->message = c10::str("'", module, "': ");
  error->message += c10::str(what, " has no second derivative");
  // autograd::grad() runs only nodes that lead to the tensors asked for: this one must lead to all that the gradient
  // depends on.
  torch::autograd::edge_list edges;
  if (const auto function = torch::autograd::get_current_node()) edges = function->next_edges();
  for (const auto& t : incoming) {
    if (t.defined() && t.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(t));
  }
  error->set_next_edges(std::move(edges));
  at::Tensor result = gradient.detach();
  torch::autograd::set_history(result, error);
  return result;
}

void refuse_tangents(std::initializer_list<at::Tensor> inputs, std::string_view what, std::string_view module) {
  for (const at::Tensor& t : inputs) {
    if (!t.defined()) continue;
    const std::string whose = module.empty() ? std::string() : c10::str("'", module, "': ");
    TORCH_CHECK_NOT_IMPLEMENTED(!t.key_set().has(c10::DispatchKey::FuncTorchGradWrapper), whose, what,
                                " has no derivative for torch.func (grad, vjp, jvp): take a backward pass, or run it "
                                "outside of fp8");
    if (!t._fw_grad(/*level=*/0).defined()) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(false, whose, what, " has no forward-mode derivative: found an input of sizes ",
                                t.sizes(), " with a tangent; take a backward pass, or run it outside of fp8");
  }
}

}  // namespace fp8::runtime::ops
