// SPDX-License-Identifier: Apache-2.0
// Rules between keys, device and environment (see rules.h).
#include "fp8/configs/rules.h"

#include <algorithm>
#include <functional>
#include <ranges>

#include "fp8/configs/closest.h"
#include "fp8/configs/module_types.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::configs {
namespace {

using recipes::Granularity;
using recipes::NamedScaleMethod;
using recipes::Rounding;
using recipes::ScaleValue;

/// Methods that `allowed` accepts, as users write them.
std::string methods_that(const std::function<bool(const NamedScaleMethod&)>& allowed) {
  return io::joined(recipes::scale_methods() | std::views::filter(allowed) |
                    std::views::transform([](const NamedScaleMethod& method) { return io::lower(method.name); }));
}

/// "FILE: key 'scale_method.layers.3'"; the default of a string is 'scale_method' itself.
std::string where(const QuantConfig& config, const std::string& entry) {
  const bool plain = config.scale_methods.uniform() && entry == "default";
  return config.source + ": key 'scale_method" + (plain ? "" : "." + entry) + "'";
}

bool is_fixed(const NamedScaleMethod& m) {
  return m.weight.value == ScaleValue::FIXED_VALUE && m.activation.value == ScaleValue::FIXED_VALUE;
}

bool fits_dynamic(const NamedScaleMethod& m) { return m.activation.rounding != Rounding::HW_ALIGNED && !is_fixed(m); }

bool has_channels(const NamedScaleMethod& m) {
  return m.weight.granularity == Granularity::PCS || m.activation.granularity == Granularity::PCS;
}

void check_dynamic(const QuantConfig& config, std::vector<std::string>& problems) {
  const std::string key = config.source + ": key 'dynamic_quantization': found true with ";
  if (config.mode == QuantMode::MEASURE || config.mode == QuantMode::SHAPE || config.mode == QuantMode::NONE) {
    problems.push_back(key + "mode " + name_of(config.mode) + ", allowed: QUANTIZE, LOAD, AUTO");
  }
  if (config.use_qdq) problems.push_back(key + "use_qdq, allowed: one of the two");
  if (config.fake_quant) problems.push_back(key + "fake_quant, allowed: one of the two");
  if (config.row_parallel_allreduce) {
    problems.push_back(key + "row_parallel_linear_allreduce_quantization, allowed: one of the two");
  }
  for (const auto& [entry, method] : config.scale_methods.all()) {
    if (fits_dynamic(*method)) continue;
    problems.push_back(where(config, entry) + ": found " + io::lower(method->name) + " with dynamic_quantization, " +
                       (is_fixed(*method) ? "which looks at no values" : "whose activations are HW_ALIGNED") +
                       ", allowed: " + methods_that(fits_dynamic));
  }
}

void check_static(const QuantConfig& config, std::vector<std::string>& problems) {
  for (const auto& [entry, method] : config.scale_methods.all()) {
    if (!method->dynamic_only) continue;
    problems.push_back(where(config, entry) + ": found " + io::lower(method->name) +
                       " without dynamic_quantization, allowed: set dynamic_quantization, or one of " +
                       methods_that([](const NamedScaleMethod& m) { return !m.dynamic_only; }));
  }
}

void check_device(const QuantConfig& config, recipes::Dialect device, std::vector<std::string>& problems) {
  using recipes::Dialect;
  if (!config.device_for_scales) return;
  const Dialect present = device == Dialect::gaudi2 ? Dialect::gaudi2 : Dialect::gaudi3;
  const Dialect wanted = *config.device_for_scales;
  if (wanted == present) return;
  const std::string key =
      config.source + ": key 'device_for_scales': found " + (wanted == Dialect::gaudi2 ? "GAUDI2" : "GAUDI3");
  if (wanted == Dialect::gaudi3) {
    problems.push_back(key + " on a gaudi2 device, allowed: GAUDI2, null");
    return;
  }
  for (const auto& [entry, method] : config.scale_methods.all()) {
    if (method->name == "MAXABS_HW") continue;
    problems.push_back(key + " on a gaudi3 device with " + io::lower(method->name) + " (" + entry +
                       "), allowed: GAUDI3, null, or scale_method maxabs_hw");
    return;
  }
}

void check_environment(const QuantConfig& config, const Environment& environment, std::vector<std::string>& problems) {
  const bool quantizes =
      config.mode == QuantMode::QUANTIZE || config.mode == QuantMode::LOAD || config.mode == QuantMode::AUTO;
  // As in Intel Neural Compressor, dynamic quantization leaves no constant scales to patch.
  if (!environment.runtime_scale_patching || !quantizes || config.dynamic_quantization) return;
  for (const auto& [entry, method] : config.scale_methods.all()) {
    if (!has_channels(*method)) continue;
    problems.push_back(where(config, entry) + ": found " + io::lower(method->name) +
                       " with RUNTIME_SCALE_PATCHING, which takes one scale per tensor, allowed: " +
                       methods_that([](const NamedScaleMethod& m) { return !has_channels(m); }));
  }
}

/// Class names in the file, and where they stand.
std::vector<std::pair<std::string, std::string>> listed_types(const QuantConfig& config) {
  std::vector<std::pair<std::string, std::string>> types;
  for (const std::string& type : config.allowlist.types) types.emplace_back("allowlist.types", type);
  for (const std::string& type : config.blocklist.types) types.emplace_back("blocklist.types", type);
  for (const auto& [type, method] : config.scale_methods.layer_types)
    types.emplace_back("scale_method.layer_types", type);
  return types;
}

/// Empty if modules of that type can be quantized.
std::string type_problem(const QuantConfig& config, const std::string& key, const std::string& type) {
  if (find_module_type(type) != nullptr) return "";
  std::vector<std::string> known;
  for (const ModuleType& one : module_types()) known.emplace_back(one.name);
  const std::string last = type.substr(type.rfind('.') + 1);  // the class name behind a path is what people mean
  return config.source + ": key '" + key + "': found " + io::in_quotes(type) +
         ", which is no class that can be quantized, did you mean '" + closest(last, known) +
         "'? (class names without a module path)";
}

}  // namespace

