// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/mlp.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/max.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include "fp8/runtime/modules/linear_together.h"
#include "fp8/tools/models/base/causal_lm.h"
#include "fp8/tools/models/decoder/decoder_math.h"

namespace fp8::models {

at::Tensor activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::silu: return at::silu(x);
    case Activation::gelu: return at::gelu(x);
    case Activation::gelu_tanh: return at::gelu(x, "tanh");
    case Activation::relu: return at::relu(x);
    case Activation::tanh: return at::tanh(x);
    case Activation::relu2: return at::relu(x).square();
  }
  TORCH_INTERNAL_ASSERT(false, "[models] activation");
}

Mlp::Mlp(const DecoderConfig& config, const MlpSpec& spec, torch::nn::Module& parent) : activation_(spec.activation) {
  const auto hidden = config.shape.hidden;
  const auto& names = config.names;
  if (!names.gate_up.empty()) {
    gate_up_ = add_module(parent, names.gate_up, make_linear(hidden, 2 * spec.inner, spec.up_bias));
  } else {
    if (spec.gated) gate_ = add_module(parent, names.gate, make_linear(hidden, spec.inner, spec.up_bias));
    up_ = add_module(parent, names.up, make_linear(hidden, spec.inner, spec.up_bias));
  }
  down_ = add_module(parent, names.down, make_linear(spec.inner, hidden, spec.down_bias));
}

at::Tensor Mlp::gated(const at::Tensor& gate, const at::Tensor& up) const {
  // In training a layer that runs again, for its gradients, must give the same bits.
  if (activation_ == Activation::silu && !down_->is_training())
    return silu_mul(gate, up, runtime::input_cast(gate, {down_}));
  return activate(activation_, gate) * up;
}

at::Tensor Mlp::forward(const at::Tensor& x) {
  if (gate_up_) {
    const auto halves = gate_up_->forward(x).chunk(2, -1);
    return down_->forward(gated(halves[0], halves[1]));
  }
  if (gate_) {
    const auto halves = runtime::linear_together(x, {up_, gate_});
    return down_->forward(gated(halves[1], halves[0]));
  }
  return down_->forward(activate(activation_, up_->forward(x)));
}

runtime::NextCast Mlp::input_cast(const at::Tensor& like) const {
  if (gate_up_) return runtime::input_cast(like, {gate_up_});
  return gate_ ? runtime::input_cast(like, {up_, gate_}) : runtime::input_cast(like, {up_});
}

namespace {

/// As runtime::MixtureOfExperts calls it.
const char* name_of(Activation activation) {
  TORCH_CHECK(activation == Activation::silu || activation == Activation::gelu || activation == Activation::relu,
              "[models] activation of experts: allowed: silu, gelu, relu");
  return activation == Activation::silu ? "silu" : activation == Activation::gelu ? "gelu" : "relu";
}

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
