// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/quantizer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {
namespace ops = runtime::ops;
using runtime::Fp8Tensor, runtime::ScaleLayout;

runtime::DeviceKind kind_of(recipes::Dialect dialect) {
  return dialect == recipes::Dialect::gaudi2 ? runtime::DeviceKind::gaudi2 : runtime::DeviceKind::gaudi3;
}

at::ScalarType source_dtype(const Numbers& numbers) {
  if (numbers.convention == Convention::own || numbers.hp == recipes::FloatType::F32) return at::kFloat;
  return numbers.hp == recipes::FloatType::BF16 ? at::kBFloat16 : at::kHalf;
}

Quantizer::Quantizer(const Numbers& numbers, float scale_inv) : numbers_(numbers), scale_inv_(scale_inv) {
  if (!(scale_inv > 0.0f) || !std::isfinite(scale_inv))
    io::fail<std::invalid_argument>("scale_inv: found {}, expected a positive finite number", scale_inv);
  scale_ = scale_for(numbers, scale_inv, "scale_inv");
}

Quantizer::Quantizer(const Numbers& numbers, const ScaleLayout& layout, const recipes::ScaleMethod& method, bool mx)
    : numbers_(numbers), layout_(layout), mx_(mx), method_(method) {
  if (layout.has_blocks() && numbers.convention != Convention::own)
    throw std::invalid_argument("activation groups: INC's convention has none, expected the own convention");
}

namespace {

/// Columns as rows.
at::Tensor transposed(const at::Tensor& x) { return x.transpose(-2, -1); }

Fp8Tensor transposed(Fp8Tensor x) {
  x.codes = transposed(x.codes);
  if (x.layout.one()) return x;
  x.grid = transposed(x.grid);
  x.layout = ScaleLayout::per_column();
  return x;
}

/// A grid of one scale is that scale.
Fp8Tensor simplified(Fp8Tensor x) {
  if (x.layout.one() || x.grid.numel() != 1 || x.grid.scalar_type() != at::kFloat) return x;
  x.scale_inv = *x.grid.const_data_ptr<float>();
  x.grid = at::Tensor();
  x.layout = ScaleLayout::per_tensor();
  return x;
}

using torch::autograd::AutogradContext, torch::autograd::variable_list;

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
    for (std::size_t i = 0; i < index.size(); ++i)
      if (found[i].defined())
        result[index[i]] = once_differentiable(found[i].to(saved[index[i]].scalar_type()), gradients);
    return result;
  }
};

}  // namespace

/// All but the scales that INC's methods make at each call.
runtime::CastSpec Quantizer::spec() const {
  runtime::CastSpec spec{.format = numbers_.format, .max = numbers_.fp8_max()};
  spec.vendor = numbers_.convention == Convention::inc;
  if (!dynamic()) {
    spec.scale = scale_;
    spec.scale_inv = *scale_inv_;
    return spec;
  }
  spec.rule = mx_ ? runtime::ScaleRule::e8m0 : runtime::ScaleRule::amax_over_max;
  spec.layout = columns() ? ScaleLayout::per_row() : layout_;  // columns as rows
  return spec;
}

bool Quantizer::casts_as(const Quantizer& other) const {
  return spec().same_result(other.spec()) && layout_ == other.layout_ &&
         source_dtype(numbers_) == source_dtype(other.numbers_) && method_ == other.method_;
}

