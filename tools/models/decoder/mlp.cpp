// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/mlp.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include "fp8/runtime/modules/linear_together.h"
#include "fp8/tools/models/base/decoder_math.h"
#include "fp8/tools/models/base/placeholders.h"
#include "fp8/tools/models/decoder/modules.h"

namespace fp8::models {

at::Tensor activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::silu:
      return at::silu(x);
    case Activation::gelu:
      return at::gelu(x);
    case Activation::gelu_tanh:
      return at::gelu(x, "tanh");
    case Activation::relu:
      return at::relu(x);
    case Activation::tanh:
      return at::tanh(x);
    case Activation::relu2:
      return at::relu(x).square();
  }
  TORCH_INTERNAL_ASSERT(false, "[models] activation");
}

Mlp::Mlp(const DecoderConfig& config, const MlpSpec& spec, torch::nn::Module& parent) : activation_(spec.activation) {
  const auto hidden = config.shape.hidden;
  const auto& names = config.names;
  if (!names.gate_up.empty()) {
    gate_up_ = add_module(parent, names.gate_up, make_linear(hidden, 2 * spec.inner, spec.up_bias));
  } else {
    if (spec.gated) gate_ = add_module(parent, names.gate, make_linear(hidden, spec.inner, spec.up_bias));
    up_ = add_module(parent, names.up, make_linear(hidden, spec.inner, spec.up_bias));
  }
  down_ = add_module(parent, names.down, make_linear(spec.inner, hidden, spec.down_bias));
}

at::Tensor Mlp::gated(const at::Tensor& gate, const at::Tensor& up) const {
  // In training a layer that runs again, for its gradients, must give the same bits.
  if (activation_ == Activation::silu && !down_->is_training())
    return silu_mul(gate, up, runtime::input_cast(gate, {down_}));
  return activate(activation_, gate) * up;
}

at::Tensor Mlp::forward(const at::Tensor& x) {
  if (gate_up_) {
    const auto halves = gate_up_->forward(x).chunk(2, -1);
    return down_->forward(gated(halves[0], halves[1]));
  }
  if (gate_) {
    const auto halves = runtime::linear_together(x, {up_, gate_});
    return down_->forward(gated(halves[1], halves[0]));
  }
  return down_->forward(activate(activation_, up_->forward(x)));
}

runtime::NextCast Mlp::input_cast(const at::Tensor& like) const {
  if (gate_up_) return runtime::input_cast(like, {gate_up_});
  return gate_ ? runtime::input_cast(like, {up_, gate_}) : runtime::input_cast(like, {up_});
}

}  // namespace fp8::models
