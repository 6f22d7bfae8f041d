// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/plan/plan.h"

#include <sstream>

#include "fp8/measure/files/observer_types.h"
#include "fp8/quant/plan/rules.h"

namespace fp8::quant {

using configs::KindInfo;

namespace {

bool is_quantizable(const std::string& type) { return configs::type_is(type, &KindInfo::weight); }
bool is_lookup(const std::string& type) { return configs::type_is(type, &KindInfo::lookup); }

/// Why a weight can't have the blocks; empty if it can. Scales per block are what 2-D weights have that meet
/// activations in groups of a row.
std::string block_problem(const ModuleInfo& m, const Scheme& scheme) {
  if (m.shape.size() != 2 || (!configs::is_linear(m.type) && !is_lookup(m.type)))
    return "no block scales for type " + m.type;
  return mx_problem(scheme, m.shape[1]);
}

void check_blocks(const PlanOptions& o) {
  if (o.weights != Granularity::block) {
    if (o.activations == ActivationScaling::dynamic_group)
      throw std::invalid_argument("dynamic group activations go with block scales of weights, found others");
    if (o.power_of_two)
      throw std::invalid_argument("scales that are powers of two (e8m0) go with block scales of weights, found others");
    return;
  }
  if (o.config.has_value())
    throw std::invalid_argument(
        "block scales: found a QUANT_CONFIG, which has no such granularity, allowed without one");
  if (o.activations == ActivationScaling::static_tensor)
    io::fail<io::OptionError<std::invalid_argument>>(
        "block scales: found static activations (measurements), allowed are dynamic ones{} or none{}",
        io::option("activations", "", "dynamic"), io::option("activations", "", "weights-only"));
  if (o.block.rows < 1 || o.block.cols < 1)
    io::fail<std::invalid_argument>("block scales: found blocks of {} x {}, sizes must be at least 1", o.block.rows,
                                    o.block.cols);
}

/// Why a module stays in high precision without a config; empty: it is quantized.
std::string own_reason(const ModuleInfo& m, const ModulePatterns& patterns) {
  if (std::string reason = patterns.excludes(m.name, m.type); !reason.empty()) return reason;
  if (patterns.includes(m.name)) return is_quantizable(m.type) ? "" : "no fp8 kernel for type " + m.type;
  if (is_adapter_name(m.name)) return "a LoRA adapter, kept in high precision" + include_hint();
  if (m.kept.has_value() && !m.kept->empty()) return *m.kept + include_hint();
  // The errors of heads and embeddings cost most, their products least.
  if (is_lookup(m.type)) return "kept in high precision by default" + include_hint();
  if (m.kept.has_value()) return is_quantizable(m.type) ? "" : "no fp8 kernel for type " + m.type;
  if (is_head_name(m.name) || is_embedding_name(m.name)) return "kept in high precision by default" + include_hint();
  if (is_router_name(m.name)) return "a router, kept in high precision" + include_hint();
  if (!is_quantizable(m.type)) return "no fp8 kernel for type " + m.type;
  if (is_tower_name(m.name)) return "part of an audio or vision tower, kept in high precision" + include_hint();
  return "";
}

/// Nodes without a weight (matmul, softmax, key-value caches) that this model has not are passed over, with a warning
/// that names the first. A node with a weight must be a module of the model, and some node must be.
void check_fits(const std::vector<ModuleInfo>& modules, const std::vector<NodeInfo>& nodes,
                const measure::MeasurementFile& file, std::vector<std::string>& warnings) {
  std::set<std::string> names;
  for (const auto& m : modules) names.insert(m.name);
  for (const auto& n : nodes) names.insert(n.name);
  std::size_t passed_over = 0;
  std::string first;
  for (const auto& m : file.modules) {
    if (names.contains(m.module)) continue;
    if (m.weight.has_value())
      io::fail<io::Error>(
          "measurements: they name module '{}', which this model has not; a measurement of another model?", m.module);
    if (passed_over++ == 0) first = m.module;
  }
  if (passed_over == 0) return;
  if (passed_over == file.modules.size())
    io::fail<io::Error>(
        "measurements: they name no module of this model, but '{}' and others; a measurement of another model?", first);
  warnings.push_back(io::message("measurements: {} measured nodes without a weight are passed over (the first is '{}')",
                                 passed_over, first));
}

/// Without a config. Mixtures of experts follow their weights; the rest is asked for.
void plan_own_node(const NodeInfo& n, const std::vector<ModuleInfo>& modules, const PlanOptions& o,
                   const ModulePatterns& patterns, Plan& plan) {
  const auto* type = configs::find_module_type(n.type);
  const auto skip = [&](const std::string& reason) { plan.skipped.push_back({n.name, reason}); };
  if (plan_rules::kept(n.name, o, plan)) return;
  if (const std::string reason = patterns.excludes(n.name, n.type); !reason.empty()) return skip(reason);
  if (type == nullptr || !configs::info_of(type->kind).quantized) return skip("no fp8 kernel for type " + n.type);
  const KindInfo& info = configs::info_of(type->kind);
  const bool cache = info.cache, mixture = info.experts;
  if (!cache && !mixture && !info.attention)
    return skip("type " + n.type + " is quantized where a QUANT_CONFIG selects it");
  if (mixture && !plan_rules::experts_planned(n.name, modules, plan))
    return skip("its experts' weights stay in high precision");
  if (!mixture && !(cache ? o.kv_cache.value_or(false) : o.attention))
    return skip(cache ? "key-value caches stay in high precision by default"
                      : "attention stays in high precision by default");
  if (o.activations == ActivationScaling::none && !cache) return skip("only weights are quantized");
  PlannedNode planned{n, {}};
  NodeScheme& s = planned.scheme;
  s.kind = type->kind;
  s.dialect = o.dialect_or_ocp();
  s.dynamic = o.activations != ActivationScaling::static_tensor && !cache;
  s.per_token = o.activations == ActivationScaling::dynamic_token || o.activations == ActivationScaling::dynamic_group;
  if (!s.dynamic) {
    const auto* m = plan_rules::measured(o, n.name);
    if (m == nullptr && mixture) return skip("no measurement of its inputs");
    if (m == nullptr && !cache) plan_rules::fail_unmeasured(n.name, o);
    if (cache)
      s.input_scale_inv = s.output_scale_inv = kv_scale_inv(n.name, o, plan.warnings);
    else
      set_node_scales(s, m, {}, n.name, plan_rules::experts_of(n.name, modules), plan.warnings);
  }
  plan.nodes.push_back(std::move(planned));
}

/// Without a config: what activations are, and whether a module's input was measured.
Plan own_plan(const std::vector<ModuleInfo>& modules, const std::vector<NodeInfo>& nodes, const PlanOptions& o) {
  Plan plan;
  plan.scale_method = "amax";
  const ModulePatterns patterns(o);
  patterns.require_used(modules, nodes);
  const bool is_static = o.activations == ActivationScaling::static_tensor;
  const auto weights = o.weights.value_or(is_static ? Granularity::tensor : Granularity::channel);
  const bool groups = weights == Granularity::block && o.activations != ActivationScaling::none;
  const auto activations = groups ? ActivationScaling::dynamic_group : o.activations;
  for (const auto& m : modules) {
    if (plan_rules::kept(m.name, o, plan)) continue;
    if (std::string reason = own_reason(m, patterns); !reason.empty()) {
      plan.skipped.push_back({m.name, reason});
      continue;
    }
    PlannedModule planned;
    planned.info = m;
    planned.scheme.dialect = o.dialect_or_ocp();
    planned.scheme.activations =
        is_lookup(m.type) || o.weights_only.contains(m.name) ? ActivationScaling::none : activations;
    planned.scheme.weights = weights;
    planned.scheme.search = o.search;
    if (weights == Granularity::block) {
      planned.scheme.block = o.block;
      planned.scheme.power_of_two = o.power_of_two;
      if (std::string problem = block_problem(m, planned.scheme); !problem.empty()) {
        plan.skipped.push_back({m.name, std::move(problem)});
        continue;
      }
    }
    if (weights == Granularity::tensor && o.fuse_scales) planned.fuse_group = fuse_group_of(m.name);
    std::string reason;
    if (!plan_rules::apply_measurement(planned, o, nodes, {}, true, plan.warnings, reason)) {
      const bool listed = plan_rules::was_to_be_measured(m.name, o);
      if (listed && (m.type == "Linear" || m.type == "Conv2d" || patterns.includes(m.name)))
        plan_rules::fail_unmeasured(m.name, o);
      plan.skipped.push_back(
          {m.name, listed
                       ? reason
                       : reason + ", which was not to be measured"});  // some types only where a config asks for them
      continue;
    }
    plan.modules.push_back(std::move(planned));
  }
  for (const auto& n : nodes) plan_own_node(n, modules, o, patterns, plan);
  if (o.search == ScaleSearch::mse && o.power_of_two)
    plan.warnings.push_back(io::option("weight_scales", "'search' mse") +
                            " has no effect: scales that are powers of two follow the amax");
  return plan;
}

}  // namespace

std::string include_hint() { return " (" + io::option("include") + " quantizes it)"; }

const PlannedModule* Plan::find(const std::string& name) const {
  for (const auto& m : modules)
    if (m.info.name == name) return &m;
  return nullptr;
}

void Plan::spell(io::Spelling spelling) {
  for (auto& module : skipped) module.reason = io::spelled(module.reason, spelling);
  for (auto& warning : warnings) warning = io::spelled(warning, spelling);
}

Plan make_plan(const std::vector<ModuleInfo>& modules, const std::vector<NodeInfo>& nodes, const PlanOptions& options) {
  std::vector<std::string> warnings;
  check_blocks(options);
  if (options.measurements.has_value()) {
    measure::require_amax(*options.measurements);
    check_fits(modules, nodes, *options.measurements, warnings);
    if (const std::string shortage = options.measurements->shortage(); !shortage.empty())
      warnings.push_back("measurements: " + shortage +
                         " were measured: the run was cut short, or its data gave no more; rare values may be missing");
  }
  Plan plan =
      options.config.has_value() ? plan_rules::config_plan(modules, nodes, options) : own_plan(modules, nodes, options);
  plan.warnings.insert(plan.warnings.begin(), warnings.begin(), warnings.end());
  plan_rules::warn_of_lost_inputs(options, plan);
  if (options.measurements.has_value()) plan.measurements = options.measurements->fingerprint();
  plan.spell(options.spelling);
  return plan;
}

void check_measured_weight(const PlannedModule& module, float amax) {
  if (!module.measured_weight_amax.has_value()) return;
  const float measured = *module.measured_weight_amax;
  if (std::abs(measured - amax) <= std::ldexp(std::max(measured, amax), -7)) return;  // other tools store it in bf16
  const bool threshold = module.measured_weight == MeasuredWeight::threshold;
  if (threshold && measured < amax && measured > 0.0f) return;
  if (module.measured_weight == MeasuredWeight::of_whole && amax < measured) return;
  std::ostringstream text;
  text << "measurements: " << module.info.name << ": the weight's " << (threshold ? "clipping threshold" : "amax")
       << " was " << measured << " when measured and " << (threshold ? "its amax " : "") << "is " << amax
       << " in this model; a measurement of another model?";
  throw io::Error(text.str());
}

}  // namespace fp8::quant
