// SPDX-License-Identifier: Apache-2.0
// Gradients through a quantized product: the fp8 weight is constant, x and bias may learn (adapters, inputs).
//
//   product       dx = dy . (codes * scale_inv)                                db = sum over rows of dy
//   convolution   dx = transposed convolution of dy with codes * scale_inv     db = sum over all but channels of dy
#include "fp8/quant/handlers/straight_through.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct State : torch::CustomClassHolder {
  std::shared_ptr<const Fp8Handler> handler;
  runtime::WeightView view;
  ConvolutionGeometry geometry;
};

at::Tensor once_differentiable(const at::Tensor& g, const variable_list& incoming) {
  return runtime::ops::once_differentiable(g, "the fp8 product of fp8::quant", {}, incoming);
}

void remember(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& bias,
              const at::Tensor& weight, const c10::intrusive_ptr<State>& state) {
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
std::optional<at::Tensor> given(const std::optional<at::Tensor>& bias) {
  return bias.has_value() && bias->defined() ? bias : std::nullopt;
}

struct QuantizedProduct : torch::autograd::Function<QuantizedProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& bias,
                            const at::Tensor& weight, const c10::intrusive_ptr<State>& state) {
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
    return {once_differentiable(dx, gradients), once_differentiable(db, gradients), at::Tensor(), at::Tensor()};
  }
};

struct QuantizedConvolution : torch::autograd::Function<QuantizedConvolution> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& bias,
                            const at::Tensor& weight, const c10::intrusive_ptr<State>& state) {
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
      const at::Tensor x = at::empty(context->saved_data["sizes"].toIntVector(),
                                     dy.options());  // its values are not read: no gradient for w
      const std::int64_t output_padding[] = {0, 0};
      dx = std::get<0>(at::convolution_backward(dy, x, w, std::nullopt, g.stride, g.padding, g.dilation, false,
                                                output_padding, g.groups, {true, false, false}))
               .to(context->saved_data["dtype"].toScalarType());
      if (context->saved_data["bias"].toBool()) db = dy.sum(at::IntArrayRef{0, 2, 3});
    }
    return {once_differentiable(dx, gradients), once_differentiable(db, gradients), at::Tensor(), at::Tensor()};
  }
};

struct OpState : torch::CustomClassHolder {
  StraightThrough op;
};

/// Of one to three tensors (Function does not look into lists).
struct AnyOp : torch::autograd::Function<AnyOp> {
  static constexpr std::size_t kMost = 3;

  static at::Tensor forward(AutogradContext* context, const at::Tensor& first, const std::optional<at::Tensor>& second,
                            const std::optional<at::Tensor>& third, const c10::intrusive_ptr<OpState>& state) {
    variable_list inputs{first};
    if (second.has_value()) inputs.push_back(*second);
    if (third.has_value()) inputs.push_back(*third);
    context->saved_data["state"] = c10::IValue::make_capsule(state);
    context->save_for_backward(inputs);
    const at::Tensor y = state->op.forward(inputs);
    state->op.forward = nullptr;  // it may refer to the caller's arguments
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto state = c10::static_intrusive_pointer_cast<OpState>(context->saved_data["state"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    variable_list seen = saved, wanted, result(kMost + 1);
    std::vector<std::size_t> index;
    {
      const at::NoGradGuard no_grad;
      if (state->op.values) seen = state->op.values(saved);
    }
    for (std::size_t i = 0; i < saved.size(); ++i) {
      if (!saved[i].defined()) continue;
      seen[i] = seen[i].detach();
      if (!context->needs_input_grad(i)) continue;
      seen[i].requires_grad_(true);
      wanted.push_back(seen[i]);
      index.push_back(i);
    }
    variable_list found;
    {
      const at::AutoGradMode with_grad(true);
      const at::Tensor y = state->op.differentiable(seen);
      found = torch::autograd::grad({y}, wanted, {gradients[0].detach().to(y.scalar_type())}, /*retain_graph=*/false,
                                    /*create_graph=*/false, /*allow_unused=*/true);
    }
    for (std::size_t i = 0; i < index.size(); ++i) {
      if (found[i].defined())
        result[index[i]] = once_differentiable(found[i].to(saved[index[i]].scalar_type()), gradients);
    }
    return result;
  }
};

}  // namespace

at::Tensor straight_through(const StraightThrough& op, const Tensors& inputs) {
  bool wanted = false;
  for (const auto& t : inputs) {
    runtime::ops::refuse_tangents({t}, "the fp8 product of fp8::quant");
    wanted = wanted || (t.defined() && t.requires_grad());
  }
  if (!wanted || !at::GradMode::is_enabled()) return op.forward(inputs);
  auto state = c10::make_intrusive<OpState>();
  state->op = op;
  TORCH_INTERNAL_ASSERT(inputs.size() <= AnyOp::kMost);
  const auto nth = [&](std::size_t i) {
    return i < inputs.size() ? std::optional<at::Tensor>(inputs[i]) : std::nullopt;
  };
  return AnyOp::apply(inputs[0], nth(1), nth(2), state);
}

at::Tensor product_with_gradient(const std::shared_ptr<const Fp8Handler>& handler, const runtime::WeightView& view,
                                 const at::Tensor& weight, const at::Tensor& x, const std::optional<at::Tensor>& bias) {
  auto state = c10::make_intrusive<State>();
  state->handler = handler;
  state->view = view;
  return QuantizedProduct::apply(x, given(bias), weight.detach(), state);
}

at::Tensor convolution_with_gradient(const std::shared_ptr<const Fp8Handler>& handler,
                                     const ConvolutionGeometry& geometry, const at::Tensor& weight, const at::Tensor& x,
                                     const std::optional<at::Tensor>& bias) {
  auto state = c10::make_intrusive<State>();
  state->handler = handler;
  state->geometry = geometry;
  return QuantizedConvolution::apply(x, given(bias), weight.detach(), state);
}

}  // namespace fp8::quant
