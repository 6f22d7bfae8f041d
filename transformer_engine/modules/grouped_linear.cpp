// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/grouped_linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <ostream>

#include "fp8/transformer_engine/products/fp8_weight.h"

namespace fp8::te {
namespace {

constexpr std::int64_t kMaxGemms = 65536;

/// Throws unless the splits are as many as the products and sum to the rows.
void check_splits(const GroupedLinearOptions& o, const at::Tensor& x, const std::vector<std::int64_t>& m_splits) {
  check_input("te::GroupedLinear", o.name, x, o.in_features);
  TORCH_CHECK(static_cast<std::int64_t>(m_splits.size()) == o.num_gemms, "[te::GroupedLinear] '", o.name,
              "': m_splits: found ", m_splits.size(), " splits, allowed: num_gemms = ", o.num_gemms);
  const std::int64_t rows = x.numel() / o.in_features;
  std::int64_t sum = 0;
  for (const std::int64_t m : m_splits) {
    TORCH_CHECK(m >= 0 && m <= rows, "[te::GroupedLinear] '", o.name, "': m_splits: found ", m, ", allowed: 0 to the ",
                rows, " rows of the input");
    sum += m;
  }
  TORCH_CHECK(sum == rows, "[te::GroupedLinear] '", o.name, "': m_splits: found a sum of ", sum, ", allowed: the ",
              rows, " rows of the input");
}

}  // namespace

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
  for (std::size_t i = 0; i < parts.size(); ++i) {
    results.push_back(
        linear_or_fp8(parts[i], weights[i], options_.return_bias ? at::Tensor() : biases[i], states_[i], o));
  }
  auto sizes = x.sizes().vec();
  sizes.back() = options_.out_features;
  return at::cat(results, 0).reshape(sizes);
}

void GroupedLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "fp8::te::GroupedLinear(num_gemms=" << options_.num_gemms << ", in_features=" << options_.in_features
         << ", out_features=" << options_.out_features << ", bias=" << (options_.bias ? "true" : "false") << ")";
}

}  // namespace fp8::te
