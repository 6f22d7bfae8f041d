// SPDX-License-Identifier: Apache-2.0
// softmax whose result is kept in fp8: P = cast(softmax(x) * (1 / s)), read back as P * s. Inputs need no scale. bf16
// goes through hpu::softmax_fp8. Gradients are those of softmax itself (straight-through).
#pragma once
#include "fp8/quant/handlers/node_handler.h"

namespace fp8::quant {

class Fp8SoftmaxHandler final : public NodeHandler {
 public:
  explicit Fp8SoftmaxHandler(const NodeScheme& scheme) : NodeHandler(scheme) {}
  at::Tensor softmax(const runtime::SoftmaxCall& call) override;

 private:
  at::Tensor in_fp8(const at::Tensor& x) const;
};

}  // namespace fp8::quant
