// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/sparse_moe.h"

#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include <tuple>

#include "fp8/tools/models/placeholders.h"

namespace fp8::models {

MixtralExpertsImpl::MixtralExpertsImpl(const LlamaConfig& config) : torch::nn::Module("MixtralExperts") {
  runtime::MixtureOfExpertsOptions options;
  options.num_experts = config.num_local_experts;
  options.hidden_size = config.shape.hidden;
  options.intermediate_size = config.shape.inner;
  moe_op = register_module("moe_op", runtime::MixtureOfExperts(options));
  for (auto& weight : moe_op->parameters()) weight.set_data(placeholder(weight.sizes()));
}

MixtralSparseMoeBlockImpl::MixtralSparseMoeBlockImpl(const LlamaConfig& config, torch::nn::Linear router)
    : torch::nn::Module("MixtralSparseMoeBlock"), top_k_(config.num_experts_per_tok) {
  gate = register_module("gate", std::move(router));
  experts = register_module("experts", MixtralExperts(config));
}

at::Tensor MixtralSparseMoeBlockImpl::forward(const at::Tensor& x) {
  const auto tokens = x.reshape({-1, x.size(-1)});
  const auto probabilities = at::softmax(gate->forward(tokens), -1, at::kFloat);
  auto [weights, chosen] = at::topk(probabilities, top_k_, -1);
  weights = weights / weights.sum(-1, /*keepdim=*/true);
  return experts->moe_op->forward(tokens, chosen, weights.to(x.scalar_type())).view(x.sizes());
}

}  // namespace fp8::models
