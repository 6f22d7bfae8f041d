// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/modules/linear_together.h"

#include <ATen/TracerMode.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/dispatch/own_ops.h"
#include "fp8/runtime/intercept/intercept.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

bool somebody_looks() {
  return leaves_heard() || at::hasCallbacks() || at::tracer::impl::is_dispatch_enabled() || interception_paused() ||
         autocast::region_dtype().has_value();
}

bool is_constant(const at::Tensor& t) {
  return !(t.requires_grad() && c10::GradMode::is_enabled()) && !t._fw_grad(/*level=*/0).defined();
}

/// A Linear adds its bias afterwards, but to a matrix.
bool fits(const torch::nn::LinearImpl& linear, const at::Tensor& x) {
  const at::Tensor &weight = linear.weight, &bias = linear.bias;
  return weight.defined() && weight.dim() == 2 && weight.device() == x.device() && weight.size(1) == x.size(-1) &&
         is_constant(weight) && (!bias.defined() || (x.dim() != 2 && bias.device() == x.device() && is_constant(bias)));
}

bool may_go_together(const at::Tensor& x, at::ArrayRef<torch::nn::Linear> linears) {
  return x.defined() && x.is_hpu() && x.dim() >= 1 && x.layout() == at::kStrided && x.is_contiguous() && !x.is_neg() &&
         is_high_precision(x.scalar_type()) && !somebody_looks() && is_constant(x) &&
         std::ranges::all_of(linears, [&](const auto& linear) { return fits(*linear, x); });
}

std::vector<at::Tensor> of_tagged(const at::Tensor& x, at::ArrayRef<torch::nn::Linear> linears) {
  std::vector<WholeWeight> weights;
  for (const auto& linear : linears) {
    const WeightTag* tag = find_tag(linear->weight);
    if (tag == nullptr || !tag->is(linear->weight)) return {};
    weights.push_back({*tag, linear->weight});
  }
  auto* handler = weights.front().tag.handler->together();
  return handler == nullptr ? std::vector<at::Tensor>() : handler->linear_together(x, weights);
}

std::vector<at::Tensor> of_plain(const at::Tensor& x, at::ArrayRef<torch::nn::Linear> linears) {
  std::vector<at::Tensor> weights;
  for (const auto& linear : linears) {
    if (find_tag(linear->weight) != nullptr) return {};
    weights.push_back(linear->weight);
  }
  return few_rows_products(x, weights);
}

}  // namespace

std::vector<at::Tensor> linear_together(const at::Tensor& x, at::ArrayRef<torch::nn::Linear> linears) {
  std::vector<at::Tensor> results;
  if (linears.size() > 1 && may_go_together(x, linears)) {
    results = of_tagged(x, linears);
    if (results.empty()) results = of_plain(x, linears);
  }
  for (std::size_t i = 0; i < results.size(); ++i)
    if (linears[i]->bias.defined()) results[i] += linears[i]->bias;
  if (!results.empty()) return results;
  for (torch::nn::Linear linear : linears) results.push_back(linear->forward(x));
  return results;
}

NextCast input_cast(const at::Tensor& like, at::ArrayRef<torch::nn::Linear> linears) {
  NextCast all;
  // One row is still in the first cache when its product casts it: asking would take longer than what it saves.
  const bool one_row = like.dim() == 0 || like.numel() <= like.size(-1);
  if (one_row || !like.is_hpu() || somebody_looks()) return all;
  for (const auto& linear : linears) {
    const WeightTag* tag = find_tag(linear->weight);
    const auto* handler = tag == nullptr ? nullptr : tag->handler->together();
    const NextCast its = handler == nullptr ? NextCast() : handler->input_cast(like.scalar_type());
    if (!its.has_value() || (all.has_value() && !all->same_result(*its))) return {};
    all = its;
  }
  return all;
}

}  // namespace fp8::runtime
