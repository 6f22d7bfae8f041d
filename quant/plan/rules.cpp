// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/plan/rules.h"

#include "fp8/measure/files/observer_types.h"

namespace fp8::quant::plan_rules {
namespace {

/// The amax of an expert's input, from its mixture's measurement.
std::optional<float> expert_input(const ExpertWeight& expert, const PlanOptions& o) {
  const auto* mixture = measured(o, expert.mixture);
  if (mixture == nullptr) return std::nullopt;
  if (!expert.down) return one_amax(*mixture, true, 0);
  std::vector<std::string> said_by_the_mixture;
  const std::size_t count =
      mixture->outputs.has_value() && !mixture->outputs->empty() ? mixture->outputs->size() - 1 : 0;
  const auto amax = expert_amax(*mixture, count, said_by_the_mixture);
  if (expert.expert >= amax.size())
    io::fail<io::Error>("measurements: {}.outputs: expected an amax of expert {}, found {} experts", expert.mixture,
                        expert.expert, count);
  return amax[expert.expert];
}

float one_value(const StoredScale& scale, const std::string& where) {
  if (scale.values.size() != 1)
    io::fail<io::Error>("scales: {}: expected one value, found {}", where, scale.values.size());
  return scale.values[0];
}

/// The measured amax that tells another model's weight from this one: of values per channel or expert the largest.
void set_measured_weight(PlannedModule& planned, const PlanOptions& o) {
  const auto* m = measured(o, planned.info.name);
  if (m == nullptr || !m->weight.has_value() || m->weight->empty()) return;
  planned.measured_weight_amax = *std::ranges::max_element(*m->weight);
  if (o.measurements->local_rank.value_or(-1) >= 0) planned.measured_weight = MeasuredWeight::of_whole;
  if (measure::has_thresholds(*o.measurements)) planned.measured_weight = MeasuredWeight::threshold;
}

}  // namespace

bool apply_stored(PlannedModule& planned, const PlanOptions& o) {
  const auto* stored = o.scales.has_value() ? o.scales->find(planned.info.name) : nullptr;
  if (stored == nullptr || !stored->weight.has_value()) return false;
  const std::string& name = planned.info.name;
  if (planned.scheme.is_static()) {
    if (stored->inputs.empty()) return false;
    planned.scheme.input_scale_inv = one_value(stored->inputs[0], name + ".inputs[0]");
    planned.scheme.input_scale = scale_for(planned.scheme, planned.scheme.input_scale_inv, name);
  }
  planned.stored_weight_scale_inv = stored->weight->values;
  set_measured_weight(planned, o);
  return true;
}

bool apply_stored(PlannedNode& planned, const PlanOptions& o) {
  const auto* stored = o.scales.has_value() ? o.scales->find(planned.info.name) : nullptr;
  if (stored == nullptr) return false;
  for (std::size_t i = 0; i < stored->inputs.size(); ++i)
    planned.scheme.input_scale_inv.push_back(one_value(stored->inputs[i], planned.info.name + ".inputs"));
  for (std::size_t i = 0; i < stored->outputs.size(); ++i)
    planned.scheme.output_scale_inv.push_back(one_value(stored->outputs[i], planned.info.name + ".outputs"));
  return true;
}

const measure::Measurement* measured(const PlanOptions& o, const std::string& name) {
  return o.measurements.has_value() ? o.measurements->find(name) : nullptr;
}

bool apply_measurement(PlannedModule& planned, const PlanOptions& o, const std::vector<NodeInfo>& nodes,
                       const recipes::ScaleMethod& method, bool needed, std::vector<std::string>& warnings,
                       std::string& reason) {
  const std::string& name = planned.info.name;
  const auto* m = measured(o, name);
  set_measured_weight(planned, o);
  if (!planned.scheme.is_static()) return true;
  if (!needed) {  // a fixed value: nothing to measure
    set_input_scale(planned.scheme, 0.0f, method, name);
    return true;
  }
  if (const auto expert = expert_weight(name)) {
    const bool known = std::ranges::any_of(nodes, [&](const NodeInfo& n) { return n.name == expert->mixture; });
    const auto amax = known ? expert_input(*expert, o) : std::nullopt;
    if (amax.has_value()) {
      set_input_scale(planned.scheme, *amax, method, name);
      return true;
    }
  }
  if (m == nullptr || m->inputs.empty()) {
    reason = "no measurement of its input";
    return false;
  }
  const float amax = one_amax(*m, true, 0);
  if (amax == 0.0f && planned.info.type == kExpertType) {
    warnings.push_back(name +
                       ": its measured input is a placeholder and the mixture it belongs to was not measured; only its "
                       "weight is quantized");
    planned.scheme.activations = ActivationScaling::none;
    return true;
  }
  set_input_scale(planned.scheme, amax, method, name);
  return true;
}

bool apply_reduced(PlannedModule& planned, const PlanOptions& o, recipes::ScaleMethod method, bool needed) {
  const std::string where = planned.info.name + ".outputs";
  const auto* stored = o.scales.has_value() ? o.scales->find(planned.info.name) : nullptr;
  const auto* m = measured(o, planned.info.name);
  method.backoff = 1.0f;
  for (std::size_t i = 0; i < 2; ++i) {
    if (stored != nullptr && stored->weight.has_value()) {
      if (stored->outputs.size() != 2) return false;
      planned.reduced_scale_inv.push_back(one_value(stored->outputs[i], where));
    } else {
      const bool known = m != nullptr && m->outputs.has_value() && m->outputs->size() == 2;
      if (needed && !known) return false;
      planned.reduced_scale_inv.push_back(
          activation_scale_inv(needed ? one_amax(*m, /*input=*/false, i) : 0.0f, planned.scheme, method, where));
    }
  }
  return true;
}

void warn_of_lost_inputs(const PlanOptions& o, Plan& plan) {
  std::size_t lost = 0;
  std::string first;
  for (const auto& m : plan.modules) {
    const auto* found = m.scheme.is_static() ? measured(o, m.info.name) : nullptr;
    if (found == nullptr || found->inputs.empty() || found->inputs[0].empty()) continue;
    if (!loses_most(*std::ranges::max_element(found->inputs[0]), m.scheme.input_scale, m.scheme.format)) continue;
    if (lost++ == 0) first = m.info.name;
  }
  if (lost == 0) return;
  plan.warnings.push_back(
      io::message("scale method {}: in {} of {} modules most inputs become zero in fp8, as their measured amax is far "
                  "below the scale (the first is '{}')",
                  plan.scale_method, lost, plan.modules.size(), first));
}

bool kept(const std::string& name, const PlanOptions& o, Plan& plan) {
  auto found = o.keep.find(name);
  if (found == o.keep.end() && o.called && !o.keep.empty())
    for (const auto& other : o.called(name))
      if (found == o.keep.end()) found = o.keep.find(other);
  if (found != o.keep.end()) plan.skipped.push_back({name, found->second});
  return found != o.keep.end();
}

bool was_to_be_measured(const std::string& name, const PlanOptions& o) {
  if (!o.measurements.has_value() || o.measurements->selected.empty()) return true;
  const auto& list = o.measurements->selected;
  return std::ranges::find(list, name) != list.end();
}

void fail_unmeasured(const std::string& module, const PlanOptions& o) {
  const std::string hint = o.config.has_value() ? "set 'ignore_modules_wo_measures' or blocklist it"
                                                : "measure it, or leave it out with " +
                                                      io::option("exclude", "'exclude' (convert_modules: 'block')");
  io::fail<io::Error>("measurements: no measurement of module '{}', which is to be quantized; {}", module, hint);
}

std::size_t experts_of(const std::string& name, const std::vector<ModuleInfo>& modules) {
  std::size_t count = 0;
  for (const auto& m : modules) {
    const auto expert = expert_weight(m.name);
    count += expert.has_value() && expert->down && expert->mixture == name ? 1 : 0;
  }
  return count;
}

bool experts_planned(const std::string& name, const std::vector<ModuleInfo>& modules, const Plan& plan) {
  std::set<std::string> planned;
  for (const auto& m : plan.modules) planned.insert(m.info.name);
  bool any = false;
  for (const auto& m : modules) {
    const auto expert = expert_weight(m.name);
    if (!expert.has_value() || expert->mixture != name) continue;
    any = true;
    if (!planned.contains(m.name)) return false;
  }
  return any;
}

}  // namespace fp8::quant::plan_rules

