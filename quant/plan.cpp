// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/plan.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "fp8/configs/python_regex.h"
#include "fp8/runtime/io/error.h"

namespace fp8::quant {
namespace {

/// Kept in high precision unless included: their errors cost most, their products least.
constexpr const char* kKeptNames[] = {"lm_head", "embed_tokens", "embed_out", "wte", "wpe"};
constexpr const char* kRouterNames[] = {"gate", "router"};
constexpr const char* kFuseGroups[][3] = {{"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj", ""}};

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }
std::string parent_of(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

bool any_of(const char* const* begin, const char* const* end, const std::string& name) {
  return std::any_of(begin, end, [&](const char* s) { return name == s; });
}

class Patterns {
 public:
  Patterns(const std::vector<std::string>& patterns, const char* option) {
    for (const auto& p : patterns) patterns_.emplace_back(p, option);
  }
  bool match(const std::string& name) const {
    return std::any_of(patterns_.begin(), patterns_.end(), [&](const configs::PythonRegex& r) { return r.search(name); });
  }

 private:
  std::vector<configs::PythonRegex> patterns_;
};

bool is_quantizable(const std::string& type) { return type == "Linear" || type == "Conv2d" || type == "Embedding"; }

/// Why a module stays in high precision without a config; empty: it is quantized.
std::string own_reason(const ModuleInfo& m, const Patterns& include, const Patterns& exclude) {
  if (exclude.match(m.name)) return "excluded by --exclude";
  if (include.match(m.name)) return is_quantizable(m.type) ? "" : "no fp8 kernel for type " + m.type;
  const std::string last = last_part(m.name);
  if (m.type == "Embedding" || any_of(std::begin(kKeptNames), std::end(kKeptNames), last)) return "kept in high precision by default (--include quantizes it)";
  if (any_of(std::begin(kRouterNames), std::end(kRouterNames), last)) return "a router, kept in high precision (--include quantizes it)";
  if (!is_quantizable(m.type)) return "no fp8 kernel for type " + m.type;
  return "";
}

const measure::Measurement* measured(const PlanOptions& o, const std::string& name) {
  return o.measurements.has_value() ? o.measurements->find(name) : nullptr;
}

/// Other tools also measure nodes without a weight (matmul, softmax, key-value caches): these are passed over, with a warning that names
/// the first. A node with a weight must be a module of the model, and some node must be.
void check_fits(const std::vector<ModuleInfo>& modules, const measure::MeasurementFile& file, std::vector<std::string>& warnings) {
  std::set<std::string> names;
  for (const auto& m : modules) names.insert(m.name);
  std::size_t passed_over = 0;
  std::string first;
  for (const auto& m : file.modules) {
    if (names.count(m.module) != 0) continue;
    if (m.weight.has_value()) throw io::Error("measurements: they name module '" + m.module + "', which this model has not; a measurement of another model?");
    if (passed_over++ == 0) first = m.module;
  }
  if (passed_over == 0) return;
  if (passed_over == file.modules.size()) {
    throw io::Error("measurements: they name no module of this model, but '" + first + "' and others; a measurement of another model?");
  }
  warnings.push_back("measurements: " + std::to_string(passed_over) + " measured nodes without a weight are passed over (the first is '" + first + "')");
}

/// Fills in what the measurement says; false (and a reason) if there is none.
bool apply_measurement(PlannedModule& planned, const PlanOptions& o, const recipes::ScaleMethod& activation_method, bool needed, std::string& reason) {
  const auto* m = measured(o, planned.info.name);
  if (m != nullptr && m->weight.has_value() && m->weight->size() == 1) planned.measured_weight_amax = (*m->weight)[0];
  if (planned.scheme.activations != ActivationScaling::static_tensor) return true;
  if (!needed) {  // a fixed value: nothing to measure
    set_input_scale(planned.scheme, 0.0f, activation_method, planned.info.name);
    return true;
  }
  if (m == nullptr || m->inputs.empty()) {
    reason = "no measurement of its input";
    return false;
  }
  if (m->inputs[0].size() != 1) {
    throw io::Error("measurements: " + planned.info.name + ".inputs[0]: expected one amax, found " + std::to_string(m->inputs[0].size()));
  }
  set_input_scale(planned.scheme, m->inputs[0][0], activation_method, planned.info.name);
  return true;
}

[[noreturn]] void fail_unmeasured(const ModuleInfo& m, const PlanOptions& o) {
  const std::string hint = o.config.has_value() ? "set 'ignore_modules_wo_measures' or blocklist it" : "measure it, or leave it out with --exclude";
  throw io::Error("measurements: no measurement of module '" + m.name + "', which is to be quantized; " + hint);
}

/// True (and listed with its reason) if the caller keeps the module.
bool kept(const ModuleInfo& m, const PlanOptions& o, Plan& plan) {
  const auto found = o.keep.find(m.name);
  if (found != o.keep.end()) plan.skipped.push_back({m.name, found->second});
  return found != o.keep.end();
}

Plan own_plan(const std::vector<ModuleInfo>& modules, const PlanOptions& o) {
  Plan plan;
  plan.scale_method = "amax";
  const Patterns include(o.include, "--include"), exclude(o.exclude, "--exclude");
  const bool is_static = o.activations == ActivationScaling::static_tensor;
  const auto weights = o.weights.value_or(is_static ? WeightGranularity::tensor : WeightGranularity::channel);
  for (const auto& m : modules) {
    if (kept(m, o, plan)) continue;
    if (std::string reason = own_reason(m, include, exclude); !reason.empty()) {
      plan.skipped.push_back({m.name, reason});
      continue;
    }
    PlannedModule planned{m, {}, "", std::nullopt};
    planned.scheme.dialect = o.dialect;
    planned.scheme.activations = m.type == "Embedding" ? ActivationScaling::none : o.activations;
    planned.scheme.weights = weights;
    if (weights == WeightGranularity::tensor && o.fuse_scales) planned.fuse_group = fuse_group_of(m.name);
    std::string reason;
    if (!apply_measurement(planned, o, {}, true, reason)) fail_unmeasured(m, o);
    plan.modules.push_back(std::move(planned));
  }
  if (is_static && weights == WeightGranularity::channel) {
    plan.warnings.push_back("channel weights with static activations load in transformers; vLLM's fallback kernel can't run them, --scheme tensor or --dynamic can");
  }
  return plan;
}

Plan config_plan(const std::vector<ModuleInfo>& modules, const PlanOptions& o) {
  const configs::QuantConfig& config = *o.config;
  configs::refuse_unbuilt(config, false);
  Plan plan;
  plan.scale_method = config.scale_method.name;
  auto filter = configs::module_filter(config);
  const auto target = configs::inc_target(config, o.dialect);
  for (const auto& m : modules) {
    const bool selected = filter.selects(m.type, m.name);
    if (kept(m, o, plan)) continue;
    if (m.type != "Linear" && m.type != "Conv2d") {
      plan.skipped.push_back({m.name, "type " + m.type + " is not quantized"});
      continue;
    }
    if (!selected) {
      plan.skipped.push_back({m.name, "not selected by allowlist and blocklist of " + config.source});
      continue;
    }
    PlannedModule planned{m, {}, "", std::nullopt};
    Scheme& s = planned.scheme;
    s.format = config.fp8_config;
    s.dialect = target.dialect;
    s.convention = Convention::inc;
    s.hp = config.hp_dtype;
    s.weight_method = config.scale_method.weight;
    s.weights = config.scale_method.weight.granularity == recipes::Granularity::PCS ? WeightGranularity::channel : WeightGranularity::tensor;
    s.activations = ActivationScaling::static_tensor;
    std::string reason;
    if (!apply_measurement(planned, o, config.scale_method.activation, config.scale_method.needs_measurements(), reason)) {
      if (!config.ignore_modules_wo_measures) fail_unmeasured(m, o);
      plan.skipped.push_back({m.name, reason + " (ignore_modules_wo_measures)"});
      continue;
    }
    plan.modules.push_back(std::move(planned));
  }
  for (const auto& entry : filter.unused_entries()) plan.warnings.push_back(entry.message);
  return plan;
}

}  // namespace

const PlannedModule* Plan::find(const std::string& name) const {
  for (const auto& m : modules) {
    if (m.info.name == name) return &m;
  }
  return nullptr;
}

Plan make_plan(const std::vector<ModuleInfo>& modules, const PlanOptions& options) {
  std::vector<std::string> warnings;
  if (options.measurements.has_value()) check_fits(modules, *options.measurements, warnings);
  Plan plan = options.config.has_value() ? config_plan(modules, options) : own_plan(modules, options);
  plan.warnings.insert(plan.warnings.begin(), warnings.begin(), warnings.end());
  if (options.measurements.has_value()) plan.measurements = options.measurements->fingerprint();
  return plan;
}

std::string fuse_group_of(const std::string& name) {
  const std::string last = last_part(name);
  for (const auto& group : kFuseGroups) {
    if (any_of(std::begin(group), std::end(group), last)) return parent_of(name) + "." + group[0];
  }
  return "";
}

void check_measured_weight(const PlannedModule& module, float amax) {
  if (!module.measured_weight_amax.has_value()) return;
  const float measured = *module.measured_weight_amax;
  if (std::abs(measured - amax) <= std::ldexp(std::max(measured, amax), -7)) return;  // other tools store it in bf16
  std::ostringstream text;
  text << "measurements: " << module.info.name << ": the weight's amax was " << measured << " when measured and is " << amax
       << " in this model; a measurement of another model?";
  throw io::Error(text.str());
}

}  // namespace fp8::quant
