// SPDX-License-Identifier: Apache-2.0
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
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fp8/tools/models/base/decoder_math.h"
#include "fp8/tools/models/decoder/description.h"

namespace fp8::models {

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
