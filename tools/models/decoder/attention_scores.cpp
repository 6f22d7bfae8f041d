// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/le.h>
#include <ATen/ops/log.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>

#include "fp8/tools/models/decoder/attention.h"

namespace fp8::models {
namespace {

at::Tensor starts_of(const Rows& rows) { return at::tensor(rows.starts, at::kLong); }

}  // namespace

at::Tensor Rows::positions() const {
  const auto columns = at::arange(first, first + count, at::kLong).unsqueeze(0);
  return (starts.empty() ? columns : columns - starts_of(*this).unsqueeze(1)).to(at::kFloat);
}

std::int64_t Rows::in_use() const {
  return first + count - (starts.empty() ? 0 : *std::min_element(starts.begin(), starts.end()));
}

at::Tensor Sight::seen(std::int64_t rows) const {
  return band.defined() ? band.as_strided({rows, band.numel() - rows + 1}, {1, 1}).flip(0) : mask;
}

Sight sight_of(const Rows& rows, const LayerKind& kind, at::Device device) {
  const std::int64_t end = rows.first + rows.count;
  const bool window = kind.window > 0 && kind.window < end;
  const bool chunk = kind.chunk > 0 && kind.chunk < end;
  Sight sight;
  if (!rows.causal) {
    if (!window) return sight;
    const auto at = at::arange(end, at::kLong);
    sight.mask = at::lt((at.unsqueeze(1) - at).abs(), kind.window).to(device);
    return sight;
  }
  if (rows.starts.empty() && rows.count == 1) {
    const std::int64_t last = end - 1;
    if (window) sight.first = end - kind.window;
    if (chunk) sight.first = std::max(sight.first, last / kind.chunk * kind.chunk);
    return sight;
  }
  if (rows.starts.empty() && rows.first == 0 && !window && !chunk) {
    sight.causal = true;
    return sight;
  }
  if (rows.starts.empty() && !chunk) {  // column - row, from that of the last row and column 0
    const auto ahead = at::arange(1 - end, rows.count, at::kLong);
    auto band = at::le(ahead, 0);
    if (window) band = band.logical_and(at::gt(ahead, -kind.window));
    sight.band = band.to(device);
    return sight;
  }
  const auto row = at::arange(rows.first, end, at::kLong).unsqueeze(1), column = at::arange(0, end, at::kLong);
  auto mask = at::le(column, row);
  if (window) mask = mask.logical_and(at::lt(row - column, kind.window));
  if (!rows.starts.empty()) {
    const auto start = starts_of(rows).view({-1, 1, 1, 1});
    mask = mask.logical_and(at::ge(column, start));
    if (chunk)
      mask = mask.logical_and((row - start).div(kind.chunk, "floor").eq((column - start).div(kind.chunk, "floor")));
  } else if (chunk) {
    mask = mask.logical_and(row.div(kind.chunk, "floor").eq(column.div(kind.chunk, "floor")));
  }
  sight.mask = mask.to(device);
  return sight;
}

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

at::Tensor alibi_slopes(std::int64_t heads, double max) {
  const auto n = static_cast<std::uint64_t>(heads);
  const auto slope = [&](std::uint64_t i, std::uint64_t of) {
    return static_cast<float>(std::exp2(-max * static_cast<double>(i + 1) / static_cast<double>(of)));
  };
  std::vector<float> slopes;
  const std::uint64_t below = std::bit_floor(n), above = std::bit_ceil(n);
  for (std::uint64_t i = 0; i < below; ++i) slopes.push_back(slope(i, below));
  for (std::uint64_t i = 0; slopes.size() < n; i += 2) slopes.push_back(slope(i, above));
  return at::tensor(slopes, at::kFloat);
}

// Attention of an answer to the source text that it answers: queries of the one, keys and values of the other.

at::Tensor DecoderAttentionImpl::forward_cross(const at::Tensor& x, const LayerInputs& inputs) {
  const auto b = x.size(0), l = x.size(1);
  const auto q = split(q_->forward(x));
  at::Tensor k, v;
  if (inputs.source.defined()) {
    k = split(k_->forward(inputs.source));
    v = split(v_->forward(inputs.source));
  }
  Sight sight;
  if (inputs.cache != nullptr) {
    if (k.defined()) inputs.cache->keep_source(layer_, k, v, k_cache, v_cache);
    std::tie(k, v) = inputs.cache->source(layer_, q.scalar_type(), k_cache, v_cache);
    if (const auto mask = inputs.cache->source_mask(); mask.defined()) sight.mask = mask.to(q.device());
  } else {
    k = k_cache->forward(k);
    v = v_cache->forward(v);
  }
  const auto attended = attend(q, k, v, sight, 1);
  return out_->forward(attended.transpose(1, 2).reshape({b, l, heads_ * v.size(3)}));
}

}  // namespace fp8::models
