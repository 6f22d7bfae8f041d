// SPDX-License-Identifier: Apache-2.0
// A mixture of experts in fp8. The experts' weights are converted modules of their own (their tags hold the scales);
// the handler brings the scales of the activations: one of the hidden states, one of every expert's intermediate
// values.
//
//   h = act(x' . w1) * (x' . w2)      x' = cast(hidden states)
//   y = sum over experts of router weight * (cast(h) . w3)
//
// Only the tokens of an expert are multiplied with its weights. In bf16 with static scales it is
// hpu::mixture_of_experts.fp8_fused_weights. Gradients are straight-through.
#pragma once
#include "fp8/quant/handlers/node_handler.h"

namespace fp8::quant {

class Fp8MoeHandler final : public NodeHandler, public std::enable_shared_from_this<Fp8MoeHandler> {
 public:
  explicit Fp8MoeHandler(const NodeScheme& scheme) : NodeHandler(scheme) {}
  /// Throws c10::Error for weights that are no fp8 codes, or in another number than the scales.
  at::Tensor mixture_of_experts(const runtime::MoeCall& call) override;

 private:
  at::Tensor mix(const runtime::MoeCall& call, const at::Tensor& hidden) const;
  at::Tensor with_operator(const runtime::MoeCall& call, const runtime::Fp8Tensor& x) const;
  at::Tensor expert(const runtime::MoeCall& call, std::size_t e, const runtime::Fp8Tensor& x,
                    at::ScalarType compute) const;
  const Quantizer& intermediate(std::size_t e) const { return scheme().dynamic ? input(1) : input(1 + e); }
};

}  // namespace fp8::quant
