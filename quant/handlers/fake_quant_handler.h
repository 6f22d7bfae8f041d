// SPDX-License-Identifier: Apache-2.0
// Fake quantization, for training: weight and activation go through fp8 and back at each call, the product is in high
// precision. The weight keeps its dtype and its values; gradients pass the casts as they are (straight-through), so
// weight, input and bias learn.
//
//   y = linear(through_fp8(x), through_fp8(w), bias)        dx = dy . w'      dw = dy^T . x'
#pragma once
#include <vector>

#include "fp8/quant/handlers/quantizer.h"
#include "fp8/runtime/intercept/intercept.h"
#include "fp8/runtime/intercept/op_handler.h"

namespace fp8::quant {

class FakeQuantHandler final : public runtime::OpHandler, public runtime::OwnBackward {
 public:
  /// weight_scale_inv: one value or one per row of the weight. Throws std::invalid_argument for block scales.
  FakeQuantHandler(const Scheme& scheme, std::vector<float> weight_scale_inv);

  at::Tensor linear(const runtime::LinearCall& call) override;
  at::Tensor convolution(const runtime::ConvolutionCall& call) override { return call.original(); }
  at::Tensor dequantize(const runtime::WeightTag&, const runtime::WeightView&, const at::Tensor& weight) override {
    return weight;
  }
  bool owns_values() const override { return false; }
  bool own_backward() const override { return true; }
  std::string describe() const override { return scheme_.describe(); }

  const Scheme& scheme() const { return scheme_; }
  const std::vector<float>& weight_scale_inv() const { return weight_scale_inv_; }

 private:
  at::Tensor weight_through_fp8(const at::Tensor& weight, std::int64_t first_row) const;

  Scheme scheme_;
  std::vector<float> weight_scale_inv_;
  std::optional<Quantizer> input_;
};

}  // namespace fp8::quant
