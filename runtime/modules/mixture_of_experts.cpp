// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/modules/mixture_of_experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

namespace fp8::runtime {
namespace {

at::Tensor activate(const std::string& name, const at::Tensor& x) {
  if (name == "silu") return at::silu(x);
  if (name == "gelu") return at::gelu(x);
  if (name == "relu") return at::relu(x);
  TORCH_CHECK(false, "[MixtureOfExperts] activation: found '", name, "', allowed: silu, gelu, relu");
}

}  // namespace

MoeMatmulImpl::MoeMatmulImpl(at::Tensor w) : torch::nn::Module("MoeMatmul") {
  weight = register_parameter("weight", std::move(w), /*requires_grad=*/false);
}

at::Tensor MoeMatmulImpl::forward(const at::Tensor& x) const { return at::linear(x, weight); }

MixtureOfExpertsImpl::MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options)
    : OpModule("VllmMixtureOfExpertsOp"), options_(options) {
  if (options_.experts_max < 0) options_.experts_max = options_.num_experts - 1;
  TORCH_CHECK(options_.num_experts > 0 && options_.experts_min >= 0 && options_.experts_min <= options_.experts_max &&
                  options_.experts_max < options_.num_experts,
              "[MixtureOfExperts] experts_min, experts_max: found [", options_.experts_min, ", ", options_.experts_max,
              "], allowed: within [0, ", options_.num_experts - 1, "]");
  activate(options_.activation, at::empty({0}));
  w13_list = register_module("w13_list", torch::nn::ModuleList());
  w2_list = register_module("w2_list", torch::nn::ModuleList());
  for (auto e = options_.experts_min; e <= options_.experts_max; ++e) {
    w13_list->push_back(MoeMatmul(at::empty({2 * options_.intermediate_size, options_.hidden_size})));
    w2_list->push_back(MoeMatmul(at::empty({options_.hidden_size, options_.intermediate_size})));
  }
}

at::Tensor MixtureOfExpertsImpl::forward(const at::Tensor& hidden_states, const at::Tensor& expert_routing_table,
                                         const at::Tensor& router_weights) {
  std::vector<at::Tensor> w12, w3;
  for (std::size_t e = 0; e < w13_list->size(); ++e) {
    w12.push_back(w13_list->ptr(e)->as<MoeMatmulImpl>()->weight);
    w3.push_back(w2_list->ptr(e)->as<MoeMatmulImpl>()->weight);
  }
  const auto mixture = [&] {
    at::Tensor y = at::zeros_like(hidden_states);
    for (std::size_t e = 0; e < w12.size(); ++e) {
      const auto chosen = expert_routing_table.eq(options_.experts_min + static_cast<std::int64_t>(e)).nonzero();
      if (chosen.size(0) == 0) continue;
      const at::Tensor token = chosen.select(1, 0), slot = chosen.select(1, 1);
      const at::Tensor x = hidden_states.index_select(0, token);
      const auto gate_up = w13_list->ptr(e)->as<MoeMatmulImpl>()->forward(x).chunk(2, -1);
      const at::Tensor out =
          w2_list->ptr(e)->as<MoeMatmulImpl>()->forward(activate(options_.activation, gate_up[0]) * gate_up[1]);
      const at::Tensor weighted = out * router_weights.index({token, slot}).unsqueeze(-1).to(out.scalar_type());
      y.index_add_(0, token, weighted.to(y.scalar_type()));  // an autocast region multiplies in its own dtype
    }
    return y;
  };
  if (handler() == nullptr) return mixture();
  const autocast::InsideOp inside;
  const OriginalOp original = outside_of(inside, mixture);
  return handler()->mixture_of_experts({hidden_states, expert_routing_table, router_weights, w12, w3,
                                        /*permuted_weights=*/true, options_.activation, options_.experts_min,
                                        options_.experts_max, original});
}

}  // namespace fp8::runtime
