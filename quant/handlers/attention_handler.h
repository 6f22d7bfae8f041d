// SPDX-License-Identifier: Apache-2.0
// Fused attention in fp8: o = cast(softmax(q . k^T * scale + mask)) . v on codes.
//
//   S = q' . k'^T * scale_inv_q * scale_inv_k * scale + mask      f32
//   P = cast(softmax(S) * (1 / scale_inv_p))                      fp8
//   o = P . v' * scale_inv_p * scale_inv_v                        cast once more, and read back,
//                                                                 where the scheme has an output scale
//
// All of it is hpu::fp8_sdpa_recomp_fwd, whose result is bf16 where o is not cast. Rows that see nothing give zeros.
// Gradients are straight-through: those of attention on the dequantized q, k and v. qdq: attention in high precision on
// the values that the casts of q, k and v leave.
#pragma once
#include "fp8/quant/handlers/node_handler.h"

namespace fp8::quant {

class Fp8AttentionHandler final : public NodeHandler {
 public:
  explicit Fp8AttentionHandler(const NodeScheme& scheme) : NodeHandler(scheme) {}
  at::Tensor attention(const runtime::AttentionCall& call) override;

 private:
  at::Tensor fused(const runtime::AttentionCall& call, const at::Tensor& q, const at::Tensor& k,
                   const at::Tensor& v) const;
};

}  // namespace fp8::quant
