// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/convolution.h"

#include <ATen/ops/conv1d.h>

#include <memory>
#include <vector>

#include "fp8/tools/models/base/placeholders.h"
#include "fp8/tools/models/decoder/mlp.h"

namespace fp8::models {

ConvolutionImpl::ConvolutionImpl(const DecoderConfig& config)
    : torch::nn::Module(config.type + "ConvLayer"), spec_(*config.convolution) {
  const auto hidden = config.shape.hidden;
  const auto weights = register_module("conv", std::make_shared<torch::nn::Module>(config.type + "Conv"));
  weight_ = weights->register_parameter("weight", placeholder({hidden, hidden / spec_.groups, spec_.kernel}));
  bias_ = weights->register_parameter("bias", placeholder({hidden}));
  norm_ = register_module("LayerNorm", Norm(config.type + "LayerNorm", std::vector{hidden}, config.norm));
}

at::Tensor ConvolutionImpl::forward(const at::Tensor& x, const at::Tensor& y) {
  const auto out =
      at::conv1d(x.transpose(1, 2), weight_, bias_, /*stride=*/1, spec_.kernel / 2, /*dilation=*/1, spec_.groups);
  return norm_->forward(y + activate(spec_.activation, out.transpose(1, 2)));
}

}  // namespace fp8::models
