// SPDX-License-Identifier: Apache-2.0
// Norms, rotary embeddings and SwiGLU of decoder layers, on any device. Where no gradient is needed, tensors of one
// dtype (bf16 or f32) on the CPU or on hpu take one pass of our kernels (runtime/kernels/decoder_math.h); all others
// take PyTorch's operations, with the same roundings. A rotation is the same to the bit; a norm's sums are added in
// another order, and exponentials are others in the last bits of f32.
//
// `next`: what the result will be cast to (modules/linear_together.h, input_cast). One pass makes and keeps the codes
// too.
#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <mutex>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/tools/models/decoder/description.h"

namespace fp8::models {

/// cos and sin [1 or B, 1, L, D] of the positions of one forward, in the compute dtype.
struct RotaryAngles {
  at::Tensor cos, sin;
};

/// weight * cast(x * rsqrt(mean(x^2) + eps)), the inner part in f32; wide: cast((offset + weight) * x * rsqrt(...)),
/// all of it. x: [..., H], weight: [H].
struct RmsNormForm {
  bool wide = false;
  double offset = 0;
};
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, RmsNormForm form = {},
                    const runtime::NextCast& next = {});
/// By PyTorch's operations: in training a layer that runs again, for its gradients, must give the same bits.
at::Tensor rms_norm_by_operations(const at::Tensor& x, const at::Tensor& weight, double eps, RmsNormForm form = {});

/// (x - mean) * rsqrt(var + eps) * weight + bias, in f32, then cast. x: [..., H]; weight and bias: [H] or undefined.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps,
                      const runtime::NextCast& next = {});

/// cast(silu(gate)) * up, of one shape.
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up, const runtime::NextCast& next = {});

/// (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin): element i turns with element i + D/2, as Hugging Face stores q and
/// k. x: [B, A, L, D].
at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles);

// Norms of decoder layers as modules.

/// rms    weight * cast(x * rsqrt(mean(x^2) + eps)), the inner part (wide: all of it) in f32
/// layer  (x - mean) * rsqrt(var + eps) * weight + bias, in f32, then cast
class NormImpl : public torch::nn::Module {
 public:
  /// shape: of the weight; the norm is over the last dimension of it. type: "LlamaRMSNorm".
  NormImpl(std::string type, std::vector<std::int64_t> shape, const NormSpec& spec);
  /// x: [..., shape] -> the same, with the codes that it will be cast to (decoder/decoder_math.h).
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

/// "LlamaRMSNorm", "BertLayerNorm".
std::string norm_type(const std::string& type, const NormSpec& spec);

/// The config's norm called `name` below root, of vectors of `width` (0: hidden states); none for "".
Norm add_norm(torch::nn::Module& root, const std::string& name, const DecoderConfig& config, std::int64_t width = 0);

// Rotary embeddings: element i of a head turns with element i + d/2 by the angle position * f_i, f_i = theta^(-2i/d)
// stretched by s = factor:
//
//   linear    f / s
//   dynamic   theta' = theta (s n / L - (s - 1))^(d / (d - 2)) where n, the positions in use, pass L (arXiv:2309.00071)
//   llama3    wavelength 2 pi / f: long ones (> L / low) divided by s, short ones (< L / high) kept, smooth between
//   yarn      f / s where a head turns less than beta_slow times in L, f where more than beta_fast, a ramp between
//   longrope  f / short_i, or f / long_i where the positions in use pass L (arXiv:2402.13753)
//
// L: original_max_position_embeddings.
//
// A token at a time reads its angles from a table of the 256 positions around it, in the dtype and on the device that
// heads have; more tokens, and a theta' that every position changes, make them anew.

/// f_i [d / 2], f32 on the CPU, of a forward that has `positions` positions in use.
at::Tensor rotary_frequencies(const RopeSpec& rope, std::int64_t positions);

/// Has no parameters.
class RotaryEmbeddingImpl : public torch::nn::Module {
 public:
  RotaryEmbeddingImpl(std::string type, std::vector<RopeSpec> ropes);
  /// The angles of each rope at positions [1 or B, L], f32 on the CPU, in like's dtype on its device. in_use: the
  /// largest position + 1.
  std::vector<RotaryAngles> forward(const at::Tensor& positions, std::int64_t in_use, const at::Tensor& like);

 private:
  /// Angles [1, 1, 256, d] from position `first` on.
  struct Table {
    std::int64_t first = -1;
    bool longer = false, inference = false;
    RotaryAngles angles;
  };
  RotaryAngles angles_of(std::size_t rope, const at::Tensor& positions, std::int64_t in_use, bool longer,
                         const at::Tensor& like) const;
  std::shared_ptr<const Table> table_of(std::size_t rope, std::int64_t position, bool longer, const at::Tensor& like);

  std::vector<RopeSpec> ropes_;
  std::vector<at::Tensor> frequencies_;  // of few positions; no buffers: Module::to() must not change their dtype
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Table>> tables_;
};
TORCH_MODULE(RotaryEmbedding);

}  // namespace fp8::models
