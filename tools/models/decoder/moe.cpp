// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/moe.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>

#include <string>
#include <utility>

#include "fp8/tools/models/base/placeholders.h"
#include "fp8/tools/models/decoder/modules.h"

namespace fp8::models {
namespace {

/// As runtime::MixtureOfExperts calls it.
const char* name_of(Activation activation) {
  TORCH_CHECK(activation == Activation::silu || activation == Activation::gelu || activation == Activation::relu,
              "[models] activation of experts: allowed: silu, gelu, relu");
  return activation == Activation::silu ? "silu" : activation == Activation::gelu ? "gelu" : "relu";
}

}  // namespace

BiasedExpertsImpl::BiasedExpertsImpl(std::string type, const MoeSpec& spec, std::int64_t hidden)
    : torch::nn::Module(std::move(type)), alpha_(spec.swiglu_alpha), limit_(spec.swiglu_limit) {
  const auto experts = spec.experts, inner = spec.inner;
  gate_up_proj = register_parameter("gate_up_proj", placeholder({experts, hidden, 2 * inner}));
  gate_up_proj_bias = register_parameter("gate_up_proj_bias", placeholder({experts, 2 * inner}));
  down_proj = register_parameter("down_proj", placeholder({experts, inner, hidden}));
  down_proj_bias = register_parameter("down_proj_bias", placeholder({experts, hidden}));
}

at::Tensor BiasedExpertsImpl::forward(const at::Tensor& tokens, const Routes& routes) {
  at::Tensor y = at::zeros_like(tokens);
  const auto experts = routes.experts.cpu();
  for (std::int64_t e = 0; e < gate_up_proj.size(0); ++e) {
    const auto chosen = experts.eq(e).nonzero();
    if (chosen.size(0) == 0) continue;
    const auto token = chosen.select(1, 0).to(tokens.device()), slot = chosen.select(1, 1).to(tokens.device());
    const auto x = tokens.index_select(0, token);
    const auto gate_up = at::addmm(gate_up_proj_bias.select(0, e), x, gate_up_proj.select(0, e)).unflatten(-1, {-1, 2});
    const auto gate = gate_up.select(-1, 0).clamp_max(limit_);
    const auto up = gate_up.select(-1, 1).clamp(-limit_, limit_);
    const auto inner = (up + 1) * (gate * at::sigmoid(gate * alpha_));
    const auto out = at::addmm(down_proj_bias.select(0, e), inner, down_proj.select(0, e));
    const auto weight = routes.weights.index({token, slot}).unsqueeze(-1);
    y.index_add_(0, token, (out * weight).to(y.scalar_type()));
  }
  return y;
}

MoeBlockImpl::MoeBlockImpl(const DecoderConfig& config)
    : torch::nn::Module(config.type + "SparseMoeBlock"), spec_(config.moe) {
  const auto hidden = config.shape.hidden;
  const auto& names = config.names;
  router_ = add_module(*this, names.router, make_linear(hidden, spec_.experts, spec_.router_bias));
  if (spec_.correction) {
    const auto shape =
        spec_.correction_matrix ? std::vector{std::int64_t{1}, spec_.experts} : std::vector{spec_.experts};
    correction_ =
        module_at(*this, parent_of(names.correction)).register_parameter(leaf_of(names.correction), placeholder(shape));
  }
  if (spec_.biased) {
    biased_ = register_module("experts", BiasedExperts(config.type + "Experts", spec_, hidden));
    return;
  }
  runtime::MixtureOfExpertsOptions options;
  options.num_experts = spec_.experts;
  options.hidden_size = hidden;
  options.intermediate_size = spec_.inner;
  options.activation = name_of(config.mlp.activation);
  module_at(*this, "experts", config.type + "Experts");
  experts_ = add_module(*this, "experts.moe_op", runtime::MixtureOfExperts(options));
  for (auto& weight : experts_->parameters()) weight.set_data(placeholder(weight.sizes()));
  if (spec_.shared_inner > 0) {
    auto spec = config.mlp;
    spec.inner = spec_.shared_inner;
    shared_ = Mlp(config, spec, module_at(*this, names.shared, config.type + "MLP"));
    if (spec_.shared_gate) shared_gate_ = add_module(*this, names.shared_gate, make_linear(hidden, 1, /*bias=*/false));
  }
}

at::Tensor MoeBlockImpl::routed(const at::Tensor& tokens, const Routes& routes) {
  if (biased_) return biased_->forward(tokens, routes);
  if (spec_.routing != Routing::input)
    return experts_->forward(tokens, routes.experts, routes.weights.to(tokens.scalar_type()));
  at::Tensor sum;  // an expert's output is no multiple of its input: one choice after the other
  for (std::int64_t k = 0; k < spec_.top_k; ++k) {
    const auto weight = routes.weights.narrow(1, k, 1).to(tokens.scalar_type());
    const auto y = experts_->forward(tokens * weight, routes.experts.narrow(1, k, 1), at::ones_like(weight));
    sum = sum.defined() ? sum + y : y;
  }
  return sum;
}

at::Tensor MoeBlockImpl::forward(const at::Tensor& x) {
  const auto tokens = x.reshape({-1, x.size(-1)});
  const auto routes = route(spec_, router_->forward(tokens), correction_);
  auto y = routed(tokens, routes);
  if (shared_) {
    auto shared = shared_.forward(tokens);
    if (shared_gate_) shared = at::sigmoid(shared_gate_->forward(tokens)) * shared;
    y = y + shared;
  }
  return y.view(x.sizes());
}

}  // namespace fp8::models
