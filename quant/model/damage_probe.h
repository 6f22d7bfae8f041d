// SPDX-License-Identifier: Apache-2.0
// Looks at what a plan would do to a model that still runs in high precision: probes on the planned weights cast every
// input they see and keep the damage. Not a bit of the model's results changes.
#pragma once

#include "fp8/measure/model/module_tree.h"
#include "fp8/quant/damage/damage.h"
#include "fp8/quant/plan/plan.h"

namespace fp8::quant {

/// Lives as long as the probes shall: the destructor takes them off.
class DamageProbe {
 public:
  /// Probes the modules of `plan`, all on hpu and untagged (else c10::Error naming the module). The weights' damage is
  /// taken now. names: what reports call a module; several names share its rows out evenly, and its input.
  using Names = std::function<std::vector<std::string>(const std::string& module)>;
  DamageProbe(const std::vector<measure::WeightModule>& modules, const Plan& plan, const Names& names = nullptr);
  ~DamageProbe();
  DamageProbe& operator=(DamageProbe&&) = delete;

  /// By name, in the plan's order; input is there for modules that were called.
  std::vector<ModuleDamage> result() const;

 private:
  class Handler;
  std::vector<std::shared_ptr<Handler>> handlers_;
  std::vector<at::Tensor> weights_;
};

}  // namespace fp8::quant
