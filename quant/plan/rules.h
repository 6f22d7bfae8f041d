// SPDX-License-Identifier: Apache-2.0
// What the two planners (our own convention, a QUANT_CONFIG) share. Internal to quant.
#pragma once
#include "fp8/quant/plan/plan.h"

namespace fp8::quant::plan_rules {

const measure::Measurement* measured(const PlanOptions& options, const std::string& name);

/// Fills in what the measurement says of a module with a weight; false (and a reason) if there is none and one is
/// needed.
///   Linear, convolutions, recurrent weights   inputs[0] of its own
///   an expert's w13_list.E, w2_list.E         inputs[0], outputs[1 + E] of the mixture that it belongs to
///                                             (its own is a placeholder, as in INC)
bool apply_measurement(PlannedModule& planned, const PlanOptions& options, const std::vector<NodeInfo>& nodes,
                       const recipes::ScaleMethod& activation_method, bool needed, std::vector<std::string>& warnings,
                       std::string& reason);

/// Takes what a scale file says; false if it has nothing of the module. Throws io::Error for lists where one value
/// belongs.
bool apply_stored(PlannedModule& planned, const PlanOptions& options);
bool apply_stored(PlannedNode& planned, const PlanOptions& options);

/// A warning where static input scales lose most of what was measured.
void warn_of_lost_inputs(const PlanOptions& options, Plan& plan);

/// True (and listed with its reason) if the caller keeps the module.
bool kept(const std::string& name, const PlanOptions& options, Plan& plan);

/// False where the measurement has a list of what was to be measured and the module is not in it: training does not
/// look at convolutions, a calibration not at what it excluded.
bool was_to_be_measured(const std::string& name, const PlanOptions& options);

[[noreturn]] void fail_unmeasured(const std::string& module, const PlanOptions& options);

/// How many experts the mixture `name` holds, by its w2_list; whether the weights of all are in the plan.
std::size_t experts_of(const std::string& name, const std::vector<ModuleInfo>& modules);
bool experts_planned(const std::string& name, const std::vector<ModuleInfo>& modules, const Plan& plan);

/// What a QUANT_CONFIG says of the numbers of every module.
Numbers config_numbers(const PlanOptions& options);

/// INC's rules.
Plan config_plan(const std::vector<ModuleInfo>& modules, const std::vector<NodeInfo>& nodes,
                 const PlanOptions& options);

}  // namespace fp8::quant::plan_rules
