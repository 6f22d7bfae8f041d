// SPDX-License-Identifier: Apache-2.0
// QUANT_CONFIG as a whole: every key through the table, then what needs several of them.
#include "fp8/configs/quant_config.h"

#include "fp8/configs/module_types.h"
#include "fp8/configs/quant_config_keys.h"

namespace fp8::configs {
namespace {

using detail::Key;

const Key& key_named(const std::string& name, const std::string& source) {
  const std::string canonical = detail::canonical_name(name);
  for (const Key& key : detail::keys())
    if (key.name == canonical) return key;
  std::vector<std::string> known;
  for (const detail::Alias& alias : detail::aliases()) known.emplace_back(alias.name);
  for (const Key& key : detail::keys()) known.emplace_back(key.name);
  io::fail<io::Error>("{}: unknown key {}, did you mean '{}'?", source, io::in_quotes(name), closest(name, known));
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
    io::fail<io::Error>("{}: key 'scale_params': unknown key {} with observer {}, did you mean '{}'? allowed: {}",
                        config.source, io::in_quotes(name), config.observer, closest(name, allowed),
                        io::joined(allowed));
  }
}

void check_backoffs_stand_once(const io::Json& json, const QuantConfig& config) {
  const auto params = json.find("scale_params");
  if (params == json.end() || !params->is_object()) return;
  for (const char* name : {"input_backoff", "weight_backoff"}) {
    if (!json.contains(name) || !params->contains(name)) continue;
    io::fail<io::Error>("{}: key '{}': found here and in scale_params, allowed: one of the two", config.source, name);
  }
}

// Derives values from other keys as Intel Neural Compressor does: an object of methods is always computed anew (unless
// the file says otherwise), and some scales can't be single numbers.
void derive(const io::Json& json, QuantConfig& config) {
  const auto method = json.find("scale_method");
  const bool is_object = method != json.end() && method->is_object();
  if (is_object && !json.contains("recalc_scales")) config.recalc_scales = true;
  const auto entries = config.scale_methods.all();
  const bool channels = std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.second->weight.granularity == recipes::Granularity::channel ||
           entry.second->activation.granularity == recipes::Granularity::channel;
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

/// "65536", "1e9".
std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  std::string found = text;
  if (const auto at = found.find("e+0"); at != std::string::npos) found.erase(at + 1, 2);
  return found;
}

using recipes::Granularity, recipes::NamedScaleMethod, recipes::Rounding, recipes::ScaleValue;

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
  return m.weight.granularity == Granularity::channel || m.activation.granularity == Granularity::channel;
}

void check_dynamic(const QuantConfig& config, std::vector<std::string>& problems) {
  const std::string key = config.source + ": key 'dynamic_quantization': found true with ";
  if (config.mode == QuantMode::MEASURE || config.mode == QuantMode::SHAPE || config.mode == QuantMode::NONE)
    problems.push_back(key + "mode " + name_of(config.mode) + ", allowed: QUANTIZE, LOAD, AUTO");
  if (config.use_qdq) problems.push_back(key + "use_qdq, allowed: one of the two");
  if (config.fake_quant) problems.push_back(key + "fake_quant, allowed: one of the two");
  if (config.row_parallel_allreduce)
    problems.push_back(key + "row_parallel_linear_allreduce_quantization, allowed: one of the two");
  for (const auto& [entry, method] : config.scale_methods.all()) {
    if (fits_dynamic(*method)) continue;
    problems.push_back(io::message("{}: found {} with dynamic_quantization, {}, allowed: {}", where(config, entry),
                                   io::lower(method->name),
                                   is_fixed(*method) ? "which looks at no values" : "whose activations are HW_ALIGNED",
                                   methods_that(fits_dynamic)));
  }
}

void check_static(const QuantConfig& config, std::vector<std::string>& problems) {
  for (const auto& [entry, method] : config.scale_methods.all()) {
    if (!method->dynamic_only) continue;
    problems.push_back(
        io::message("{}: found {} without dynamic_quantization, allowed: set dynamic_quantization, or one of {}",
                    where(config, entry), io::lower(method->name),
                    methods_that([](const NamedScaleMethod& m) { return !m.dynamic_only; })));
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
    problems.push_back(
        io::message("{} on a gaudi3 device with {} ({}), allowed: GAUDI3, null, or scale_method maxabs_hw", key,
                    io::lower(method->name), entry));
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
    problems.push_back(io::message(
        "{}: found {} with RUNTIME_SCALE_PATCHING, which takes one scale per tensor, allowed: {}", where(config, entry),
        io::lower(method->name), methods_that([](const NamedScaleMethod& m) { return !has_channels(m); })));
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
  return io::message(
      "{}: key '{}': found {}, which is no class that can be quantized, did you mean '{}'? (class names without a "
      "module path)",
      config.source, key, io::in_quotes(type), closest(last, known));
}

}  // namespace

bool QuantConfig::needs_measurements() const {
  const bool quantizes = mode == QuantMode::QUANTIZE || mode == QuantMode::AUTO;
  return quantizes && !dynamic_quantization && scale_methods.needs_measurements();
}

void require_stats_path(const QuantConfig& config, const std::string& why) {
  if (!config.dump_stats_path.empty()) return;
  io::fail<io::Error>(
      "{}: key 'dump_stats_path': found \"\", but {}; allowed: folder and beginning of the file names, such as "
      "\"./out/inc_output\"",
      config.source, why);
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

bool ObserverParameter::takes(double value) const {
  return integer ? value >= low && value <= high && value == std::floor(value) : value > low && value <= high;
}

std::string ObserverParameter::allowed() const {
  return integer ? "an integer from " + text_of(low) + " to " + text_of(high)
                 : "a number above " + text_of(low) + ", up to " + text_of(high);
}

bool is_observer_name(std::string_view name) { return io::is_name(name, "_"); }

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
  for (const auto& [key, type] : listed_types(config))
    if (std::string problem = type_problem(config, key, type); !problem.empty()) problems.push_back(std::move(problem));
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
  io::fail<io::Error>(
      "{}: key 'mode': found LOAD, which measures nothing, allowed: NONE, QUANTIZE, MEASURE, SHAPE, AUTO",
      config.source);
}

}  // namespace fp8::configs
