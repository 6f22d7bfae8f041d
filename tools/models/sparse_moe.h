// SPDX-License-Identifier: Apache-2.0
// The mixture of experts that takes a Llama's MLP's place in Mixtral.
//
//   p = softmax(gate(x)) over experts, f32; the top_k largest, divided by their sum, weigh those experts' outputs
//
// The experts are one runtime::MixtureOfExperts, named as in vLLM's Gaudi plugin: block_sparse_moe.experts.moe_op, with
// the weights of expert E in moe_op.w13_list.E (w1 above w3) and moe_op.w2_list.E. quant/names/expert_weights.h
// finds them in checkpoints.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include "fp8/runtime/modules/mixture_of_experts.h"
#include "fp8/tools/models/llama_config.h"

namespace fp8::models {

class MixtralExpertsImpl : public torch::nn::Module {
 public:
  explicit MixtralExpertsImpl(const LlamaConfig& config);
  runtime::MixtureOfExperts moe_op{nullptr};
};
TORCH_MODULE(MixtralExperts);

class MixtralSparseMoeBlockImpl : public torch::nn::Module {
 public:
  /// gate: a Linear [hidden -> experts] without bias.
  MixtralSparseMoeBlockImpl(const LlamaConfig& config, torch::nn::Linear gate);
  /// x [..., H] -> [..., H].
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear gate{nullptr};
  MixtralExperts experts{nullptr};

 private:
  std::int64_t top_k_;
};
TORCH_MODULE(MixtralSparseMoeBlock);

}  // namespace fp8::models