namespace fp8::quant {
namespace {

/// As models/decoder/attention.h and optimum-habana name them.
constexpr char kFusedAttention[] = "fused_scaled_dot_product_attention";
constexpr const char* kAttentionNodes[][3] = {
    {"k_cache", "KVCache", ""},       {"v_cache", "KVCache", ""},      {kFusedAttention, "ModuleFusedSDPA", "fused"},
    {"matmul_qk", "Matmul", "eager"}, {"softmax", "Softmax", "eager"}, {"matmul_av", "Matmul", "eager"}};

/// The scale method that a config gives a cache.
const recipes::NamedScaleMethod* cache_method(const std::string& module, const PlanOptions& options) {
  return options.config.has_value() ? &options.config->scale_methods.for_module(module, "KVCache") : nullptr;
}

/// The measured amax of each head, or one of all.
const measure::Amax& measured_amax(const std::string& module, const PlanOptions& options) {
  if (options.measurements.has_value()) measure::require_amax(*options.measurements);
  const auto* found = options.measurements.has_value() ? options.measurements->find_cache(module) : nullptr;
  if (found == nullptr || found->inputs.empty() || found->inputs[0].empty())
    io::fail<io::Error>(
        "measurements: no measurement of '{}', which key-value caches in fp8 need in every layer; measure again ({})",
        module, io::option("measure_modules", "with their modules selected"));
  const std::string& observer = options.measurements->observer;
  const bool aside = options.measurements->find(module) != found, maxabs = observer.empty() || observer == "maxabs";
  const bool heads = aside ? measure::has_heads(*options.measurements) : maxabs && found->inputs[0].size() > 1;
  if (options.kv_scales == Granularity::head && !heads)
    io::fail<io::Error>("measurements: {}: found {}, a scale per head needs one of each; measure again ({})", module,
                        found->inputs[0].size() == 1 ? "one amax for all heads" : "one amax for each channel",
                        io::option("measure_heads", "CalibrationOptions::kv_cache measures heads"));
  return found->inputs[0];
}

/// "model.encoder.layers.0.self_attn" where there is a module below "model.decoder.": it sees a source whole, once, and
/// keeps nothing.
bool is_of_encoder(const std::string& attention, const std::vector<std::string>& modules) {
  constexpr std::string_view kEncoder = "encoder.";
  const auto at = attention.find(kEncoder);
  if (at == std::string::npos || (at > 0 && attention[at - 1] != '.')) return false;
  const std::string decoder = attention.substr(0, at) + "decoder.";
  return std::ranges::any_of(modules, [&](const auto& name) { return name.starts_with(decoder); });
}

/// The scale of queries: they are the first input of an attention that was measured in one piece.
float query_scale_inv(const std::string& attention, const PlanOptions& options) {
  const std::string module = attention + "." + kFusedAttention;
  const auto* found = options.measurements.has_value() ? options.measurements->find(module) : nullptr;
  if (found == nullptr || found->inputs.empty() || found->inputs[0].empty())
    io::fail<io::Error>("measurements: no measurement of '{}', whose first input are the queries; measure again ({})",
                        module, io::option("measure_queries", "with this module selected"));
  const float amax = one_amax(*found, /*input=*/true, 0);
  if (amax == 0.0f)
    io::fail<io::Error>("measurements: {}: found only zeros among the queries, of which no scale can be made", module);
  return activation_scale_inv(amax, kv_numbers(options), {}, module);
}

}  // namespace

std::vector<std::string> attention_modules(const std::vector<std::string>& modules) {
  std::vector<std::string> attention;
  std::set<std::string> known;
  for (const auto& name : modules) {
    const auto dot = name.rfind('.');
    if (dot == std::string::npos) continue;
    const std::string parent = name.substr(0, dot);
    if (parent.ends_with(".cross_attn")) continue;  // its keys are of images, and no text fills its cache
    if (!is_key_projection(name) || is_tower_name(name) || is_of_encoder(parent, modules)) continue;
    if (known.insert(parent).second) attention.push_back(parent);
  }
  return attention;
}

std::vector<NodeInfo> attention_nodes(const std::vector<std::string>& attention) {
  std::vector<NodeInfo> nodes;
  for (const auto& name : attention)
    for (const auto& [node, type, way] : kAttentionNodes) nodes.push_back({name + "." + node, type, way});
  return nodes;
}

Numbers kv_numbers(const PlanOptions& options) {
  if (options.config.has_value()) return plan_rules::config_numbers(options);
  Numbers numbers;
  numbers.dialect = options.dialect_or_ocp();
  return numbers;
}

std::vector<float> kv_scale_inv(const std::string& module, const PlanOptions& options,
                                std::vector<std::string>& warnings) {
  const auto* method = cache_method(module, options);
  const Numbers numbers = kv_numbers(options);
  if (method != nullptr && !method->needs_measurements())
    return {activation_scale_inv(0.0f, numbers, method->activation, module)};
  measure::Amax amax = measured_amax(module, options);
  const float largest = *std::ranges::max_element(amax);
  if (largest == 0.0f)
    io::fail<io::Error>(
        "measurements: {}: found only zeros, of which no scale can be made; calibrate with other data, or leave the "
        "cache in high precision",
        module);
  if (options.kv_scales == Granularity::tensor) amax = {largest};
  std::vector<std::size_t> idle;
  for (std::size_t h = 0; h < amax.size(); ++h) {
    if (amax[h] != 0.0f) continue;
    idle.push_back(h);
    amax[h] = largest;
  }
  if (!idle.empty())
    warnings.push_back(io::message("{}: found only zeros in head {}; the scale of the largest head stands in", module,
                                   io::joined(idle)));
  for (float& value : amax)
    value =
        activation_scale_inv(value, numbers, method != nullptr ? method->activation : recipes::ScaleMethod(), module);
  return amax;
}

std::vector<KvScales> plan_kv_cache(const std::vector<std::string>& attention, const PlanOptions& options,
                                    std::vector<std::string>& warnings) {
  if (options.query_scale && (options.config.has_value() || options.kv_scales == Granularity::head))
    throw std::invalid_argument(
        "a scale of queries: found a QUANT_CONFIG or scales per head, expected one scale each of keys and values");
  if (attention.empty())
    throw io::Error(
        "key-value caches: found no attention module (k_proj, qkv_proj, query_key_value) to scale them for");
  std::vector<KvScales> kv;
  for (const auto& name : attention) {
    KvScales scales{name, kv_scale_inv(name + ".k_cache", options, warnings),
                    kv_scale_inv(name + ".v_cache", options, warnings)};
    if (options.query_scale) scales.q = {query_scale_inv(name, options)};
    if (scales.k.size() != scales.v.size())
      io::fail<io::Error>("measurements: {}: found {} heads of keys and {} of values", name, scales.k.size(),
                          scales.v.size());
    kv.push_back(std::move(scales));
  }
  return kv;
}

ModulePatterns::ModulePatterns(const PlanOptions& options)
    : options_(options),
      include_(options.include, io::option("include")),
      exclude_(options.exclude, io::option("exclude")) {
  for (const auto& entry : options.ignore) exclude_.add_ignored(entry, io::option("ignore"));
}

bool ModulePatterns::includes(const std::string& module) const {
  return !include_.empty() &&
         std::ranges::any_of(options_.names_of(module), [&](const auto& name) { return include_.matches(name); });
}

std::string ModulePatterns::excludes(const std::string& module, const std::string& type) const {
  if (exclude_.empty()) return "";
  for (const auto& name : options_.names_of(module))
    if (const auto found = exclude_.first_match(name)) return "excluded by " + exclude_[*found].where();
  return std::ranges::find(options_.ignore, type) == options_.ignore.end() ? "" : "excluded by " + io::option("ignore");
}

void ModulePatterns::require_used(const std::vector<ModuleInfo>& modules, const std::vector<NodeInfo>& nodes) const {
  if (empty()) return;
  std::vector<std::string> names = options_.checkpoint_names;
  std::set<std::string> types;
  const auto add = [&](const std::string& module, const std::string& type) {
    for (auto& name : options_.names_of(module)) names.push_back(std::move(name));
    types.insert(type);
  };
  for (const auto& m : modules) add(m.name, m.type);
  for (const auto& n : nodes) add(n.name, n.type);
  include_.require_used(names);
  names.insert(names.end(), options_.other_names.begin(), options_.other_names.end());
  configs::NamePatterns excluded(options_.exclude, io::option("exclude"));
  for (const auto& entry : options_.ignore)
    if (!types.contains(entry)) excluded.add_ignored(entry, io::option("ignore"));
  excluded.require_used(names);
}

void name_as_in_checkpoint(PlanOptions& options, const NamesInCheckpoint& names) {
  options.called = [names](const std::string& module) { return names.all_of(module); };
  options.checkpoint_names = names.everything();
}

}  // namespace fp8::quant
