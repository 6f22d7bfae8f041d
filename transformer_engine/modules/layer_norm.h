// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm, never in fp8: bit-equal to at::layer_norm and at::rms_norm over the last dimension.
//
//   LayerNorm  y = (x - mean) / sqrt(var + eps) * gamma + beta   gamma = weight, or 1 + weight with zero_centered_gamma
//   RMSNorm    y = x / sqrt(mean(x^2) + eps) * gamma
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <string>

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

/// A submodule of either kind.
struct AnyNorm {
  LayerNorm layer{nullptr};
  RMSNorm rms{nullptr};

  AnyNorm() = default;
  AnyNorm(Normalization kind, const NormOptions& options);
  std::shared_ptr<torch::nn::Module> module() const;
  at::Tensor operator()(const at::Tensor& x);
};

}  // namespace fp8::te
