// SPDX-License-Identifier: Apache-2.0
// The plan that a QUANT_CONFIG makes: INC's selection, methods per module, fixed, searched and dynamic scales.

#include "fp8/quant/plan/rules.h"

namespace fp8::quant {

using configs::KindInfo;

std::string reason_against(const configs::QuantConfig& config, configs::ModuleFilter& filter, const std::string& name,
                           const std::string& type) {
  const bool selected = filter.selects(type, name);
  const auto* found = configs::find_module_type(type);
  if (found == nullptr || !configs::info_of(found->kind).quantized) return "type " + type + " is not quantized";
  if (!selected) return "not selected by allowlist and blocklist of " + config.source;
  const bool named = !config.allowlist.empty();
  if (type == "Embedding" && !named) return "type Embedding is not quantized unless the allowlist names it";
  if (is_adapter_name(name) && !named) return "a LoRA adapter, kept in high precision unless the allowlist names it";
  if (config.dynamic_quantization) {
    if (configs::info_of(found->kind).cache)
      return "a key-value cache has no place for the scales of each call (dynamic_quantization)";
    if (!found->dynamic) return "type " + type + " has no dynamic scales (dynamic_quantization)";
  }
  if (config.fake_quant && !configs::info_of(found->kind).fake_quant)
    return "fake_quant takes linear modules and Matmul only, this is " + type;
  return "";
}

}  // namespace fp8::quant

namespace fp8::quant::plan_rules {
namespace {

using recipes::Granularity;

class ConfigPlanner {
 public:
  ConfigPlanner(const std::vector<ModuleInfo>& modules, const std::vector<NodeInfo>& nodes, const PlanOptions& options)
      : modules_(modules), nodes_(nodes), options_(options) {
    plan_.scale_method = config_.scale_methods.name();
  }

  Plan plan() {
    for (const auto& m : modules_) plan_module(m);
    for (const auto& n : nodes_) plan_node(n);
    warn_of_kept_scales();
    for (const auto& entry : filter_.unused_entries()) plan_.warnings.push_back(entry.message);
    warn_of_own_scales();
    if (config_.row_parallel_allreduce &&
        std::ranges::none_of(modules_, [](const ModuleInfo& m) { return configs::adds_ranks(m.type); }))
      plan_.warnings.push_back(
          config_.source +
          ": key 'row_parallel_linear_allreduce_quantization' has no effect: modules here are not split");
    return std::move(plan_);
  }

 private:
  /// The search has nothing to choose where the method rounds the scale, or searches it by its own rule.
  void warn_of_kept_scales() {
    if (config_.weight_scale_search == ScaleSearch::amax) return;
    const auto kept = std::ranges::count_if(plan_.modules, [](const auto& m) { return !m.scheme.least_error(); });
    if (kept > 0)
      plan_.warnings.push_back(
          io::message("{}: key 'weight_scale_search': {} of {} modules keep the scales of scale_method {}",
                      config_.source, kept, plan_.modules.size(), config_.scale_methods.name()));
  }

  void warn_of_own_scales() {
    if (own_scales_ == 0) return;
    plan_.warnings.push_back(
        io::message("{}: key 'row_parallel_linear_allreduce_quantization': what the ranks of {} modules add was not "
                    "measured (measure "
                    "with this key): each message has a scale of its own; the first is '{}'",
                    config_.source, own_scales_, first_with_own_));
  }

  const recipes::NamedScaleMethod& method_of(const std::string& name, const std::string& type) const {
    return config_.scale_methods.for_module(name, type);
  }

  std::string why_not(const std::string& name, const std::string& type) {
    return reason_against(config_, filter_, name, type);
  }

  void skip(const std::string& name, const std::string& reason) { plan_.skipped.push_back({name, reason}); }

  void unmeasured(const std::string& name, const std::string& reason) {
    if (!config_.ignore_modules_wo_measures) fail_unmeasured(name, options_);
    skip(name, reason + " (ignore_modules_wo_measures)");
  }

  /// The measurement of a node. Caches may stand in a file beside INC's, head by head.
  const measure::Measurement* measured_node(const NodeInfo& n) const {
    const bool cache = configs::type_is(n.type, &KindInfo::cache);
    return cache && options_.measurements.has_value() ? options_.measurements->find_cache(n.name)
                                                      : measured(options_, n.name);
  }

  bool type_was_measured(const std::string& type) const {
    return std::ranges::any_of(nodes_,
                               [&](const NodeInfo& n) { return n.type == type && measured_node(n) != nullptr; });
  }

  /// Measurements of a model that has no such modules (other code writes its attention in other ways) fit all the same:
  /// what they know of is quantized, the rest stays.
  void skip_unmeasured_type(const NodeInfo& n) {
    const std::string reason = "no module of type " + n.type + " was measured";
    if (unmeasured_types_.insert(n.type).second)
      plan_.warnings.push_back(
          io::message("measurements: {}: these stay in high precision (the first is '{}')", reason, n.name));
    skip(n.name, reason);
  }

