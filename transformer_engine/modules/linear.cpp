// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <ostream>
#include <string_view>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/transformer_engine/products/fp8_weight.h"
#include "fp8/transformer_engine/region/recomputation.h"

namespace fp8::te {
namespace {

constexpr const char* kMinimize = "PT_HPU_FP8_MINIMIZE_MEMORY";

}  // namespace

void check_options(const char* module, at::ScalarType params_dtype, bool minimize_memory) {
  check_params_dtype(module, params_dtype);
  if (minimize_memory) io::override_flag(kMinimize, {{"1", io::FlagSource::call, "minimize_memory"}});
}

Fp8LinearOptions product_options(bool minimize_memory, std::optional<bool> is_first_microbatch, bool training) {
  const char* variable = io::environment_value(kMinimize);
  Fp8LinearOptions o;
  o.minimize_memory = minimize_memory || (variable != nullptr && std::string_view(variable) == "1");
  o.is_first_microbatch = is_first_microbatch;
  o.training = training;
  return o;
}

void check_params_dtype(const char* module, at::ScalarType dtype) {
  TORCH_CHECK(runtime::ops::is_high_precision(dtype), "[", module, "] params_dtype: found ", dtype,
              ", allowed: Float, BFloat16, Half");
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

at::Tensor linear_or_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const std::shared_ptr<Fp8State>& state, const Fp8LinearOptions& options) {
  const std::optional<at::Tensor> b = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  const ProductRun run(*state);
  if (is_fp8_enabled() && !state->keeps_high_precision()) return fp8_linear(x, weight, b, state, options);
  record_operands(x, weight, state);
  const bool held_in_fp8 = c10::isFloat8Type(weight.scalar_type());
  return at::linear(x, held_in_fp8 ? weight_values(weight).to(x.scalar_type()) : weight, b);
}

void check_split(const char* module, const ParametersSplit& split, std::int64_t out_features) {
  std::int64_t sum = 0;
  for (const auto& [name, rows] : split) {
    TORCH_CHECK(!name.empty() && name.find('.') == std::string::npos && rows >= 1 && rows <= out_features, "[", module,
                "] parameters_split: found {\"", name, "\", ", rows, "}, allowed: names without dots and 1 to ",
                out_features, " rows");
    sum += rows;
  }
  TORCH_CHECK(split.empty() || sum == out_features, "[", module, "] parameters_split: found ", sum,
              " rows in all, allowed: out_features = ", out_features);
}

void ProductParameters::add(torch::nn::Module& module, const char* kind, const std::string& name,
                            const ParametersSplit& split, const at::Tensor& weight, bool bias) {
  weights_.clear();
  biases_.clear();
  if (split.empty()) {
    weight_ = module.register_parameter("weight", make_weight_parameter(weight, name));
    bias_ = module.register_parameter("bias", bias ? at::zeros({weight.size(0)}, weight.options()) : at::Tensor(),
                                      /*requires_grad=*/bias);
    return;
  }
  std::int64_t at = 0;
  for (const auto& [part, rows] : split) {
    const std::string stem = part.substr(0, part.find_last_not_of('_') + 1);
    const at::Tensor values = make_weight_parameter(weight.narrow(0, at, rows).clone(), name + "." + stem);
    TORCH_CHECK(!c10::isFloat8Type(values.scalar_type()), "[", kind, "] '", name, "': parameters_split: found ",
                split.size(), " parts, allowed in quantized_model_init: none (a weight in fp8 has one scale)");
    weights_.push_back(module.register_parameter(stem + "_weight", values));
    if (bias) biases_.push_back(module.register_parameter(stem + "_bias", at::zeros({rows}, weight.options())));
    at += rows;
  }
}

at::Tensor ProductParameters::whole_weight(const at::Tensor& weight) const {
  return weights_.empty() ? weight : at::cat(weights_, 0);
}
at::Tensor ProductParameters::whole_bias(const at::Tensor& bias) const {
  return biases_.empty() ? bias : at::cat(biases_, 0);
}

LinearImpl::LinearImpl(LinearOptions options) : options_(std::move(options)) {
  constexpr const char* kind = "te::Linear";
  TORCH_CHECK(options_.in_features >= 1 && options_.out_features >= 1, "[te::Linear] in_features, out_features: found ",
              options_.in_features, ", ", options_.out_features, ", allowed: integers >= 1");
  check_options(kind, options_.params_dtype, options_.minimize_memory);
  check_parallel(kind, options_.parallel);
  check_split(kind, options_.parameters_split, options_.out_features);
  TORCH_CHECK(!options_.skip_weight_param_allocation || options_.parameters_split.empty(),
              "[te::Linear] parameters_split: found one, allowed with skip_weight_param_allocation: none");
  refuse_wgrad_options(kind, options_.fuse_wgrad_accumulation, options_.delay_wgrad_compute);
  reset();
}

void LinearImpl::reset() {
  state_ = std::make_shared<Fp8State>(options_.name, 2, 1);
  if (options_.skip_weight_param_allocation) {  // a clone has a weight already, and copies its values into a new one
    weight = register_parameter("weight", weight.defined() ? at::empty_like(weight) : at::Tensor(),
                                /*requires_grad=*/weight.defined());
    bias = register_parameter("bias", bias.defined() ? at::empty_like(bias) : at::Tensor(),
                              /*requires_grad=*/bias.defined());
    return;
  }
  const at::Tensor values = initial_weight({options_.out_features, options_.in_features}, options_.init_method,
                                           options_.params_dtype, options_.device);
  parameters_of_product_.add(*this, "te::Linear", options_.name, options_.parameters_split, values, options_.bias);
  weight = parameters_of_product_.one_weight();
  bias = parameters_of_product_.one_bias();
}

void LinearImpl::set_weight(const at::Tensor& new_weight, const at::Tensor& new_bias) {
  const auto& o = options_;
  TORCH_CHECK(o.skip_weight_param_allocation, "[te::Linear] '", o.name,
              "': set_weight(): found skip_weight_param_allocation false, allowed: true");
  TORCH_CHECK(new_weight.defined() && new_weight.sizes() == at::IntArrayRef({o.out_features, o.in_features}),
              "[te::Linear] '", o.name, "': weight: found sizes ",
              new_weight.defined() ? new_weight.sizes() : at::IntArrayRef(), ", allowed: [", o.out_features, ", ",
              o.in_features, "]");
  TORCH_CHECK(new_bias.defined() == o.bias && (!o.bias || new_bias.sizes() == at::IntArrayRef({o.out_features})),
              "[te::Linear] '", o.name, "': bias: found ",
              new_bias.defined() ? c10::str("sizes ", new_bias.sizes()) : "none",
              ", allowed: ", o.bias ? "[" + std::to_string(o.out_features) + "]" : "none");
  weight = parameters_["weight"] = new_weight;
  bias = parameters_["bias"] = new_bias;
}

at::Tensor LinearImpl::forward(const at::Tensor& x, std::optional<bool> is_first_microbatch, bool fp8_output,
                               bool fp8_grad) {
  refuse_fp8_results("te::Linear", fp8_output, fp8_grad);
  check_input("te::Linear", options_.name, x, options_.in_features);
  const at::Tensor w = parameters_of_product_.whole_weight(weight);
  TORCH_CHECK(w.defined(), "[te::Linear] '", options_.name,
              "': weight: found none, allowed: one set by set_weight() (skip_weight_param_allocation)");
  Fp8LinearOptions o = product_options(options_.minimize_memory, is_first_microbatch, is_training());
  o.save_original_input = options_.save_original_input;
  return linear_or_fp8(x, w, options_.return_bias ? at::Tensor() : parameters_of_product_.whole_bias(bias), state_, o);
}

std::pair<at::Tensor, at::Tensor> LinearImpl::forward_with_bias(const at::Tensor& x,
                                                                std::optional<bool> is_first_microbatch) {
  at::Tensor y = forward(x, is_first_microbatch);
  return {std::move(y), options_.return_bias ? parameters_of_product_.whole_bias(bias) : at::Tensor()};
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << "fp8::te::Linear(in_features=" << options_.in_features << ", out_features=" << options_.out_features
         << ", bias=" << (options_.bias ? "true" : "false") << ")";
}

}  // namespace fp8::te
