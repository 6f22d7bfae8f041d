// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <ostream>
#include <string_view>

#include "fp8/runtime/ops/native/arguments.h"
#include "fp8/transformer_engine/fp8_weight.h"

namespace fp8::te {

Fp8LinearOptions product_options(bool minimize_memory, std::optional<bool> is_first_microbatch, bool training) {
  const char* variable = std::getenv("PT_HPU_FP8_MINIMIZE_MEMORY");
  Fp8LinearOptions o;
  o.minimize_memory = minimize_memory || (variable != nullptr && std::string_view(variable) == "1");
  o.is_first_microbatch = is_first_microbatch;
  o.training = training;
  return o;
}

void check_params_dtype(const char* module, at::ScalarType dtype) {
  TORCH_CHECK(runtime::ops::is_high_precision(dtype), "[", module, "] params_dtype: found ", dtype, ", allowed: Float, BFloat16, Half");
}

at::Tensor initial_weight(at::IntArrayRef sizes, const InitMethod& init, at::ScalarType dtype, at::Device device) {
  const at::NoGradGuard no_grad;
  at::Tensor w = at::empty(sizes, at::TensorOptions().dtype(dtype).device(device));
  if (init) {
    init(w);
  } else {
    w.normal_(0.0, 0.023);
  }
  return w;
}

at::Tensor linear_or_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const std::shared_ptr<Fp8State>& state, const Fp8LinearOptions& options) {
  const std::optional<at::Tensor> b = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  if (is_fp8_enabled()) return fp8_linear(x, weight, b, state, options);
  record_operands(x, weight, state);
  const bool held_in_fp8 = c10::isFloat8Type(weight.scalar_type());
  return at::linear(x, held_in_fp8 ? weight_values(weight).to(x.scalar_type()) : weight, b);
}

LinearImpl::LinearImpl(LinearOptions options) : options_(std::move(options)) {
  TORCH_CHECK(options_.in_features >= 1 && options_.out_features >= 1, "[te::Linear] in_features, out_features: found ", options_.in_features, ", ",
              options_.out_features, ", allowed: integers >= 1");
  check_params_dtype("te::Linear", options_.params_dtype);
  check_parallel("te::Linear", options_.parallel);
  reset();
}

void LinearImpl::reset() {
  state_ = std::make_shared<Fp8State>(options_.name, 2, 1);
  const at::Tensor values = initial_weight({options_.out_features, options_.in_features}, options_.init_method, options_.params_dtype, options_.device);
  weight = register_parameter("weight", make_weight_parameter(values, options_.name));
  if (options_.bias) {
    bias = register_parameter("bias", at::zeros({options_.out_features}, values.options()));
  } else {
    bias = register_parameter("bias", {}, /*requires_grad=*/false);
  }
}

at::Tensor LinearImpl::forward(const at::Tensor& x, std::optional<bool> is_first_microbatch) {
  const Fp8LinearOptions o = product_options(options_.minimize_memory, is_first_microbatch, is_training());
  return linear_or_fp8(x, weight, options_.return_bias ? at::Tensor() : bias, state_, o);
}

std::pair<at::Tensor, at::Tensor> LinearImpl::forward_with_bias(const at::Tensor& x, std::optional<bool> is_first_microbatch) {
  at::Tensor y = forward(x, is_first_microbatch);
  return {std::move(y), options_.return_bias ? bias : at::Tensor()};
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << "fp8::te::Linear(in_features=" << options_.in_features << ", out_features=" << options_.out_features << ", bias=" << (options_.bias ? "true" : "false") << ")";
}

}  // namespace fp8::te
