// SPDX-License-Identifier: Apache-2.0
// The running average of a model's parameters, to evaluate with: after each step of the optimizer
//
//   average = decay * average + (1 - decay) * parameter
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace fp8::runtime::optim {

/// Averages of a model's parameters, in f32 whatever the parameters are (a bf16 average would stop moving).
class FusedEMA {
 public:
  /// The averages start as copies. decay: 0 to 1.
  FusedEMA(std::vector<at::Tensor> parameters, double decay = 0.9999);

  void update();                                           ///< with the constructor's parameters
  void update(const std::vector<at::Tensor>& parameters);  ///< as many, of the same sizes
  void decay(double decay);                                ///< from the next update on
  double decay() const { return decay_; }

  /// f32, on the parameters' devices. To be saved, and assigned to (copy_) when loaded.
  const std::vector<at::Tensor>& averages() const { return averages_; }
  /// Writes the averages into `parameters`.
  void copy_to(const std::vector<at::Tensor>& parameters) const;
  /// Exchanges parameters and averages: call it before and after an evaluation. With bf16 or fp8 parameters the averages lose
  /// nothing, because they are kept aside meanwhile.
  void swap();

 private:
  std::vector<at::Tensor> parameters_, averages_, aside_;
  double decay_ = 0;
};

}  // namespace fp8::runtime::optim
