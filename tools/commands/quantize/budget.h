// SPDX-License-Identifier: Apache-2.0
// `fp8 quantize --budget kl=X --data FILE`: keeps as few bytes in high precision as it takes for the KL divergence from
// the high precision model, measured on FILE, to be at most X.
//
//   1. everything in fp8: if that meets the budget, nothing is kept and nothing else is run
//   2. run the model with probes: every module's SQNR (quant/damage/damage.h)
//   3. order the units by the KL that each causes alone in fp8 per byte that it saves, or of large models by noise per
//      byte; a unit is what engines run as one product: q, k, v; gate, up; all experts of a layer; else one module
//   4. where the form of the checkpoint can say it: the activations of the first n units in high precision, their
//      weights in fp8 as before; if that meets the budget no byte is given away. Else those of all units, and
//   5. smallest n such that KL(model with the first n units kept) <= X, by bisection; every KL is measured,
//      none is estimated
#pragma once

#include "fp8/quant/checkpoint/rounded.h"
#include "fp8/quant/plan/plan.h"
#include "fp8/tools/commands/options/input_options.h"

namespace fp8::commands {

struct BudgetOptions : DataOptions {
  BudgetOptions() { samples = 64; }
  double kl = 0;                  ///< nats, mean over all positions
  bool weights_only_too = false;  ///< tries activations in high precision first
  /// The codes of the modules that are in fp8, by their names in memory; null: nearest ones.
  std::shared_ptr<const quant::RoundedCodes> rounded = nullptr;
};

struct BudgetResult {
  std::map<std::string, std::string> keep;          ///< module -> why, for PlanOptions::keep
  std::map<std::string, std::string> weights_only;  ///< the same for PlanOptions::weights_only
  double kl = 0;                                    ///< measured with these
  double kl_of_all = 0;                             ///< measured with none kept
  /// {"kl", "budget", "kl_of_all", "ranked_by": null | "kl per byte" | "noise per byte", "kept": [modules], "units":
  /// [all, in order], "weights_only": [modules], "runs": [{"kept", "weights_only", "kl"}]}
  io::Json report;
};

/// Throws io::Error if only the high precision model itself meets the budget.
extern Late<BudgetResult(const std::filesystem::path& model, const quant::PlanOptions& plan,
                         const BudgetOptions& options, const Context& context)>
    meet_budget;

}  // namespace fp8::commands
