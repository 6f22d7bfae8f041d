// SPDX-License-Identifier: Apache-2.0
// QUANT_CONFIG as a whole: every key through the table, then what keys demand of each other (see quant_config.h).
#include "fp8/configs/quant_config.h"

#include <algorithm>
#include <cstdlib>

#include "fp8/configs/closest.h"
#include "fp8/configs/quant_config_keys.h"
#include "fp8/runtime/io/error.h"

namespace fp8::configs {
namespace {

using detail::Key;

const Key& key_named(const std::string& name, const std::string& source) {
  const std::string canonical = detail::canonical_name(name);
  for (const Key& key : detail::keys()) {
    if (key.name == canonical) return key;
  }
  std::vector<std::string> known{"whitelist", "blacklist"};
  for (const Key& key : detail::keys()) known.emplace_back(key.name);
  throw io::Error(source + ": unknown key " + io::in_quotes(name) + ", did you mean '" + closest(name, known) + "'?");
}

void check_together(const QuantConfig& config) {
  if (config.mode == QuantMode::QUANTIZE && !config.scale_method.built) {
    const io::Json method = config.scale_method.name;
    detail::reject_unbuilt({method, config.source + ": key 'scale_method'"}, recipes::list_of_scale_methods(true));
  }
  module_filter(config);  // throws for a pattern that does not compile
}

}  // namespace

const char* name_of(QuantMode mode) {
  return mode == QuantMode::NONE ? "NONE" : mode == QuantMode::QUANTIZE ? "QUANTIZE" : "MEASURE";
}

const char* name_of(MeasureExclude exclude) {
  constexpr const char* kNames[] = {"NONE", "INPUT", "OUTPUT", "PARAMS", "ALL"};
  return kNames[static_cast<std::size_t>(exclude)];
}

const char* name_of(KeyStatus status) {
  return status == KeyStatus::built ? "built" : status == KeyStatus::ignored ? "ignored" : "not built yet";
}

QuantConfig parse_quant_config(const io::Json& json, const std::string& name) {
  QuantConfig config;
  config.source = io::printable(name, 4096);
  if (!json.is_object()) {
    detail::reject({json, config.source}, "a JSON object with QUANT_CONFIG's keys");
  }
  for (const auto& [found, value] : json.items()) {
    const Key& key = key_named(found, config.source);
    key.read({value, config.source + ": key '" + found + "'"}, config);
    config.file_keys[key.name] = detail::found_text(value);
  }
  check_together(config);
  return config;
}

QuantConfig read_quant_config(const std::filesystem::path& path) {
  return parse_quant_config(io::read_json(path), path.string());
}

std::optional<std::filesystem::path> quant_config_from_environment() {
  const char* path = std::getenv("QUANT_CONFIG");
  if (path == nullptr || *path == '\0') return std::nullopt;
  return path;
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