  void plan_module(const ModuleInfo& m) {
    const std::string reason_against = why_not(m.name, m.type);
    if (kept(m.name, options_, plan_)) return;
    if (!reason_against.empty()) return skip(m.name, reason_against);
    const auto& method = method_of(m.name, m.type);
    PlannedModule planned;
    planned.info = m;
    Scheme& s = planned.scheme;
    static_cast<Numbers&>(s) = numbers_;
    s.weight_method = method.weight;
    s.activation_method = method.activation;
    s.search = config_.weight_scale_search;
    s.weights = method.weight.granularity == Granularity::channel ? Granularity::channel : Granularity::tensor;
    const bool per_token = method.activation.granularity == Granularity::channel;
    s.activations = configs::type_is(m.type, &KindInfo::lookup) ? ActivationScaling::none
                    : !config_.dynamic_quantization             ? ActivationScaling::static_tensor
                    : per_token                                 ? ActivationScaling::dynamic_token
                                                                : ActivationScaling::dynamic_tensor;
    std::string reason;
    if (!apply_stored(planned, options_) && !apply_measurement(planned, options_, nodes_, method.activation,
                                                               method.needs_measurements(), plan_.warnings, reason))
      return unmeasured(m.name, reason);
    if (config_.row_parallel_allreduce && configs::adds_ranks(m.type) &&
        !apply_reduced(planned, options_, method.activation, method.needs_measurements()) && own_scales_++ == 0)
      first_with_own_ = m.name;
    plan_.modules.push_back(std::move(planned));
  }

  void plan_node(const NodeInfo& n) {
    const std::string reason_against = why_not(n.name, n.type);
    if (kept(n.name, options_, plan_)) return;
    if (!reason_against.empty()) return skip(n.name, reason_against);
    const auto& method = method_of(n.name, n.type);
    PlannedNode planned{n, {}};
    NodeScheme& s = planned.scheme;
    static_cast<Numbers&>(s) = numbers_;
    s.kind = configs::find_module_type(n.type)->kind;
    const KindInfo& info = configs::info_of(s.kind);
    if (info.cache && options_.kv_cache == false)
      return skip(n.name, "kept in high precision by " + io::option("kv_cache"));
    if (info.experts && !experts_planned(n.name, modules_, plan_))
      return skip(n.name, "its experts' weights stay in high precision");
    s.dynamic = config_.dynamic_quantization;
    s.dynamic_method = method.activation;
    s.per_token = method.activation.granularity == Granularity::channel;
    if (!s.dynamic && !apply_stored(planned, options_)) {
      const auto* m = method.needs_measurements() ? measured_node(n) : nullptr;
      if (m == nullptr && method.needs_measurements()) {
        if (type_was_measured(n.type)) return unmeasured(n.name, "no measurement of its inputs");
        if (n.way.empty()) skip_unmeasured_type(n);
        return;
      }
      set_scales(s, m, method.activation, n.name);
    }
    plan_.nodes.push_back(std::move(planned));
  }

  void set_scales(NodeScheme& s, const measure::Measurement* m, const recipes::ScaleMethod& method,
                  const std::string& name) {
    if (!configs::info_of(s.kind).cache || m == nullptr || m->inputs.empty() || m->inputs[0].size() < 2)
      return set_node_scales(s, m, method, name, experts_of(name, modules_), plan_.warnings);
    measure::Measurement of_all_heads = *m;
    of_all_heads.inputs = {{*std::ranges::max_element(m->inputs[0])}};
    set_node_scales(s, &of_all_heads, method, name, 0, plan_.warnings);
  }

  const std::vector<ModuleInfo>& modules_;
  const std::vector<NodeInfo>& nodes_;
  const PlanOptions& options_;
  const configs::QuantConfig& config_ = *options_.config;
  configs::ModuleFilter filter_ = configs::module_filter(config_);
  const Numbers numbers_ = config_numbers(options_);
  std::set<std::string> unmeasured_types_;  ///< warned of
  std::size_t own_scales_ = 0;              ///< modules whose ranks' messages have scales of their own
  std::string first_with_own_;
  Plan plan_;
};

}  // namespace

Numbers config_numbers(const PlanOptions& options) {
  const configs::QuantConfig& config = *options.config;
  Numbers numbers;
  numbers.format = config.fp8_config;
  numbers.dialect = configs::inc_target(config, options.dialect_or_ocp()).dialect;
  numbers.convention = Convention::inc;
  numbers.hp = config.hp_dtype;
  numbers.compute = config.fake_quant ? Compute::fake_quant : config.use_qdq ? Compute::qdq : Compute::fp8;
  return numbers;
}

Plan config_plan(const std::vector<ModuleInfo>& modules, const std::vector<NodeInfo>& nodes,
                 const PlanOptions& options) {
  return ConfigPlanner(modules, nodes, options).plan();
}

}  // namespace fp8::quant::plan_rules
