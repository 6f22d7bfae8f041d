// SPDX-License-Identifier: Apache-2.0
// The MLP of a decoder layer, and of one expert that all tokens pass.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "fp8/runtime/fp8_tensor/cast_beside.h"
#include "fp8/tools/models/decoder/description.h"

namespace fp8::models {

at::Tensor activate(Activation activation, const at::Tensor& x);

/// down(act(gate(x)) * up(x)), or down(act(up(x))).
class Mlp {
 public:
  Mlp() = default;
  /// Registers the projections at `parent`.
  Mlp(const DecoderConfig& config, const MlpSpec& spec, torch::nn::Module& parent);
  explicit operator bool() const { return static_cast<bool>(down_); }
  at::Tensor forward(const at::Tensor& x);
  /// What forward() casts an x like this one to.
  runtime::NextCast input_cast(const at::Tensor& like) const;

 private:
  at::Tensor gated(const at::Tensor& gate, const at::Tensor& up) const;

  Activation activation_ = Activation::silu;
  torch::nn::Linear gate_{nullptr}, up_{nullptr}, gate_up_{nullptr}, down_{nullptr};
};

}  // namespace fp8::models
