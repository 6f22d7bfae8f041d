// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/plan/kv_plan.h"

#include <algorithm>
#include <set>

#include "fp8/configs/name_patterns.h"
#include "fp8/measure/files/observer_types.h"
#include "fp8/quant/plan/rules.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::quant {
namespace {

/// As models/decoder/attention.h and optimum-habana name them.
constexpr const char* kAttentionNodes[][3] = {{"k_cache", "KVCache", ""},
                                              {"v_cache", "KVCache", ""},
                                              {"fused_scaled_dot_product_attention", "ModuleFusedSDPA", "fused"},
                                              {"matmul_qk", "Matmul", "eager"},
                                              {"softmax", "Softmax", "eager"},
                                              {"matmul_av", "Matmul", "eager"}};

/// What a config says of a cache.
const recipes::NamedScaleMethod* cache_method(const std::string& module, const PlanOptions& options) {
  return options.config.has_value() ? &options.config->scale_methods.for_module(module, "KVCache") : nullptr;
}

/// The measured amax of each head, or one of all.
const measure::Amax& measured_amax(const std::string& module, const PlanOptions& options) {
  if (options.measurements.has_value()) measure::require_amax(*options.measurements);
  const auto* found = options.measurements.has_value() ? options.measurements->find_cache(module) : nullptr;
  if (found == nullptr || found->inputs.empty() || found->inputs[0].empty()) {
    throw io::Error("measurements: no measurement of '" + module +
                    "', which key-value caches in fp8 need in every layer; measure again (" +
                    configs::option_name("with their modules selected", "fp8 measure without --config measures them") +
                    ")");
  }
  const std::string& observer = options.measurements->observer;
  const bool aside = options.measurements->find(module) != found, maxabs = observer.empty() || observer == "maxabs";
  const bool heads = aside ? measure::has_heads(*options.measurements) : maxabs && found->inputs[0].size() > 1;
  if (options.kv_scales == KvGranularity::head && !heads) {
    throw io::Error("measurements: " + module + ": found " +
                    (found->inputs[0].size() == 1 ? "one amax for all heads" : "one amax for each channel") +
                    ", a scale per head needs one of each; measure again (" +
                    configs::option_name("CalibrationOptions::kv_cache measures heads",
                                         "fp8 measure without --config measures heads") +
                    ")");
  }
  return found->inputs[0];
}

}  // namespace

namespace {

/// "model.encoder.layers.0.self_attn" where there is a module below "model.decoder.": it sees a source whole, once, and
/// keeps nothing.
bool is_of_encoder(const std::string& attention, const std::vector<std::string>& modules) {
  constexpr std::string_view kEncoder = "encoder.";
  const auto at = attention.find(kEncoder);
  if (at == std::string::npos || (at > 0 && attention[at - 1] != '.')) return false;
  const std::string decoder = attention.substr(0, at) + "decoder.";
  return std::any_of(modules.begin(), modules.end(), [&](const auto& name) { return name.starts_with(decoder); });
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
  for (const auto& name : attention) {
    for (const auto& [node, type, way] : kAttentionNodes) nodes.push_back({name + "." + node, type, way});
  }
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
  const float largest = *std::max_element(amax.begin(), amax.end());
  if (largest == 0.0f) {
    throw io::Error("measurements: " + module +
                    ": found only zeros, of which no scale can be made; calibrate with other data, or leave the cache "
                    "in high precision");
  }
  if (options.kv_scales == KvGranularity::tensor) amax = {largest};
  std::vector<std::size_t> idle;
  for (std::size_t h = 0; h < amax.size(); ++h) {
    if (amax[h] != 0.0f) continue;
    idle.push_back(h);
    amax[h] = largest;
  }
  if (!idle.empty())
    warnings.push_back(module + ": found only zeros in head " + io::joined(idle) +
                       "; the scale of the largest head stands in");
  for (float& value : amax)
    value =
        activation_scale_inv(value, numbers, method != nullptr ? method->activation : recipes::ScaleMethod(), module);
  return amax;
}

std::vector<KvScales> plan_kv_cache(const std::vector<std::string>& attention, const PlanOptions& options,
                                    std::vector<std::string>& warnings) {
  if (attention.empty())
    throw io::Error(
        "key-value caches: found no attention module (k_proj, qkv_proj, query_key_value) to scale them for");
  std::vector<KvScales> kv;
  for (const auto& name : attention) {
    KvScales scales{name, kv_scale_inv(name + ".k_cache", options, warnings),
                    kv_scale_inv(name + ".v_cache", options, warnings)};
    if (scales.k.size() != scales.v.size()) {
      throw io::Error("measurements: " + name + ": found " + std::to_string(scales.k.size()) + " heads of keys and " +
                      std::to_string(scales.v.size()) + " of values");
    }
    kv.push_back(std::move(scales));
  }
  return kv;
}

}  // namespace fp8::quant
