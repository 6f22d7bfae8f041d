// SPDX-License-Identifier: Apache-2.0
// Clipping of gradients to a common L2 norm:
//
//   g = g * max_norm / (|all g| + 1e-6) where |all g| > max_norm; exactly as it was otherwise
//
// One pass over memory for the norm, a second only where it clips. The same bits for any number of threads.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace torch::nn {
class Module;
}

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

// The running average of a model's parameters, to evaluate with: after each step of the optimizer
//
//   t = updates so far, this one included;   d = decay * (1 - exp(-t / ramp))
//   average = d * average + (1 - d) * parameter
//
// The ramp is the device's FusedEMA's (2000): early averages forget the start quickly. With ramp 0, d = decay always.

/// Averages of a model's parameters, in f32 whatever the parameters are (a bf16 average would stop moving).
class FusedEMA {
 public:
  /// The averages start as copies. decay: 0 to 1. updates: those made before a resumed run, >= 0. ramp: 0 or more.
  /// Parameters are f32, bf16, f16 or held in fp8; others are errors that name the place, as are options out of range.
  FusedEMA(std::vector<at::Tensor> parameters, double decay = 0.9999, std::int64_t updates = 0, double ramp = 2000);
  /// Of a model, as the device's: its parameters and then its floating-point buffers (running statistics), each once.
  explicit FusedEMA(const torch::nn::Module& model, double decay = 0.9999, std::int64_t updates = 0,
                    double ramp = 2000);

  void update();                                           ///< with the constructor's parameters
  void update(const std::vector<at::Tensor>& parameters);  ///< as many, of the same sizes
  void decay(double decay);                                ///< from the next update on
  double decay() const { return decay_; }
  double decay_of(std::int64_t update) const;  ///< d of that update, counted from 1
  std::int64_t updates() const { return updates_; }

  /// f32, on the parameters' devices. To be saved, and assigned to (copy_) when loaded.
  const std::vector<at::Tensor>& averages() const { return averages_; }
  /// Writes the averages into `parameters`.
  void copy_to(const std::vector<at::Tensor>& parameters) const;
  /// Exchanges parameters and averages: call it before and after an evaluation. With bf16 or fp8 parameters the
  /// averages lose nothing, because they are kept aside meanwhile.
  void swap();

 private:
  std::vector<at::Tensor> parameters_, averages_, aside_;
  double decay_ = 0, ramp_ = 0;
  std::int64_t updates_ = 0;
};

}  // namespace fp8::runtime::optim
