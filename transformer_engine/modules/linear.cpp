// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <ostream>

#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/transformer_engine/products/fp8_weight.h"
#include "fp8/transformer_engine/region/recomputation.h"

namespace fp8::te {
namespace {

constexpr const char* kMinimize = "PT_HPU_FP8_MINIMIZE_MEMORY";

constexpr std::int64_t kMaxGemms = 65536;

/// Throws unless there are as many splits as products, each of 0 rows up to all. where: how the message begins.
template <class... Where>
void check_splits(std::int64_t num_gemms, const std::vector<std::int64_t>& m_splits, std::int64_t rows,
                  const Where&... where) {
  TORCH_CHECK(std::ssize(m_splits) == num_gemms, where..., "m_splits: found ", m_splits.size(),
              " splits, allowed: num_gemms = ", num_gemms);
  for (const std::int64_t m : m_splits)
    TORCH_CHECK(m >= 0 && m <= rows, where..., "m_splits: found ", m, ", allowed: 0 to the ", rows,
                " rows of the input");
}

/// Throws unless the splits are as many as the products and sum to the rows.
void check_splits(const GroupedLinearOptions& o, const at::Tensor& x, const std::vector<std::int64_t>& m_splits) {
  check_input("te::GroupedLinear", o.name, x, o.in_features);
  const std::int64_t rows = x.numel() / o.in_features;
  check_splits(o.num_gemms, m_splits, rows, "[te::GroupedLinear] '", o.name, "': ");
  const std::int64_t sum = std::accumulate(m_splits.begin(), m_splits.end(), std::int64_t{0});
  TORCH_CHECK(sum == rows, "[te::GroupedLinear] '", o.name, "': m_splits: found a sum of ", sum, ", allowed: the ",
              rows, " rows of the input");
}

constexpr std::int64_t kMaxAlign = 65536;

void check(const char* module, const Fp8PaddingOptions& o) {
  TORCH_CHECK(o.num_gemms >= 1 && o.num_gemms <= kMaxGemms, "[", module, "] num_gemms: found ", o.num_gemms,
              ", allowed: 1 to ", kMaxGemms);
  TORCH_CHECK(!o.align_size.has_value() || (*o.align_size >= 1 && *o.align_size <= kMaxAlign), "[", module,
              "] align_size: found ", *o.align_size, ", allowed: 1 to ", kMaxAlign);
}

std::int64_t alignment(const Fp8PaddingOptions& o) {
  if (o.align_size.has_value()) return *o.align_size;
  return is_fp8_enabled() ? recipes::scaling_of(current_region()->recipe()).row_alignment
                          : recipes::RecipeScaling().row_alignment;
}

/// Each split rounded up. Throws unless there are num_gemms of them, each 0 or more, and `rows` is the sum of the
/// splits (padded: of the rounded ones).
std::vector<std::int64_t> rounded(const char* module, const Fp8PaddingOptions& o,
                                  const std::vector<std::int64_t>& m_splits, std::int64_t rows, bool padded) {
  check_splits(o.num_gemms, m_splits, rows, "[", module, "] ");
  const std::int64_t align = alignment(o);
  std::vector<std::int64_t> result;
  std::int64_t sum = 0;
  for (const std::int64_t m : m_splits) {
    result.push_back((m + align - 1) / align * align);
    sum += padded ? result.back() : m;
  }
  TORCH_CHECK(sum == rows, "[", module, "] m_splits: found a sum of ", sum,
              padded ? " after padding to multiples of " : "", padded ? std::to_string(align) : "", ", allowed: the ",
              rows, " rows of the input");
  return result;
}

std::int64_t rows_of(const char* module, const at::Tensor& t) {
  TORCH_CHECK(t.dim() >= 1 && t.size(-1) >= 1, "[", module, "] inp: found sizes ", t.sizes(),
              ", allowed: [..., features]");
  return t.numel() / t.size(-1);
}

void print(std::ostream& stream, const char* name, const Fp8PaddingOptions& o) {
  stream << "fp8::te::" << name << "(num_gemms=" << o.num_gemms;
  if (o.align_size.has_value()) stream << ", align_size=" << *o.align_size;
  stream << ")";
}

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

GroupedLinearImpl::GroupedLinearImpl(GroupedLinearOptions options) : options_(std::move(options)) {
  TORCH_CHECK(options_.num_gemms >= 1 && options_.num_gemms <= kMaxGemms, "[te::GroupedLinear] num_gemms: found ",
              options_.num_gemms, ", allowed: 1 to ", kMaxGemms);
  TORCH_CHECK(options_.in_features >= 1 && options_.out_features >= 1,
              "[te::GroupedLinear] in_features, out_features: found ", options_.in_features, ", ",
              options_.out_features, ", allowed: integers >= 1");
  check_options("te::GroupedLinear", options_.params_dtype, options_.minimize_memory);
  check_parallel("te::GroupedLinear", options_.parallel);
  refuse_wgrad_options("te::GroupedLinear", options_.fuse_wgrad_accumulation, options_.delay_wgrad_compute);
  reset();
}

void GroupedLinearImpl::reset() {
  const auto& o = options_;
  states_.clear();
  weights.clear();
  biases.clear();
  for (std::int64_t i = 0; i < o.num_gemms; ++i) {
    const std::string n = std::to_string(i);
    states_.push_back(std::make_shared<Fp8State>(o.name + "." + n, 2, 1));
    const at::Tensor values = initial_weight({o.out_features, o.in_features}, o.init_method, o.params_dtype, o.device);
    weights.push_back(register_parameter("weight" + n, make_weight_parameter(values, o.name + ".weight" + n)));
    biases.push_back(register_parameter(
        "bias" + n, o.bias ? at::zeros({o.out_features}, values.options()) : at::Tensor(), /*requires_grad=*/o.bias));
  }
}

at::Tensor GroupedLinearImpl::forward(const at::Tensor& x, const std::vector<std::int64_t>& m_splits,
                                      std::optional<bool> is_first_microbatch) {
  check_splits(options_, x, m_splits);
  Fp8LinearOptions o = product_options(options_.minimize_memory, is_first_microbatch, is_training());
  o.save_original_input = options_.save_original_input;
  const auto parts = x.reshape({-1, options_.in_features}).split_with_sizes(m_splits, 0);
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < parts.size(); ++i)
    results.push_back(
        linear_or_fp8(parts[i], weights[i], options_.return_bias ? at::Tensor() : biases[i], states_[i], o));
  auto sizes = x.sizes().vec();
  sizes.back() = options_.out_features;
  return at::cat(results, 0).reshape(sizes);
}

void GroupedLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "fp8::te::GroupedLinear(num_gemms=" << options_.num_gemms << ", in_features=" << options_.in_features
         << ", out_features=" << options_.out_features << ", bias=" << (options_.bias ? "true" : "false") << ")";
}

