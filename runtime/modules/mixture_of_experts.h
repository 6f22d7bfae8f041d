// SPDX-License-Identifier: Apache-2.0
// A mixture of experts as one module, in the form vLLM's Gaudi plugin gives it: two lists of weight holders, and one
// call for all of them. Unhandled it computes what hpu::mixture_of_experts.fused_weights computes.
//
//   moe.w13_list.E   [2 I, H]   gate and up of expert E, stacked        moe.w2_list.E   [H, I]   down of expert E
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "fp8/runtime/modules/op_module.h"

namespace fp8::runtime {

/// Holds one expert's weight [N, K]; forward is x . weight^T.
class MoeMatmulImpl : public torch::nn::Module {
 public:
  explicit MoeMatmulImpl(at::Tensor weight);
  at::Tensor forward(const at::Tensor& x) const;
  at::Tensor weight;
};
TORCH_MODULE(MoeMatmul);

struct MixtureOfExpertsOptions {
  std::int64_t num_experts = 0, hidden_size = 0, intermediate_size = 0;
  std::int64_t experts_min = 0, experts_max = -1;  ///< this rank's experts, inclusive; -1: all
  std::string activation = "silu";
};

class MixtureOfExpertsImpl : public OpModule {
 public:
  /// Weights are empty tensors of the right shapes, to be loaded. Only experts in [experts_min, experts_max] are held,
  /// as w13_list.0 ... in that order.
  explicit MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options);

  /// hidden_states: [tokens, H]; expert_routing_table: [tokens, top_k] int64; router_weights: [tokens, top_k].
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& expert_routing_table,
                     const at::Tensor& router_weights);

  const MixtureOfExpertsOptions& options() const { return options_; }
  torch::nn::ModuleList w13_list{nullptr}, w2_list{nullptr};

 private:
  MixtureOfExpertsOptions options_;
};
TORCH_MODULE(MixtureOfExperts);

}  // namespace fp8::runtime
