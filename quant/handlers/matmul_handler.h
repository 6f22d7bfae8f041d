// SPDX-License-Identifier: Apache-2.0
// a . b of two activations, as attention multiplies them.
//
//   static         hpu::fp8_gemm_v2(cast(a), cast(b), a_scale_inv, b_scale_inv)
//   dynamic        a scale per row of a (dim -1 shares it) and per column of b (dim -2):
//                  they factor out of the product of codes
//   qdq, fake      at::matmul of the values that the casts leave
//
// Gradients are straight-through: da = dy . b'^T, db = a'^T . dy with a', b' the dequantized operands.
#pragma once
#include "fp8/quant/handlers/node_handler.h"

namespace fp8::quant {

class Fp8MatmulHandler final : public NodeHandler {
 public:
  explicit Fp8MatmulHandler(const NodeScheme& scheme) : NodeHandler(scheme) {}
  at::Tensor matmul(const runtime::MatmulCall& call) override;

 private:
  at::Tensor product(const at::Tensor& a, const at::Tensor& b) const;
};

/// codes(a) . codes(b) * their scales -> out_dtype, batched as at::matmul; any form of scales.
at::Tensor product_of_codes(const runtime::Fp8Tensor& a, const runtime::Fp8Tensor& b, at::ScalarType out_dtype);

}  // namespace fp8::quant
