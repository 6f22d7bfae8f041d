// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/few_rows.h"

#include <ATen/ops/empty.h>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/kernels/gemv.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

constexpr std::int64_t kLeastElements = std::int64_t{1} << 19;  // below, the weight may stay in a cache

bool is_plain(const at::Tensor& t, std::int64_t dim) {
  return t.defined() && t.device().type() == c10::kHPU && t.scalar_type() == at::kBFloat16 && t.dim() == dim &&
         t.layout() == at::kStrided && !t.is_neg();
}

/// Rows of contiguous elements that do not overlap.
bool has_rows(const at::Tensor& t) { return t.stride(1) == 1 && (t.size(0) == 1 || t.stride(0) >= t.size(1)); }

const std::uint16_t* bits_of(const at::Tensor& alias) {
  return static_cast<const std::uint16_t*>(alias.const_data_ptr());
}

}  // namespace

std::optional<at::Tensor> few_rows_product(const at::Tensor& input, const at::Tensor& weight_t,
                                           const std::optional<at::Tensor>& bias) {
  if (!is_plain(input, 2) || !is_plain(weight_t, 2) || weight_t.numel() < kLeastElements) return std::nullopt;
  const std::int64_t m = input.size(0), k = input.size(1), n = weight_t.size(1);
  if (m < 1 || m > kernels::kMostGemvRows || weight_t.size(0) != k || weight_t.stride(0) != 1 ||
      weight_t.stride(1) < k || !has_rows(input) || weight_t.device() != input.device())
    return std::nullopt;
  if (bias.has_value() &&
      (!is_plain(*bias, 1) || bias->size(0) != n || bias->stride(0) != 1 || bias->device() != input.device()))
    return std::nullopt;
  LeafScope leaf("aten::mm", input, weight_t, bias);
  at::Tensor y = at::empty({m, n}, input.options());
  const at::Tensor a = cpu_alias(input), w = cpu_alias(weight_t),
                   b = bias.has_value() ? cpu_alias(*bias) : at::Tensor();
  kernels::GemvArgs args;
  args.m = m, args.n = n, args.k = k;
  args.a = bits_of(a), args.a_stride = m == 1 ? k : input.stride(0);
  args.w = bits_of(w), args.w_stride = weight_t.stride(1);
  args.bias = b.defined() ? bits_of(b) : nullptr;
  args.y = static_cast<std::uint16_t*>(cpu_alias(y).mutable_data_ptr()), args.y_stride = n;
  kernels::gemv(args);
  leaf.gives(y);
  return y;
}

std::vector<at::Tensor> few_rows_products(const at::Tensor& x, at::ArrayRef<at::Tensor> weights) {
  if (x.dim() < 2 || !is_plain(x, x.dim()) || !x.is_contiguous() || x.numel() == 0) return {};
  const std::int64_t k = x.size(-1), m = x.numel() / k;
  if (m > kernels::kMostGemvRows) return {};
  for (const at::Tensor& w : weights)
    if (!is_plain(w, 2) || w.numel() < kLeastElements || w.size(1) != k || !has_rows(w) || w.device() != x.device())
      return {};
  std::vector<at::Tensor> results, aliases = {cpu_alias(x)};
  std::vector<kernels::GemvArgs> products(weights.size());
  auto sizes = x.sizes().vec();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sizes.back() = weights[i].size(0);
    results.push_back(at::empty(sizes, x.options()));
    auto& args = products[i];
    args.m = m, args.n = sizes.back(), args.k = k;
    args.a = bits_of(aliases.front()), args.a_stride = k;
    args.w = bits_of(aliases.emplace_back(cpu_alias(weights[i]))), args.w_stride = weights[i].stride(0);
    auto& y = aliases.emplace_back(cpu_alias(results.back()));
    args.y = static_cast<std::uint16_t*>(y.mutable_data_ptr()), args.y_stride = args.n;
  }
  kernels::gemv_together(products);
  return results;
}

bool call_few_rows(bool adds, torch::jit::Stack& stack) {
  std::optional<at::Tensor> y;
  if (adds) {  // (self, mat1, mat2, beta, alpha)
    const auto arguments = torch::jit::last(stack, 5);
    if (!arguments[3].toScalar().equal(1) || !arguments[4].toScalar().equal(1)) return false;
    y = few_rows_product(arguments[1].toTensor(), arguments[2].toTensor(), arguments[0].toTensor());
  } else {
    const auto arguments = torch::jit::last(stack, 2);
    y = few_rows_product(arguments[0].toTensor(), arguments[1].toTensor(), std::nullopt);
  }
  if (!y.has_value()) return false;
  torch::jit::drop(stack, adds ? 5 : 2);
  stack.emplace_back(*std::move(y));
  return true;
}

}  // namespace fp8::runtime
