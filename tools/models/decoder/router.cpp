// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/router.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <tuple>

namespace fp8::models {
namespace {

constexpr double kLowest = -std::numeric_limits<double>::infinity();

at::Tensor largest(const at::Tensor& scores, std::int64_t k) { return std::get<1>(at::topk(scores, k, -1)); }

/// -inf for the experts of all groups but the best.
at::Tensor in_best_groups(const MoeSpec& spec, const at::Tensor& scores) {
  if (spec.groups <= 1 || spec.top_groups >= spec.groups) return scores;
  const auto groups = scores.view({-1, spec.groups, spec.experts / spec.groups});
  const auto good = spec.group_by_two ? std::get<0>(at::topk(groups, 2, -1)).sum(-1) : groups.amax(-1);
  const auto kept = at::zeros_like(good).scatter(1, largest(good, spec.top_groups), 1.0).to(at::kBool);
  return groups.masked_fill(kept.unsqueeze(-1).logical_not(), kLowest).view(scores.sizes());
}

/// One choice of the sparse mixer: the largest of `scores`, weighed by the softmax of those that are nearly as large.
Routes mixed(const at::Tensor& logits, const at::Tensor& scores, double jitter) {
  const auto [most, chosen] = at::max(scores, -1, /*keepdim=*/true);
  const auto far = ((most - logits) / at::max(logits.abs(), most)).gt(2 * jitter);
  const auto p = at::softmax(scores.masked_fill(far, kLowest), -1);
  return {chosen, p.gather(-1, chosen)};
}

Routes sparsemixer(const MoeSpec& spec, const at::Tensor& logits) {
  const auto first = mixed(logits, logits, spec.jitter);
  const auto second = mixed(logits, logits.scatter(-1, first.experts, kLowest), spec.jitter);
  return {at::cat({first.experts, second.experts}, -1), at::cat({first.weights, second.weights}, -1)};
}

}  // namespace

Routes route(const MoeSpec& spec, const at::Tensor& given, const at::Tensor& correction) {
  const auto logits = given.to(at::kFloat);
  if (spec.routing == Routing::sparsemixer) return sparsemixer(spec, logits);
  if (spec.routing == Routing::top_softmax || spec.routing == Routing::input) {
    const auto [values, chosen] = at::topk(logits, spec.top_k, -1);
    return {chosen, spec.routing == Routing::input ? at::sigmoid(values) : at::softmax(values, -1)};
  }
  const auto p = spec.routing == Routing::sigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
  const auto choice = correction.defined() ? p + correction.to(at::kFloat).flatten() : p;
  const auto chosen = largest(in_best_groups(spec, choice), spec.top_k);
  auto weights = p.gather(-1, chosen);
  if (spec.renormalize) {
    const auto sum = weights.sum(-1, /*keepdim=*/true);
    weights = weights / (spec.sum_added ? sum + spec.sum_floor : sum.clamp_min(spec.sum_floor));
  }
  return {chosen, spec.scaling == 1 ? weights : weights * spec.scaling};
}

}  // namespace fp8::models
