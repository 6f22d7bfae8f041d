// SPDX-License-Identifier: Apache-2.0
// Gradients through a quantized product: the fp8 weight is constant, x and bias may learn (adapters, inputs).
//
//   dx = dy . (codes * scale_inv)      db = sum over rows of dy
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include "fp8/quant/fp8_handler.h"

namespace fp8::quant {
namespace {

struct State : torch::CustomClassHolder {
  std::shared_ptr<const Fp8Handler> handler;
  runtime::WeightView view;
};

struct QuantizedProduct : torch::autograd::Function<QuantizedProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& bias, const at::Tensor& weight,
                            const c10::intrusive_ptr<State>& state) {
    context->saved_data["state"] = c10::IValue::make_capsule(state);
    context->saved_data["bias"] = bias.defined();
    context->saved_data["dtype"] = x.scalar_type();
    context->save_for_backward({weight});
    return state->handler->product(state->view, weight, x, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    const auto state = c10::static_intrusive_pointer_cast<State>(context->saved_data["state"].toCapsule());
    const at::Tensor dy = gradients[0];
    at::Tensor dx, db;
    {
      const at::NoGradGuard no_grad;
      const at::Tensor w = state->handler->values(state->view, context->get_saved_variables()[0], dy.scalar_type());
      dx = at::matmul(dy.detach(), w).to(context->saved_data["dtype"].toScalarType());
      if (context->saved_data["bias"].toBool()) db = dy.detach().reshape({-1, dy.size(-1)}).sum(0);
    }
    if (at::GradMode::is_enabled()) dx = once_differentiable(dx);
    return {dx, db, at::Tensor(), at::Tensor()};
  }

  /// First order passes; asking for a second one throws by name instead of silently losing this part.
  static at::Tensor once_differentiable(const at::Tensor& g) {
    return (*c10::make_intrusive<torch::autograd::DelayedError>("the fp8 product of fp8::quant has no second derivative", 1))({g.detach().requires_grad_(true)})[0];
  }
};

}  // namespace

at::Tensor product_with_gradient(const std::shared_ptr<const Fp8Handler>& handler, const runtime::WeightView& view, const at::Tensor& weight, const at::Tensor& x,
                                 const std::optional<at::Tensor>& bias) {
  auto state = c10::make_intrusive<State>();
  state->handler = handler;
  state->view = view;
  return QuantizedProduct::apply(x, bias.value_or(at::Tensor()), weight.detach(), state);
}

}  // namespace fp8::quant
