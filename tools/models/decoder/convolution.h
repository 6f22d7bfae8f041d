// SPDX-License-Identifier: Apache-2.0
// DeBERTa-v2's convolution beside the first layer, over the K tokens around each (zeros beyond the ends):
//
//   h = norm(y + act(conv(x)))     x: what the layer took, y: what it gave
//
// It has no place in fp8: conv.weight [H, H / groups, K] stays in high precision.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "fp8/tools/models/decoder/description.h"
#include "fp8/tools/models/decoder/norm.h"

namespace fp8::models {

class ConvolutionImpl : public torch::nn::Module {
 public:
  explicit ConvolutionImpl(const DecoderConfig& config);
  /// x, y [B, L, H] -> [B, L, H].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y);

 private:
  ConvolutionSpec spec_;
  at::Tensor weight_, bias_;  // [H, H / groups, K], [H]
  Norm norm_{nullptr};
};
TORCH_MODULE(Convolution);

}  // namespace fp8::models
