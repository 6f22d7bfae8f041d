// SPDX-License-Identifier: Apache-2.0
// Rules that both planners use (our own convention, a QUANT_CONFIG). Internal to quant.
#pragma once

#include "fp8/quant/names/expert_weights.h"
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

/// INC's scales of what ranks add and of the sum, by the activations' method with a backoff of 1: of a scale file, of
/// outputs 0 and 1 of the measurement, or fixed ones. False: nothing is known of them.
bool apply_reduced(PlannedModule& planned, const PlanOptions& options, recipes::ScaleMethod activation_method,
                   bool needed);

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

/// The numbers that a QUANT_CONFIG gives every module.
Numbers config_numbers(const PlanOptions& options);

/// INC's rules.
Plan config_plan(const std::vector<ModuleInfo>& modules, const std::vector<NodeInfo>& nodes,
                 const PlanOptions& options);

}  // namespace fp8::quant::plan_rules

// Scales of key-value caches, for checkpoint files and for models in memory alike. No torch here.
//
//   tensor    scale_inv    = f32(amax of all heads / fp8_max)
//   head      scale_inv[h] = f32(amax[h] / fp8_max)           with a QUANT_CONFIG: its method instead of the formula
//
// amax is measured of what a cache stores, keys after the rotary embedding ("ATTENTION.k_cache") and values
// ("ATTENTION.v_cache"). A scale is never made up: engines take a missing one for 1.0, which cuts off whatever passes
// fp8_max and loses the bits of small values.

namespace fp8::quant {

/// The attention modules among `modules` (names of those with a weight): parents of k_proj, or of one projection for q,
/// k and v (qkv_proj, query_key_value, W_pack, c_attn). In the order of their first mention.
std::vector<std::string> attention_modules(const std::vector<std::string>& modules);

/// The nodes of attention modules by the names that our models and optimum-habana's give them, which no checkpoint
/// shows: caches, and what either way to write attention has ("fused": fused_scaled_dot_product_attention; "eager":
/// matmul_qk, softmax, matmul_av).
std::vector<NodeInfo> attention_nodes(const std::vector<std::string>& attention);

/// The numbers of the caches: E4M3 of options.dialect, or the QUANT_CONFIG's format and convention.
Numbers kv_numbers(const PlanOptions& options);

/// Scales of the caches of every module of `attention`, made of options.measurements as options.kv_scales says. Throws
/// io::Error naming the module: it was not measured (and a config's method has no fixed value), only zeros were (a head
/// of zeros takes the scale of the cache's largest head, and `warnings` says so), or one value where one per head is
/// asked for; and if there is no attention module. options.query_scale: of the queries too, as fused attention
/// measured them.
std::vector<KvScales> plan_kv_cache(const std::vector<std::string>& attention, const PlanOptions& options,
                                    std::vector<std::string>& warnings);

/// Those of one cache ("ATTENTION.k_cache"): one, or one per head.
std::vector<float> kv_scale_inv(const std::string& module, const PlanOptions& options,
                                std::vector<std::string>& warnings);

// What a caller's patterns say of a module: include, exclude and ignore of PlanOptions.

class ModulePatterns {
 public:
  /// options must outlive this. Throws io::Error for an expression that does not compile.
  explicit ModulePatterns(const PlanOptions& options);

  bool empty() const { return include_.empty() && exclude_.empty(); }
  bool includes(const std::string& module) const;
  /// "excluded by --exclude"; empty: no pattern excludes it. type: its class, by which ignore may name it.
  std::string excludes(const std::string& module, const std::string& type) const;
  /// Throws io::Error with the nearest module for a pattern that means none of this model: most often a slip.
  void require_used(const std::vector<ModuleInfo>& modules, const std::vector<NodeInfo>& nodes) const;

 private:
  const PlanOptions& options_;
  configs::NamePatterns include_, exclude_;
};

/// For a model in memory: patterns and `keep` mean its checkpoint's names.
void name_as_in_checkpoint(PlanOptions& options, const NamesInCheckpoint& names);

}  // namespace fp8::quant
