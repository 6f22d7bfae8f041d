// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/deberta.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <memory>
#include <utility>
#include <vector>

#include "fp8/tools/models/base/causal_lm.h"
#include "fp8/tools/models/decoder/mlp.h"

namespace fp8::models {
namespace {

/// x [B, A, L, D] times the rows of the table as `projection` turns them: [B, A, L, R].
at::Tensor agreement(const at::Tensor& x, const at::Tensor& table, torch::nn::Linear& projection,
                     runtime::Matmul& product) {
  const auto heads = x.size(1), width = x.size(3);
  // A head's rows one after the other: the product takes them as they are, others it turns element by element.
  const auto turned = projection->forward(table).view({1, -1, heads, width}).transpose(1, 2).contiguous();
  const auto rows = turned.transpose(2, 3);
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
