// SPDX-License-Identifier: Apache-2.0
// hpu::mixture_of_experts as C++ functions. They go through the dispatcher, so traces and profilers see them by name,
// and the high precision one has gradients. Formulas, shapes and errors: moe/moe.h.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace fp8::runtime::ops {

/// The inputs of every form: hidden states [T, H], routing table [T, k] (expert ids) and router weights [T, k];
/// permuted weights are [out, in] as in nn::Linear. experts_min..experts_max: this rank's experts, both included.
struct MoeRoute {
  at::Tensor hidden_states, expert_routing_table, router_weights;
  bool permuted_weights = true;
  std::string activation = "silu";
  int64_t experts_min = 0, experts_max = 0;
};

/// High precision; w1, w2, w3 per expert.
at::Tensor call_mixture_of_experts(const MoeRoute& route, at::TensorList w1, at::TensorList w2, at::TensorList w3);
/// w12: w1's outputs, then w2's.
at::Tensor call_mixture_of_experts_fused(const MoeRoute& route, at::TensorList w12, at::TensorList w3);

/// fp8, fused weights. hidden_states are codes with d_hidden (1 or T values); d_intermediate one value per expert, or
/// an empty list: per token. d_w12 and d_w3: 1 value or one per output, each. Result bf16.
at::Tensor call_mixture_of_experts_fp8(const MoeRoute& route, at::TensorList w12, at::TensorList w3,
                                       const at::Tensor& d_hidden, at::TensorList d_intermediate, at::TensorList d_w12,
                                       at::TensorList d_w3);

/// hidden_states in high precision, weights in blocks of block_size x block_size. Result bf16.
at::Tensor call_mixture_of_experts_blockwise(const MoeRoute& route, at::TensorList w12, at::TensorList w3,
                                             at::TensorList d_w12, at::TensorList d_w3, int64_t block_size);

}  // namespace fp8::runtime::ops
