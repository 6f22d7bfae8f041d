// SPDX-License-Identifier: Apache-2.0
// QUANT_CONFIG as a whole: every key through the table, then what needs several of them (see quant_config.h).
#include "fp8/configs/quant_config.h"

#include <algorithm>
#include <functional>

#include "fp8/configs/closest.h"
#include "fp8/configs/quant_config_keys.h"
#include "fp8/configs/rules.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::configs {
namespace {

using detail::Key;

const Key& key_named(const std::string& name, const std::string& source) {
  const std::string canonical = detail::canonical_name(name);
  for (const Key& key : detail::keys()) {
    if (key.name == canonical) return key;
  }
  std::vector<std::string> known;
  for (const detail::Alias& alias : detail::aliases()) known.emplace_back(alias.name);
  for (const Key& key : detail::keys()) known.emplace_back(key.name);
  throw io::Error(source + ": unknown key " + io::in_quotes(name) + ", did you mean '" + closest(name, known) + "'?");
}

void check_observer_parameters(const io::Json& json, const QuantConfig& config, const ParseOptions& options) {
  const auto row = std::find_if(options.observers.begin(), options.observers.end(),
                                [&](const ObserverKeys& observer) { return observer.name == config.observer; });
  if (row == options.observers.end() || !row->parameters.has_value()) return;
  for (const auto& [name, value] : config.scale_params.observer) {
    const auto known = std::find_if(row->parameters->begin(), row->parameters->end(),
                                    [&name = name](const ObserverParameter& p) { return p.name == name; });
    if (known != row->parameters->end()) {
      if (known->takes(value)) continue;
      const std::string where = config.source + ": key 'scale_params." + io::printable(name) + "'";
      detail::reject({json.at("scale_params").at(name), where}, known->allowed());
    }
    std::vector<std::string> allowed{"input_backoff", "weight_backoff"};
    for (const ObserverParameter& parameter : *row->parameters) allowed.emplace_back(parameter.name);
    throw io::Error(config.source + ": key 'scale_params': unknown key " + io::in_quotes(name) + " with observer " +
                    config.observer + ", did you mean '" + closest(name, allowed) +
                    "'? allowed: " + io::joined(allowed));
  }
}

void check_backoffs_stand_once(const io::Json& json, const QuantConfig& config) {
  const auto params = json.find("scale_params");
  if (params == json.end() || !params->is_object()) return;
  for (const char* name : {"input_backoff", "weight_backoff"}) {
    if (!json.contains(name) || !params->contains(name)) continue;
    throw io::Error(config.source + ": key '" + name + "': found here and in scale_params, allowed: one of the two");
  }
}

// What Intel Neural Compressor makes of other keys: an object of methods is always computed anew (unless the file says
// otherwise), and some scales can't be single numbers.
void derive(const io::Json& json, QuantConfig& config) {
  const auto method = json.find("scale_method");
  const bool is_object = method != json.end() && method->is_object();
  if (is_object && !json.contains("recalc_scales")) config.recalc_scales = true;
  const auto entries = config.scale_methods.all();
  const bool channels = std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.second->weight.granularity == recipes::Granularity::PCS ||
           entry.second->activation.granularity == recipes::Granularity::PCS;
  });
  if (channels || config.fake_quant || config.dynamic_quantization) config.scale_format = ScaleStorage::CONST;
}

// Reads all keys; `attempt` runs each step and decides what an error means.
using Attempt = std::function<void(const std::function<void()>&)>;

QuantConfig read_all(const io::Json& json, const std::string& name, const ParseOptions& options,
                     const Attempt& attempt) {
  QuantConfig config;
  config.source = io::printable(name, 4096);
  if (!json.is_object()) {
    attempt([&] { detail::reject({json, config.source}, "a JSON object with QUANT_CONFIG's keys"); });
    return config;
  }
  const auto read = [&](const Key& key, const std::string& found, const io::Json& value) {
    key.read({value, config.source + ": key '" + found + "'", &options}, config);
  };
  for (const auto& [found, value] : json.items()) {
    attempt([&, &found = found, &value = value] {
      const Key& key = key_named(found, config.source);
      config.file_keys[key.name] = detail::found_text(value);
      if (found != detail::kScaleMethodKey) read(key, found, value);
    });
  }
  attempt([&] { check_backoffs_stand_once(json, config); });
  attempt([&] {
    constexpr auto* kMethod = detail::kScaleMethodKey;
    read(key_named(kMethod, config.source), kMethod, json.value(kMethod, io::Json("MAXABS_HW")));
  });
  attempt([&] { check_observer_parameters(json, config, options); });
  attempt([&] { module_filter(config); });  // throws for a pattern that does not compile
  derive(json, config);
  for (const std::string& problem : key_rule_problems(config)) attempt([&] { throw io::Error(problem); });
  return config;
}

}  // namespace

bool QuantConfig::needs_measurements() const {
  const bool quantizes = mode == QuantMode::QUANTIZE || mode == QuantMode::AUTO;
  return quantizes && !dynamic_quantization && scale_methods.needs_measurements();
}

void require_stats_path(const QuantConfig& config, const std::string& why) {
  if (!config.dump_stats_path.empty()) return;
  throw io::Error(config.source + ": key 'dump_stats_path': found \"\", but " + why +
                  "; allowed: folder and beginning of the file names, such as \"./out/inc_output\"");
}

QuantConfig parse_quant_config(const io::Json& json, const std::string& name, const ParseOptions& options) {
  return read_all(json, name, options, [](const std::function<void()>& step) { step(); });
}

std::vector<std::string> quant_config_problems(const io::Json& json, const std::string& name,
                                               const ParseOptions& options) {
  std::vector<std::string> problems;
  read_all(json, name, options, [&](const std::function<void()>& step) {
    try {
      step();
    } catch (const io::Error& error) {
      problems.emplace_back(error.what());
    }
  });
  return problems;
}

QuantConfig read_quant_config(const std::filesystem::path& path, const ParseOptions& options) {
  return parse_quant_config(io::read_json(path), path.string(), options);
}

std::optional<std::filesystem::path> quant_config_from_environment() {
  const char* path = io::environment_value("QUANT_CONFIG");
  return path != nullptr ? std::optional<std::filesystem::path>(path) : std::nullopt;
}

ModuleFilter module_filter(const QuantConfig& config) {
  return ModuleFilter(config.allowlist, config.blocklist, config.source);
}

recipes::IncTarget inc_target(const QuantConfig& config, recipes::Dialect device) {
  return {config.device_for_scales.value_or(device), config.fp8_config, config.hp_dtype};
}

std::vector<KeyReport> describe(const QuantConfig& config) {
  std::vector<KeyReport> reports;
  for (const Key& key : detail::keys()) {
    const auto found = config.file_keys.find(key.name);
    const bool from_file = found != config.file_keys.end();
    std::string value = key.show ? key.show(config) : from_file ? found->second : key.default_text;
    reports.push_back({key.name, std::move(value), from_file ? config.source : "default", key.status, key.note});
  }
  return reports;
}

}  // namespace fp8::configs
