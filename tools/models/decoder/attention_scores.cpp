// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/le.h>
#include <ATen/ops/log.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <bit>

#include "fp8/tools/models/decoder/attention.h"
#include "fp8/tools/models/decoder/mlp.h"

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

// DeBERTa.

namespace {

/// x [B, A, L, D] times the rows of the table as `projection` turns them: [B, A, L, R].
at::Tensor agreement(const at::Tensor& x, const at::Tensor& table, torch::nn::Linear& projection,
                     runtime::Matmul& product) {
  const auto heads = x.size(1), width = x.size(3);
  // A head's rows one after the other: the product takes them as they are, others it turns element by element.
  const auto rotated = projection->forward(table).view({1, -1, heads, width}).transpose(1, 2).contiguous();
  const auto rows = rotated.transpose(2, 3);
  return product->forward(x, rows.expand({x.size(0), heads, width, table.size(1)}));
}

/// Column rows[i, j] of row i: [B, A, L, L].
at::Tensor picked(const at::Tensor& agreements, const at::Tensor& rows) {
  return at::gather(agreements, -1, rows.expand({agreements.size(0), agreements.size(1), -1, -1}));
}

}  // namespace

at::Tensor distance_rows(const DistanceSpec& spec, std::int64_t length) {
  const auto at = at::arange(length, at::kLong);
  auto distance = at.unsqueeze(1) - at;
  if (spec.buckets > 0) {
    // In f32, as transformers: a bucket's edge may be at a whole distance.
    const auto half = spec.buckets / 2;
    const auto far = distance.abs().clamp_min(half).to(at::kFloat);
    const double reach = static_cast<double>(spec.reach - 1) / static_cast<double>(half);
    const auto steps = at::ceil(at::log(far / half) / at::log(at::scalar_tensor(reach, at::kFloat)) * (half - 1));
    const auto bucket = (steps.to(at::kLong) + half) * distance.sign();
    distance = at::where(distance.abs().le(half), distance, bucket);
  }
  return (distance + spec.span).clamp(0, 2 * spec.span - 1);
}

DisentangledScores::DisentangledScores(const DecoderConfig& config, torch::nn::Module& attention,
                                       torch::nn::Linear query, torch::nn::Linear key)
    : query_(std::move(query)), key_(std::move(key)) {
  const auto& spec = *config.distances;
  const auto hidden = config.shape.hidden, width = config.shape.heads * config.attend.head_dim;
  const auto own = [&](const std::string& name) {
    return add_module(attention, name, make_linear(hidden, width, /*bias=*/true));
  };
  if (spec.c2p) {
    c2p_ = attention.register_module("matmul_c2p", runtime::Matmul());
    if (spec.own_projections) key_ = own(config.names.distance_key);
  }
  if (spec.p2c) {
    p2c_ = attention.register_module("matmul_p2c", runtime::Matmul());
    if (spec.own_projections) query_ = own(config.names.distance_query);
  }
}

at::Tensor DisentangledScores::forward(const at::Tensor& q, const at::Tensor& k, const Distances& distances) {
  const auto& [table, rows] = distances;
  at::Tensor scores;
  if (c2p_) scores = picked(agreement(q, table, key_, c2p_), rows);
  if (!p2c_) return scores;
  const auto of_keys = picked(agreement(k, table, query_, p2c_), rows.t()).transpose(2, 3);
  return scores.defined() ? scores + of_keys : of_keys;
}

ConvolutionImpl::ConvolutionImpl(const DecoderConfig& config)
    : torch::nn::Module(config.type + "ConvLayer"), spec_(*config.convolution) {
  const auto hidden = config.shape.hidden;
  const auto weights = register_module("conv", std::make_shared<torch::nn::Module>(config.type + "Conv"));
  weight_ = weights->register_parameter("weight", placeholder({hidden, hidden / spec_.groups, spec_.kernel}));
  bias_ = weights->register_parameter("bias", placeholder({hidden}));
  norm_ = register_module("LayerNorm", Norm(config.type + "LayerNorm", std::vector{hidden}, config.norm));
}

at::Tensor ConvolutionImpl::forward(const at::Tensor& x, const at::Tensor& y) {
  const auto out =
      at::conv1d(x.transpose(1, 2), weight_, bias_, /*stride=*/1, spec_.kernel / 2, /*dilation=*/1, spec_.groups);
  return norm_->forward(y + activate(spec_.activation, out.transpose(1, 2)));
}

}  // namespace fp8::models