Fp8PaddingImpl::Fp8PaddingImpl(Fp8PaddingOptions options) : options_(options) { check("te::Fp8Padding", options_); }

std::pair<at::Tensor, std::vector<std::int64_t>> Fp8PaddingImpl::forward(const at::Tensor& inp,
                                                                         const std::vector<std::int64_t>& m_splits) {
  const auto sizes = rounded("te::Fp8Padding", options_, m_splits, rows_of("te::Fp8Padding", inp), false);
  if (sizes == m_splits) return {inp, m_splits};
  const auto shares = inp.reshape({-1, inp.size(-1)}).split_with_sizes(m_splits, 0);
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    parts.push_back(shares[i]);
    if (sizes[i] > m_splits[i]) parts.push_back(inp.new_zeros({sizes[i] - m_splits[i], inp.size(-1)}));
  }
  return {at::cat(parts, 0), sizes};
}

void Fp8PaddingImpl::pretty_print(std::ostream& stream) const { print(stream, "Fp8Padding", options_); }

Fp8UnpaddingImpl::Fp8UnpaddingImpl(Fp8PaddingOptions options) : options_(options) {
  check("te::Fp8Unpadding", options_);
}

at::Tensor Fp8UnpaddingImpl::forward(const at::Tensor& inp, const std::vector<std::int64_t>& m_splits) {
  const auto sizes = rounded("te::Fp8Unpadding", options_, m_splits, rows_of("te::Fp8Unpadding", inp), true);
  if (sizes == m_splits) return inp;
  std::vector<std::int64_t> cuts;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    cuts.push_back(m_splits[i]);
    cuts.push_back(sizes[i] - m_splits[i]);
  }
  const auto all = inp.reshape({-1, inp.size(-1)}).split_with_sizes(cuts, 0);
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < all.size(); i += 2) parts.push_back(all[i]);
  return at::cat(parts, 0);
}

void Fp8UnpaddingImpl::pretty_print(std::ostream& stream) const { print(stream, "Fp8Unpadding", options_); }

}  // namespace fp8::te
