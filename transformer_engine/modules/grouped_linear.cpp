// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/grouped_linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <ostream>

#include "fp8/transformer_engine/products/fp8_weight.h"
#include "fp8/transformer_engine/region/fp8_autocast.h"

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

namespace {

constexpr std::int64_t kMostGemms = 65536, kMaxAlign = 65536;

void check(const char* module, const Fp8PaddingOptions& o) {
  TORCH_CHECK(o.num_gemms >= 1 && o.num_gemms <= kMostGemms, "[", module, "] num_gemms: found ", o.num_gemms,
              ", allowed: 1 to ", kMostGemms);
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
  TORCH_CHECK(static_cast<std::int64_t>(m_splits.size()) == o.num_gemms, "[", module, "] m_splits: found ",
              m_splits.size(), " splits, allowed: num_gemms = ", o.num_gemms);
  const std::int64_t align = alignment(o);
  std::vector<std::int64_t> result;
  std::int64_t sum = 0;
  for (const std::int64_t m : m_splits) {
    TORCH_CHECK(m >= 0 && m <= rows, "[", module, "] m_splits: found ", m, ", allowed: 0 to the ", rows,
                " rows of the input");
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
