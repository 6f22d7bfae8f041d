// SPDX-License-Identifier: Apache-2.0
// Clipping of gradients to a common L2 norm:
//
//   g = g * max_norm / (|all g| + 1e-6) where |all g| > max_norm; exactly as it was otherwise
//
// One pass over memory for the norm, a second only where it clips. The same bits for any number of threads.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace fp8::runtime::optim {

/// Clips the gradients of a list of parameters (f32, bf16 or f16, cpu or hpu) to a common L2 norm. A parameter that is
/// there more than once (tied weights) counts once.
class FusedClipNorm {
 public:
  /// max_norm: above 0. norm_type: only 2. Errors name the argument.
  FusedClipNorm(std::vector<at::Tensor> parameters, double max_norm, double norm_type = 2);

  /// Clips and returns the norm before clipping (f32, no dimensions, on the gradients' device; 0 on the CPU when no
  /// parameter has a gradient). An infinite norm makes finite gradients 0 and infinite ones NaN; a NaN norm changes
  /// nothing: look at what is returned. Throws for sparse gradients.
  at::Tensor clip_norm(const std::vector<at::Tensor>& parameters) const;
  at::Tensor clip_norm() const { return clip_norm(parameters_); }  ///< of the constructor's parameters

 private:
  std::vector<at::Tensor> parameters_;
  double max_norm_;
};

}  // namespace fp8::runtime::optim
