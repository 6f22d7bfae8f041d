// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm, never in fp8: bit-equal to at::layer_norm and at::rms_norm over the last dimension.
//
//   LayerNorm  y = (x - mean) / sqrt(var + eps) * gamma + beta   gamma = weight, or 1 + weight with zero_centered_gamma
//   RMSNorm    y = x / sqrt(mean(x^2) + eps) * gamma
#pragma once

#include "fp8/transformer_engine/modules/linear.h"

namespace fp8::te {

struct NormOptions {
  std::int64_t normalized_shape = 0;
  double eps = 1e-5;
  bool zero_centered_gamma = false;          ///< the weight is gamma - 1 and starts at zero
  at::ScalarType params_dtype = at::kFloat;  ///< f32, bf16 or f16
  at::Device device = at::Device(at::kHPU, 0);
};

class LayerNormImpl : public torch::nn::Cloneable<LayerNormImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit LayerNormImpl(NormOptions options);
  explicit LayerNormImpl(std::int64_t normalized_shape)
      : LayerNormImpl(NormOptions{.normalized_shape = normalized_shape}) {}
  void reset() override;
  /// x: [..., normalized_shape].
  at::Tensor forward(const at::Tensor& x);
  void pretty_print(std::ostream& stream) const override;

  at::Tensor weight, bias;  ///< [normalized_shape]

 private:
  NormOptions options_;
};
TORCH_MODULE(LayerNorm);

class RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit RMSNormImpl(NormOptions options);
  explicit RMSNormImpl(std::int64_t normalized_shape)
      : RMSNormImpl(NormOptions{.normalized_shape = normalized_shape}) {}
  void reset() override;
  /// x: [..., normalized_shape].
  at::Tensor forward(const at::Tensor& x);
  void pretty_print(std::ostream& stream) const override;

  at::Tensor weight;  ///< [normalized_shape]

 private:
  NormOptions options_;
};
TORCH_MODULE(RMSNorm);

/// Of a norm of `features` in a module of these options.
template <class Options>
NormOptions norm_options(const Options& o, std::int64_t features, double eps) {
  return {.normalized_shape = features,
          .eps = eps,
          .zero_centered_gamma = o.zero_centered_gamma,
          .params_dtype = o.params_dtype,
          .device = o.device};
}

/// `part` with the options that it has in common with the module around it.
template <class Part, class Whole>
Part with_options_of(const Whole& o, Part part) {
  part.bias = o.bias;
  part.params_dtype = o.params_dtype;
  part.init_method = o.init_method;
  part.device = o.device;
  part.minimize_memory = o.minimize_memory;
  if constexpr (requires { part.normalization; }) {
    part.normalization = o.normalization;
    part.zero_centered_gamma = o.zero_centered_gamma;
  }
  if constexpr (requires { part.output_layer_init_method; }) part.output_layer_init_method = o.output_layer_init_method;
  return part;
}

/// For modules that begin or end with one of the two.
enum class Normalization : std::uint8_t { LayerNorm, RMSNorm };

/// Throws c10::Error "[module] normalization: found "x", allowed: "LayerNorm", "RMSNorm"".
Normalization normalization_of(const char* module, const std::string& name);
/// Throws c10::Error naming eps unless it is a finite number >= 0.
void check_eps(const char* module, double eps);

/// A weight at its start: ones, or zeros where gamma is 1 + weight.
at::Tensor initial_gamma(const NormOptions& options);
/// beta: undefined for RMSNorm. x, weight, beta as in the classes above.
at::Tensor normalize(Normalization kind, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& beta,
                     double eps, bool zero_centered_gamma);

/// f(x), of a gated activation f(x1) * x2 of the halves x1, x2 of the last dimension. name: as in LayerNormMLP.
at::Tensor activate(const std::string& name, const at::Tensor& x);

/// A submodule of either kind.
struct AnyNorm {
  LayerNorm layer{nullptr};
  RMSNorm rms{nullptr};

  AnyNorm() = default;
  AnyNorm(Normalization kind, const NormOptions& options);
  std::shared_ptr<torch::nn::Module> module() const;
  at::Tensor operator()(const at::Tensor& x);
};

// y = norm(x) w^T + b: the normalization in high precision, the product in fp8 inside an enabled fp8_autocast region.
// With fp8 off bit-equal to at::layer_norm (at::rms_norm) and at::linear one after the other.

struct LayerNormLinearOptions {
  std::int64_t in_features = 0, out_features = 0;
  double eps = 1e-5;
  std::string normalization = "LayerNorm";  ///< or "RMSNorm"
  bool zero_centered_gamma = false;
  bool bias = true;                          ///< of the product
  bool return_bias = false;                  ///< y comes without the bias; forward_all() gives it
  bool return_layernorm_output = false;      ///< forward_all() gives norm(x), in high precision
  at::ScalarType params_dtype = at::kFloat;  ///< f32, bf16 or f16
  InitMethod init_method = nullptr;
  at::Device device = at::Device(at::kHPU, 0);
  bool minimize_memory = false;
  std::string name = "layernorm_linear";
  ParallelOptions parallel = {};
  ParametersSplit parameters_split = {};                              ///< as in Linear
  bool fuse_wgrad_accumulation = false, delay_wgrad_compute = false;  ///< not built: refused
};

class LayerNormLinearImpl : public Fp8Cloneable<LayerNormLinearImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit LayerNormLinearImpl(LayerNormLinearOptions options);

  void reset() override;
  /// x: [..., in_features] -> [..., out_features]. fp8_output, fp8_grad: not built, refused.
  at::Tensor forward(const at::Tensor& x, std::optional<bool> is_first_microbatch = std::nullopt,
                     bool fp8_output = false, bool fp8_grad = false) {
    refuse_fp8_results("te::LayerNormLinear", fp8_output, fp8_grad);
    return forward_all(x, is_first_microbatch).y;
  }
  ModuleOutputs forward_all(const at::Tensor& x, std::optional<bool> is_first_microbatch = std::nullopt);

  std::vector<std::shared_ptr<Fp8State>> fp8_states() const override { return {state_}; }
  void pretty_print(std::ostream& stream) const override;

  const LayerNormLinearOptions& options() const { return options_; }

  at::Tensor layer_norm_weight, layer_norm_bias;  ///< [in_features]; the bias is undefined for RMSNorm
  at::Tensor weight;                              ///< [out_features, in_features]
  at::Tensor bias;                                ///< [out_features]; undefined without

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<bool>())}, {2, torch::nn::AnyValue(false)},
                           {3, torch::nn::AnyValue(false)})

 private:
  ProductParameters parameters_of_product_;
  LayerNormLinearOptions options_;
  Normalization kind_;
  std::shared_ptr<Fp8State> state_;
};
TORCH_MODULE(LayerNormLinear);

// The feed-forward block of a transformer: both products in fp8 inside an enabled fp8_autocast region.
//
//   y = act(norm(x) fc1^T + b1) fc2^T + b2
//
//   gelu (tanh form)   relu   silu   qgelu: x sigmoid(1.702 x)   srelu: relu(x)^2
//   gated: fc1 has 2 ffn_hidden_size rows and act(a, b) = f(a) * b of its two halves
//   geglu   reglu   swiglu   qgeglu   sreglu   glu: f = sigmoid

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