std::vector<std::string> key_rule_problems(const QuantConfig& config) {
  std::vector<std::string> problems;
  config.dynamic_quantization ? check_dynamic(config, problems) : check_static(config, problems);
  return problems;
}

std::vector<std::string> rule_problems(const QuantConfig& config, recipes::Dialect device,
                                       const Environment& environment) {
  std::vector<std::string> problems = key_rule_problems(config);
  check_device(config, device, problems);
  check_environment(config, environment, problems);
  return problems;
}

std::vector<std::string> unknown_type_problems(const QuantConfig& config) {
  std::vector<std::string> problems;
  for (const auto& [key, type] : listed_types(config)) {
    if (std::string problem = type_problem(config, key, type); !problem.empty()) problems.push_back(std::move(problem));
  }
  return problems;
}

void refuse_type_paths(const QuantConfig& config) {
  for (const auto& [key, type] : listed_types(config)) {
    if (type.find('.') == std::string::npos) continue;
    if (const std::string problem = type_problem(config, key, type); !problem.empty()) throw io::Error(problem);
  }
}

void check_rules(const QuantConfig& config, recipes::Dialect device, const Environment& environment) {
  const std::vector<std::string> problems = rule_problems(config, device, environment);
  if (!problems.empty()) throw io::Error(problems.front());
  refuse_type_paths(config);
}

void refuse_load(const QuantConfig& config) {
  if (config.mode != QuantMode::LOAD) return;
  throw io::Error(config.source +
                  ": key 'mode': found LOAD, which measures nothing, allowed: NONE, QUANTIZE, MEASURE, SHAPE, AUTO");
}

}  // namespace fp8::configs
