// SPDX-License-Identifier: Apache-2.0
// Rounds the weights of modules against the inputs that they see (kernels/rounding.h), one decoder layer at a time:
// probes on the weights collect the inputs of a model that runs in high precision, then every module gets its codes.
//
//   tokens of an input, in the order of the samples, in chunks of 256
//   | 32 | 32 | 32 | 32 | 32 | 32 | 32 | held |      seven runs make G, the last one judges: it makes H
//
// Modules that take the same tensor (q, k, v; gate and up) share G, H and the factor. A module keeps the codes of the
// sweep only where tr(E H E^T) of its error E is below that of rounding to nearest under the same scales, so no module
// is worse than nearest on tokens that the sweep has not seen.
#pragma once

#include "fp8/measure/model/module_tree.h"
#include "fp8/quant/checkpoint/rounded.h"
#include "fp8/quant/plan/plan.h"

namespace fp8::quant {

class LayerRounding {
 public:
  /// Probes the modules of `plan` among `modules`: Linear and experts, on hpu, untagged; else c10::Error naming one.
  /// how: the method, and the damping of G, ten times as much, up to 1, where G has no factor.
  /// share: modules that take the same tensor have one G, H and factor.
  /// Throws std::invalid_argument for a method that there is not, or that needs no inputs.
  LayerRounding(std::vector<measure::WeightModule> modules, Plan plan, const configs::RoundingKeys& how,
                bool share = true);
  ~LayerRounding();
  LayerRounding& operator=(LayerRounding&&) = delete;

  /// Bytes that an input of so many columns takes while tokens come in.
  static std::int64_t input_bytes(std::int64_t columns);

  /// The forward that follows is of these samples. A NaN or Inf in an input throws io::Error naming module and sample.
  void begin_samples(std::int64_t first, std::int64_t count);

  /// True while every module that shares an input has taken it as often as the others: one that is called on another
  /// tensor too would be rounded for tokens that it does not see, or not for all that it does.
  bool shares_all() const;

  /// Takes the probes off; outcomes in the plan's order. One input after the other, whose matrices are freed then.
  RoundedLayer finish();

 private:
  class Input;
  class Probe;
  struct Samples {
    std::int64_t first = 0, count = 1;
  };

  std::shared_ptr<Input> input_of(Probe& probe, const at::Tensor& x);
  void untag();
  void round_module(std::size_t i, const Input& input, const WeightScales& scales, RoundedModule& outcome,
                    RoundedLayer& out) const;

  std::vector<measure::WeightModule> modules_;  // of the plan, in its order
  Plan plan_;
  configs::RoundingKeys how_;
  std::shared_ptr<const recipes::RoundingMethod> method_;
  bool share_;
  Samples samples_;
  std::vector<std::shared_ptr<Input>> inputs_;
  std::vector<std::shared_ptr<Probe>> probes_;  // of modules_
};

}  // namespace fp8::quant
