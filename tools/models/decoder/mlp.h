// SPDX-License-Identifier: Apache-2.0
// The MLP of a decoder layer, and of one expert that all tokens pass.
#pragma once
#include <torch/nn/modules/linear.h>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/modules/op_modules.h"
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
  /// The cast that forward() makes of an x like this one.
  runtime::NextCast input_cast(const at::Tensor& like) const;

 private:
  at::Tensor gated(const at::Tensor& gate, const at::Tensor& up) const;

  Activation activation_ = Activation::silu;
  torch::nn::Linear gate_{nullptr}, up_{nullptr}, gate_up_{nullptr}, down_{nullptr};
};

// Which experts take a token, and how their outputs are weighed. Everything in f32, whatever the weights are in: two
// experts that are nearly alike must not change places by a rounding.

struct Routes {
  at::Tensor experts;  ///< [tokens, top_k] int64
  at::Tensor weights;  ///< [tokens, top_k] f32
};

/// logits [tokens, E]; correction [E] or undefined.
Routes route(const MoeSpec& spec, const at::Tensor& logits, const at::Tensor& correction);

// The mixture of experts that takes the MLP's place in a layer:
//
//   y = sum over the experts that the router chooses of weight * down(act(gate(x)) * up(x))   (+ shared(x))
//
// The experts are one runtime::MixtureOfExperts, named as in vLLM's Gaudi plugin: experts.moe_op, with the weights of
// expert E in moe_op.w13_list.E (gate above up) and moe_op.w2_list.E. quant/names/expert_weights.h finds them in
// checkpoints. Routers stay in high precision.

/// GPT-OSS' experts, as its files stack them: gate and up by turns, biases, gate sigmoid(alpha gate) (up + 1) of values
/// that are held below a limit. In high precision alone: no operation of the accelerator computes them.
class BiasedExpertsImpl : public torch::nn::Module {
 public:
  BiasedExpertsImpl(std::string type, const MoeSpec& spec, std::int64_t hidden);
  /// tokens [T, H] -> [T, H].
  at::Tensor forward(const at::Tensor& tokens, const Routes& routes);

  at::Tensor gate_up_proj, gate_up_proj_bias;  ///< [E, H, 2 I], [E, 2 I]
  at::Tensor down_proj, down_proj_bias;        ///< [E, I, H], [E, H]

 private:
  double alpha_, limit_;
};
TORCH_MODULE(BiasedExperts);

class MoeBlockImpl : public torch::nn::Module {
 public:
  explicit MoeBlockImpl(const DecoderConfig& config);
  /// x [..., H] -> [..., H].
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor routed(const at::Tensor& tokens, const Routes& routes);

  MoeSpec spec_;
  torch::nn::Linear router_{nullptr}, shared_gate_{nullptr};
  at::Tensor correction_;
  runtime::MixtureOfExperts experts_{nullptr};
  BiasedExperts biased_{nullptr};
  Mlp shared_;
};
TORCH_MODULE(MoeBlock);

}  // namespace fp8::models
