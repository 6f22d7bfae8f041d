// SPDX-License-Identifier: Apache-2.0
// Norms of decoder layers as modules.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fp8/runtime/fp8_tensor/cast_beside.h"
#include "fp8/tools/models/decoder/description.h"

namespace fp8::models {

/// rms    weight * cast(x * rsqrt(mean(x^2) + eps)), the inner part (wide: all of it) in f32
/// layer  (x - mean) * rsqrt(var + eps) * weight + bias, in f32, then cast
class NormImpl : public torch::nn::Module {
 public:
  /// shape: of the weight; the norm is over the last dimension of it. type: "LlamaRMSNorm".
  NormImpl(std::string type, std::vector<std::int64_t> shape, const NormSpec& spec);
  /// x: [..., shape] -> the same, with the codes that it will be cast to (base/decoder_math.h).
  at::Tensor forward(const at::Tensor& x, const runtime::NextCast& next = {});

  at::Tensor weight, bias;  ///< undefined: none

 private:
  at::Tensor rms(const at::Tensor& x, const runtime::NextCast& next) const;
  at::Tensor layer(const at::Tensor& x, const runtime::NextCast& next);
  const at::Tensor& weight_plus_one();

  NormSpec spec_;
  // weight + 1, kept until the weight is another one or has changed.
  at::Tensor sum_, summed_;
  std::uint32_t version_ = 0;
};
TORCH_MODULE(Norm);

}  // namespace fp8::models
