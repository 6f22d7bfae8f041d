// SPDX-License-Identifier: Apache-2.0
// Gradients through a quantized product: the fp8 weight is constant, x and bias may learn (adapters, inputs).
//
//   product       dx = dy . (codes * scale_inv)                                db = sum over rows of dy
//   convolution   dx = transposed convolution of dy with codes * scale_inv     db = sum over all but channels of dy
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include "fp8/quant/fp8_handler.h"

namespace fp8::quant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct State : torch::CustomClassHolder {
  std::shared_ptr<const Fp8Handler> handler;
  runtime::WeightView view;
  ConvolutionGeometry geometry;
};

/// First order passes; asking for a second one throws by name instead of silently losing this part.
at::Tensor once_differentiable(const at::Tensor& g) {
  if (!g.defined() || !at::GradMode::is_enabled()) return g;
  return (*c10::make_intrusive<torch::autograd::DelayedError>("the fp8 product of fp8::quant has no second derivative", 1))({g.detach().requires_grad_(true)})[0];
}

void remember(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& bias, const at::Tensor& weight, const c10::intrusive_ptr<State>& state) {
  context->saved_data["state"] = c10::IValue::make_capsule(state);
  context->saved_data["bias"] = bias.has_value();
  context->saved_data["dtype"] = x.scalar_type();
  context->saved_data["sizes"] = x.sizes();
  context->save_for_backward({weight});
}

c10::intrusive_ptr<State> state_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<State>(context->saved_data["state"].toCapsule());
}

/// Function::apply takes a missing tensor as nullopt, not as an undefined one.
std::optional<at::Tensor> given(const std::optional<at::Tensor>& bias) { return bias.has_value() && bias->defined() ? bias : std::nullopt; }

struct QuantizedProduct : torch::autograd::Function<QuantizedProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& bias, const at::Tensor& weight,
                            const c10::intrusive_ptr<State>& state) {
    remember(context, x, bias, weight, state);
    return state->handler->product(state->view, weight, x, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto state = state_of(context);
    at::Tensor dx, db;
    {
      const at::NoGradGuard no_grad;
      const at::Tensor dy = gradients[0].detach();
      const at::Tensor w = state->handler->values(state->view, context->get_saved_variables()[0], dy.scalar_type());
      dx = at::matmul(dy, w).to(context->saved_data["dtype"].toScalarType());
      if (context->saved_data["bias"].toBool()) db = dy.reshape({-1, dy.size(-1)}).sum(0);
    }
    return {once_differentiable(dx), once_differentiable(db), at::Tensor(), at::Tensor()};
  }
};

struct QuantizedConvolution : torch::autograd::Function<QuantizedConvolution> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& bias, const at::Tensor& weight,
                            const c10::intrusive_ptr<State>& state) {
    remember(context, x, bias, weight, state);
    return state->handler->convolution_product(state->geometry, weight, x, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto state = state_of(context);
    const ConvolutionGeometry& g = state->geometry;
    at::Tensor dx, db;
    {
      const at::NoGradGuard no_grad;
      const at::Tensor dy = gradients[0].detach();
      const at::Tensor w = state->handler->all_values(context->get_saved_variables()[0], dy.scalar_type());
      const at::Tensor x = at::empty(context->saved_data["sizes"].toIntVector(), dy.options());  // its values are not read: no gradient for w
      const std::int64_t output_padding[] = {0, 0};
      dx = std::get<0>(at::convolution_backward(dy, x, w, std::nullopt, g.stride, g.padding, g.dilation, false, output_padding, g.groups, {true, false, false}))
               .to(context->saved_data["dtype"].toScalarType());
      if (context->saved_data["bias"].toBool()) db = dy.sum(at::IntArrayRef{0, 2, 3});
    }
    return {once_differentiable(dx), once_differentiable(db), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor product_with_gradient(const std::shared_ptr<const Fp8Handler>& handler, const runtime::WeightView& view, const at::Tensor& weight, const at::Tensor& x,
                                 const std::optional<at::Tensor>& bias) {
  auto state = c10::make_intrusive<State>();
  state->handler = handler;
  state->view = view;
  return QuantizedProduct::apply(x, given(bias), weight.detach(), state);
}

at::Tensor convolution_with_gradient(const std::shared_ptr<const Fp8Handler>& handler, const ConvolutionGeometry& geometry, const at::Tensor& weight,
                                     const at::Tensor& x, const std::optional<at::Tensor>& bias) {
  auto state = c10::make_intrusive<State>();
  state->handler = handler;
  state->geometry = geometry;
  return QuantizedConvolution::apply(x, given(bias), weight.detach(), state);
}

}  // namespace fp8::quant
