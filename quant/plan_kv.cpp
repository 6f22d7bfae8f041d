// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/plan_kv.h"

#include <algorithm>
#include <set>

#include "fp8/quant/plan_rules.h"
#include "fp8/runtime/io/error.h"

namespace fp8::quant {
namespace {

constexpr const char* kProjections[] = {"k_proj", "qkv_proj", "query_key_value", "W_pack", "c_attn"};

/// The measured amax of each head, or one of all.
const measure::Amax& measured_amax(const std::string& module, const PlanOptions& options) {
  if (options.measurements.has_value()) measure::require_amax(*options.measurements);
  const auto* found = options.measurements.has_value() ? options.measurements->find_cache(module) : nullptr;
  if (found == nullptr || found->inputs.empty() || found->inputs[0].empty()) {
    throw io::Error("measurements: no measurement of '" + module + "', which key-value caches in fp8 need in every layer; measure again (fp8 measure without --config measures them)");
  }
  const std::string& observer = options.measurements->observer;
  const bool aside = options.measurements->find(module) != found, maxabs = observer.empty() || observer == "maxabs";
  const bool heads = aside ? maxabs || observer == "maxabs_per_channel" : maxabs && found->inputs[0].size() > 1;
  if (options.kv_scales == KvGranularity::head && !heads) {
    throw io::Error("measurements: " + module + ": found " + (found->inputs[0].size() == 1 ? "one amax for all heads" : "one amax for each channel") +
                    ", a scale per head needs one of each; measure again (fp8 measure without --config measures heads)");
  }
  return found->inputs[0];
}

}  // namespace

std::vector<std::string> attention_modules(const std::vector<std::string>& modules) {
  std::vector<std::string> attention;
  std::set<std::string> known;
  for (const auto& name : modules) {
    const auto dot = name.rfind('.');
    if (dot == std::string::npos) continue;
    const std::string last = name.substr(dot + 1), parent = name.substr(0, dot);
    const bool projects = std::any_of(std::begin(kProjections), std::end(kProjections), [&](const char* p) { return last == p; });
    if (projects && known.insert(parent).second) attention.push_back(parent);
  }
  return attention;
}

Numbers kv_numbers(const PlanOptions& options) {
  if (options.config.has_value()) return plan_rules::config_numbers(options);
  Numbers numbers;
  numbers.dialect = options.dialect;
  return numbers;
}

std::vector<float> kv_scale_inv(const std::string& module, const PlanOptions& options, std::vector<std::string>& warnings) {
  measure::Amax amax = measured_amax(module, options);
  const float largest = *std::max_element(amax.begin(), amax.end());
  if (largest == 0.0f) {
    throw io::Error("measurements: " + module + ": found only zeros, of which no scale can be made; calibrate with other data, or leave the cache in high precision");
  }
  if (options.kv_scales == KvGranularity::tensor) amax = {largest};
  std::string idle;
  for (std::size_t h = 0; h < amax.size(); ++h) {
    if (amax[h] != 0.0f) continue;
    idle += (idle.empty() ? "" : ", ") + std::to_string(h);
    amax[h] = largest;
  }
  if (!idle.empty()) warnings.push_back(module + ": found only zeros in head " + idle + "; the scale of the largest head stands in");
  const Numbers numbers = kv_numbers(options);
  const auto method = options.config.has_value() ? options.config->scale_methods.for_module(module, "KVCache").activation : recipes::ScaleMethod();
  for (float& value : amax) value = activation_scale_inv(value, numbers, method, module);
  return amax;
}

std::vector<KvScales> plan_kv_cache(const std::vector<std::string>& attention, const PlanOptions& options, std::vector<std::string>& warnings) {
  if (attention.empty()) throw io::Error("key-value caches: found no attention module (k_proj, qkv_proj, query_key_value) to scale them for");
  std::vector<KvScales> kv;
  for (const auto& name : attention) {
    KvScales scales{name, kv_scale_inv(name + ".k_cache", options, warnings), kv_scale_inv(name + ".v_cache", options, warnings)};
    if (scales.k.size() != scales.v.size()) {
      throw io::Error("measurements: " + name + ": found " + std::to_string(scales.k.size()) + " heads of keys and " + std::to_string(scales.v.size()) + " of values");
    }
    kv.push_back(std::move(scales));
  }
  return kv;
}

}  // namespace fp8::quant
