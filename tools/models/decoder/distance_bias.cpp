// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/distance_bias.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/log.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>

namespace fp8::models {

at::Tensor distance_buckets(const BucketSpec& spec, std::int64_t first, std::int64_t rows, bool both_ways) {
  const auto end = first + rows, count = both_ways ? spec.count / 2 : spec.count, exact = count / 2;
  const auto ahead = at::arange(first, end, at::kLong).unsqueeze(1) - at::arange(end, at::kLong);
  const auto distance = both_ways ? ahead.abs() : ahead.clamp_min(0);
  // In f32, as transformers: a bucket's edge may be at a whole distance.
  const double stretch = std::log(static_cast<double>(spec.reach) / static_cast<double>(exact));
  const auto steps = at::log(distance.to(at::kFloat) / exact) / stretch * (count - exact);
  const auto far = (steps.clamp_min(0).to(at::kLong) + exact).clamp_max(count - 1);
  const auto bucket = at::where(distance.lt(exact), distance, far);
  return both_ways ? bucket + ahead.lt(0).to(at::kLong) * count : bucket;
}

at::Tensor seen_bias(const at::Tensor& bias, const Sight& sight) {
  const auto scores = bias.permute({2, 0, 1}).unsqueeze(0).contiguous();  // in rows, as attention's kernel reads them
  auto seen = sight.seen(scores.size(2));
  if (!seen.defined() && !sight.causal) return scores;
  if (!seen.defined()) seen = at::ones({scores.size(2), scores.size(3)}, scores.options().dtype(at::kBool)).tril();
  return scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
}

}  // namespace fp8::models