Fp8Tensor Quantizer::cast(const at::Tensor& x, bool once) const {
  TORCH_CHECK(x.is_hpu(), "[cast_to_fp8] expected an activation on hpu, got one on ", x.device());
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::ScalarType dtype = numbers_.convention == Convention::inc    ? source_dtype(numbers_)
                               : ops::is_high_precision(x.scalar_type()) ? x.scalar_type()
                                                                         : at::kFloat;
  const bool columns = this->columns() && x.dim() >= 2;
  const at::Tensor source = columns ? transposed(x.to(dtype)) : x.to(dtype);
  if (dynamic() && numbers_.convention == Convention::inc) {
    const Fp8Tensor result = simplified(cast_by_method(source.contiguous()));
    return columns ? transposed(result) : result;
  }
  runtime::CastSpec how = spec();
  if (x.dim() == 0 && dynamic()) how.layout = ScaleLayout::per_tensor();
  const Fp8Tensor result =
      simplified(once && !columns ? runtime::cast_once(x, source, how) : runtime::quantize(source, how));
  return columns ? transposed(result) : result;
}

Fp8Tensor Quantizer::cast(const at::Tensor& x) const { return cast(x, false); }
Fp8Tensor Quantizer::cast_once(const at::Tensor& x) const { return cast(x, true); }

std::optional<runtime::CastSpec> Quantizer::cast_of(at::ScalarType dtype) const {
  const bool inc = numbers_.convention == Convention::inc;
  if (!ops::is_high_precision(dtype) || (inc && (dynamic() || source_dtype(numbers_) != dtype)) || columns())
    return std::nullopt;
  return spec();
}

Fp8Tensor Quantizer::with_scale(const at::Tensor& codes) const {
  Fp8Tensor x{codes};
  x.scale_inv = scale_inv();
  return x;
}

/// INC's dynamic scales. source: contiguous, in hp.
Fp8Tensor Quantizer::cast_by_method(const at::Tensor& source) const {
  const bool per_row = !layout_.one() && source.dim() > 0;
  auto sizes = source.sizes().vec();
  if (per_row) sizes.back() = 1;
  const at::Tensor grid =
      at::empty(per_row ? at::IntArrayRef(sizes) : at::IntArrayRef({1}), source.options().dtype(at::kFloat));
  const std::int64_t rows = grid.numel(), cols = per_row ? source.size(-1) : source.numel();
  float* scale_inv = grid.mutable_data_ptr<float>();
  kernels::amax_rows(source.const_data_ptr(), ops::float_type_of(source.scalar_type()), rows, cols, cols, scale_inv);
  recipes::inc_dynamic_scale_inv(scale_inv, rows, method_, {numbers_.dialect, numbers_.format, numbers_.hp}, scale_inv);
  std::vector<float> scales(static_cast<std::size_t>(rows));
  for (std::size_t r = 0; r < scales.size(); ++r) {
    if (!std::isfinite(scale_inv[r])) scale_inv[r] = std::numeric_limits<float>::quiet_NaN();
    scales[r] = std::isnan(scale_inv[r]) ? scale_inv[r] : recipes::inc_scale(scale_inv[r], numbers_.hp);
  }
  runtime::CastSpec how = spec();
  how.rule = runtime::ScaleRule::given;
  how.layout = per_row ? ScaleLayout::per_row() : ScaleLayout::per_tensor();
  how.scale = rows > 0 ? scales[0] : 1.0f;
  how.scales = scales.data();
  Fp8Tensor result = runtime::quantize(source, how);
  result.layout = ScaleLayout::per_row();
  result.grid = grid;
  return result;
}

at::Tensor Quantizer::through_fp8(const at::Tensor& x) const {
  StraightThrough op;
  op.forward = [this](const std::vector<at::Tensor>& in) {
    return runtime::dequantize(cast(in[0]), in[0].scalar_type());
  };
  op.differentiable = [](const std::vector<at::Tensor>& in) { return in[0]; };
  return straight_through(op, {x});
}

at::ScalarType compute_dtype(const at::Tensor& x) {
  return runtime::autocast::region_dtype().value_or(x.scalar_type());
}

// Gradients through a quantized product: the fp8 weight is constant, x and bias may learn (adapters, inputs).
//
//   product       dx = dy . (codes * scale_inv)                                db = sum over rows of dy
//   convolution   dx = transposed convolution of dy with codes * scale_inv     db = sum over all but channels of dy

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
