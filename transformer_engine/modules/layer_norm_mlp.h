// SPDX-License-Identifier: Apache-2.0
// The feed-forward block of a transformer: both products in fp8 inside an enabled fp8_autocast region.
//
//   y = act(norm(x) fc1^T + b1) fc2^T + b2
//
//   gelu (tanh form)   relu   silu   qgelu: x sigmoid(1.702 x)   srelu: relu(x)^2
//   gated: fc1 has 2 ffn_hidden_size rows and act(a, b) = f(a) * b of its two halves
//   geglu   reglu   swiglu   qgeglu   sreglu   glu: f = sigmoid
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include "fp8/transformer_engine/modules/fp8_module.h"
#include "fp8/transformer_engine/modules/layer_norm.h"
#include "fp8/transformer_engine/modules/linear.h"

namespace fp8::te {

struct LayerNormMLPOptions {
  std::int64_t hidden_size = 0, ffn_hidden_size = 0;
  double eps = 1e-5;
  std::string normalization = "LayerNorm";  ///< or "RMSNorm"
  std::string activation = "gelu";          ///< one of the eleven above
  bool zero_centered_gamma = false;
  bool bias = true;                          ///< of both products
  bool return_bias = false;                  ///< y comes without fc2's bias; forward_all() gives it
  bool return_layernorm_output = false;      ///< forward_all() gives norm(x), in high precision
  bool checkpoint = false;                   ///< keep x alone and run again in backward; gradients are bit-equal
  at::ScalarType params_dtype = at::kFloat;  ///< f32, bf16 or f16
  InitMethod init_method = nullptr, output_layer_init_method = nullptr;  ///< of fc1, of fc2
  at::Device device = at::Device(at::kHPU, 0);
  bool minimize_memory = false;
  std::string name = "layernorm_mlp";
  ParallelOptions parallel = {};
  bool fuse_wgrad_accumulation = false, delay_wgrad_compute = false;  ///< not built: refused
};

class LayerNormMLPImpl : public Fp8Cloneable<LayerNormMLPImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit LayerNormMLPImpl(LayerNormMLPOptions options);

  void reset() override;
  /// x: [..., hidden_size] -> the same sizes. With `checkpoint` the module must be held by a shared pointer (as torch's
  /// modules are).
  at::Tensor forward(const at::Tensor& x, std::optional<bool> is_first_microbatch = std::nullopt) {
    return forward_all(x, is_first_microbatch).y;
  }
  ModuleOutputs forward_all(const at::Tensor& x, std::optional<bool> is_first_microbatch = std::nullopt);

  /// Of fc1 and of fc2.
  std::vector<std::shared_ptr<Fp8State>> fp8_states() const override { return {fc1_state_, fc2_state_}; }
  void pretty_print(std::ostream& stream) const override;

  const LayerNormMLPOptions& options() const { return options_; }

  at::Tensor layer_norm_weight, layer_norm_bias;  ///< [hidden_size]; the bias is undefined for RMSNorm
  at::Tensor fc1_weight, fc1_bias;                ///< [ffn_hidden_size or twice that, hidden_size]
  at::Tensor fc2_weight, fc2_bias;                ///< [hidden_size, ffn_hidden_size]

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<bool>())})

 private:
  std::pair<at::Tensor, at::Tensor> run(const at::Tensor& x, std::optional<bool> is_first_microbatch) const;

  LayerNormMLPOptions options_;
  Normalization kind_;
  std::shared_ptr<Fp8State> fc1_state_, fc2_state_;
};
TORCH_MODULE(LayerNormMLP);

}  // namespace fp8::te
