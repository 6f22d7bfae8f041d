// SPDX-License-Identifier: Apache-2.0
// Readers of single values, and the table (see quant_config_keys.h). To add a key: one reader, one row, one test.
#include "fp8/configs/quant_config_keys.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "fp8/configs/closest.h"
#include "fp8/runtime/io/error.h"

namespace fp8::configs::detail {
namespace {

std::string upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

std::string join(std::initializer_list<const char*> words) {
  std::string list;
  for (const char* word : words) list += (list.empty() ? "" : ", ") + std::string(word);
  return list;
}

// Index into `allowed` of a string, in any case. Words of `unbuilt` are known and refused.
std::size_t choose(const KeyValue& value, std::initializer_list<const char*> allowed,
                   std::initializer_list<const char*> unbuilt = {}) {
  if (!value.json.is_string()) reject(value, join(allowed));
  const std::string word = upper(value.json.get<std::string>());
  const auto found = std::find(allowed.begin(), allowed.end(), word);
  if (found != allowed.end()) return static_cast<std::size_t>(found - allowed.begin());
  if (std::find(unbuilt.begin(), unbuilt.end(), word) != unbuilt.end()) reject_unbuilt(value, join(allowed));
  reject(value, join(allowed));
}

// INC takes JSON's true as well as "True" and "TRUE".
bool boolean(const KeyValue& value) {
  if (value.json.is_boolean()) return value.json.get<bool>();
  if (value.json.is_string()) {
    const std::string word = upper(value.json.get<std::string>());
    if (word == "TRUE" || word == "FALSE") return word == "TRUE";
  }
  reject(value, "true, false");
}

std::string text(bool value) { return value ? "true" : "false"; }

void read_mode(const KeyValue& value, QuantConfig& config) {
  config.mode = static_cast<QuantMode>(choose(value, {"NONE", "QUANTIZE", "MEASURE"}, {"SHAPE", "LOAD"}));
}

void read_observer(const KeyValue& value, QuantConfig& config) {
  const std::string allowed = "\"maxabs\"";
  if (!value.json.is_string()) reject(value, allowed);
  const auto word = value.json.get<std::string>();
  if (word == "shape" || word == "save" || word == "maxabs_per_channel") reject_unbuilt(value, allowed);
  if (word != "maxabs") reject(value, allowed);
  config.observer = word;
}

void read_scale_method(const KeyValue& value, QuantConfig& config) {
  if (value.json.is_object()) reject_unbuilt(value, "one of " + recipes::list_of_scale_methods(true));
  const recipes::NamedScaleMethod* method =
      value.json.is_string() ? recipes::find_scale_method(value.json.get<std::string>()) : nullptr;
  if (!method) reject(value, recipes::list_of_scale_methods(false));
  config.scale_method = *method;
}

std::vector<std::string> strings(const KeyValue& value) {
  if (!value.json.is_array()) reject(value, "an array of strings");
  std::vector<std::string> result;
  for (const io::Json& item : value.json) {
    if (!item.is_string()) {
      reject({item, value.where + ", element " + std::to_string(result.size())}, "a string");
    }
    result.push_back(item.get<std::string>());
  }
  return result;
}

// {"names": [...], "types": [...]}; a part that is absent keeps what it had, as in INC.
void read_module_list(const KeyValue& value, ModuleList& list) {
  if (!value.json.is_object()) reject(value, "an object with the keys names, types");
  for (const auto& [part, json] : value.json.items()) {
    if (part != "names" && part != "types") {
      throw io::Error(value.where + ": unknown key " + io::in_quotes(part) + ", did you mean '" +
                      closest(part, {"names", "types"}) + "'? allowed: names, types");
    }
    (part == "names" ? list.names : list.types) = strings({json, value.where + ", " + part});
  }
}

void read_allowlist(const KeyValue& value, QuantConfig& config) { read_module_list(value, config.allowlist); }
void read_blocklist(const KeyValue& value, QuantConfig& config) { read_module_list(value, config.blocklist); }

std::string show(const ModuleList& list) {
  const io::Json json{{"names", list.names}, {"types", list.types}};
  return json.dump(-1, ' ', false, io::Json::error_handler_t::replace);
}

void read_dump_stats_path(const KeyValue& value, QuantConfig& config) {
  const std::string allowed = "a path: folder and beginning of the file names, such as \"./out/inc_output\"";
  if (!value.json.is_string()) reject(value, allowed);
  const auto path = value.json.get<std::string>();
  if (path.empty() || path.find('\0') != std::string::npos) reject(value, allowed);
  config.dump_stats_path = path;
}

void read_fp8_config(const KeyValue& value, QuantConfig& config) {
  config.fp8_config = choose(value, {"E4M3", "E5M2"}) == 0 ? recipes::Format::E4M3 : recipes::Format::E5M2;
}

void read_hp_dtype(const KeyValue& value, QuantConfig& config) {
  using recipes::FloatType;
  constexpr FloatType kTypes[] = {FloatType::BF16, FloatType::F16, FloatType::F32};
  config.hp_dtype = kTypes[choose(value, {"BF16", "FP16", "FP32"})];
}

std::string show_hp_dtype(const QuantConfig& config) {
  using recipes::FloatType;
  return config.hp_dtype == FloatType::BF16 ? "BF16" : config.hp_dtype == FloatType::F16 ? "FP16" : "FP32";
}

void read_measure_exclude(const KeyValue& value, QuantConfig& config) {
  config.measure_exclude = static_cast<MeasureExclude>(choose(value, {"NONE", "INPUT", "OUTPUT", "PARAMS", "ALL"}));
}

void read_device_for_scales(const KeyValue& value, QuantConfig& config) {
  config.device_for_scales.reset();
  if (value.json.is_null()) return;
  if (!value.json.is_string()) reject(value, "GAUDI2, GAUDI3, null");
  const std::string word = upper(value.json.get<std::string>());
  if (word != "GAUDI2" && word != "GAUDI3") reject(value, "GAUDI2, GAUDI3, null");
  config.device_for_scales = word == "GAUDI2" ? recipes::Dialect::gaudi2 : recipes::Dialect::gaudi3;
}

std::string show_device_for_scales(const QuantConfig& config) {
  return config.device_for_scales ? upper(recipes::name_of(*config.device_for_scales)) : "null";
}

void read_ignore_modules(const KeyValue& value, QuantConfig& config) {
  config.ignore_modules_wo_measures = boolean(value);
}

void read_separate_files(const KeyValue& value, QuantConfig& config) { config.separate_measure_files = boolean(value); }

// Readers of keys without effect check the value all the same: a typing error there is a typing error.
void check_scale_format(const KeyValue& value, QuantConfig&) { choose(value, {"SCALAR", "CONST"}); }
void check_method(const KeyValue& value, QuantConfig&) { choose(value, {"HOOKS"}); }
void check_boolean(const KeyValue& value, QuantConfig&) { boolean(value); }
void check_string(const KeyValue& value, QuantConfig&) {
  if (!value.json.is_string()) reject(value, "a string");
}
void check_interval(const KeyValue& value, QuantConfig&) {
  if (!value.json.is_number_integer() || value.json < 0) reject(value, "an integer >= 0");
}
void check_rank(const KeyValue& value, QuantConfig&) {
  if (!value.json.is_null() && !value.json.is_number_integer()) reject(value, "an integer, null");
}
void check_nothing(const KeyValue&, QuantConfig&) {}

void only_false(const KeyValue& value, QuantConfig&) {
  if (boolean(value)) reject_unbuilt(value, "false");
}
void only_empty(const KeyValue& value, QuantConfig&) {
  if (!value.json.is_object()) reject(value, "{}");
  if (!value.json.empty()) reject_unbuilt(value, "{}");
}

std::vector<Key> make_table() {
  using enum KeyStatus;
  using C = QuantConfig;
  constexpr const char* kOverwritten = "found out from the process, as in Intel Neural Compressor";
  return {
      {"mode", built, "", "", read_mode, [](const C& c) { return std::string(name_of(c.mode)); }},
      {"observer", built, "", "", read_observer, [](const C& c) { return c.observer; }},
      {"scale_method", built, "", "", read_scale_method, [](const C& c) { return c.scale_method.name; }},
      {"allowlist", built, "", "", read_allowlist, [](const C& c) { return show(c.allowlist); }},
      {"blocklist", built, "", "", read_blocklist, [](const C& c) { return show(c.blocklist); }},
      {"dump_stats_path", built, "", "", read_dump_stats_path, [](const C& c) { return c.dump_stats_path.string(); }},
      {"fp8_config", built, "", "", read_fp8_config, [](const C& c) { return std::string(name_of(c.fp8_config)); }},
      {"hp_dtype", built, "", "", read_hp_dtype, show_hp_dtype},
      {"measure_exclude", built, "", "", read_measure_exclude,
       [](const C& c) { return std::string(name_of(c.measure_exclude)); }},
      {"device_for_scales", built, "", "", read_device_for_scales, show_device_for_scales},
      {"ignore_modules_wo_measures", built, "", "", read_ignore_modules,
       [](const C& c) { return text(c.ignore_modules_wo_measures); }},
      {"seperate_measure_files", built, "", "", read_separate_files,
       [](const C& c) { return text(c.separate_measure_files); }},
      {"scale_format", ignored, "SCALAR and CONST give the same numbers", "SCALAR", check_scale_format, nullptr},
      {"recalc_scales", ignored, "scales are always computed from the measurements", "false", check_boolean, nullptr},
      {"measure_on_hpu", ignored, "measuring runs where the model is", "true", check_boolean, nullptr},
      {"calibration_sample_interval", ignored, "measurements are written at the end, also after an interrupt", "0",
       check_interval, nullptr},
      {"method", ignored, "HOOKS is the only one", "HOOKS", check_method, nullptr},
      {"quantize_weight", ignored, "Intel Neural Compressor ignores it too", "", check_boolean, nullptr},
      {"dump_stats_xlsx_path", ignored, "no spreadsheet is written", "", check_string, nullptr},
      {"local_rank", ignored, kOverwritten, "null", check_rank, nullptr},
      {"global_rank", ignored, kOverwritten, "null", check_rank, nullptr},
      {"world_size", ignored, kOverwritten, "null", check_rank, nullptr},
      {"device_type", ignored, kOverwritten, "null", check_nothing, nullptr},
      {"dynamic_quantization", not_built_yet, "", "false", only_false, nullptr},
      {"use_qdq", not_built_yet, "", "false", only_false, nullptr},
      {"fake_quant", not_built_yet, "", "false", only_false, nullptr},
      {"row_parallel_linear_allreduce_quantization", not_built_yet, "", "false", only_false, nullptr},
      {"scale_params", not_built_yet, "", "{}", only_empty, nullptr},
      {"mod_dict", not_built_yet, "", "{}", only_empty, nullptr},
  };
}

}  // namespace

const std::vector<Key>& keys() {
  static const std::vector<Key> table = make_table();
  return table;
}

std::string canonical_name(const std::string& name) {
  if (name == "whitelist") return "allowlist";
  if (name == "blacklist") return "blocklist";
  return name;
}

std::string found_text(const io::Json& json) {
  if (json.is_object()) return json.empty() ? "{}" : "an object";
  if (json.is_array()) return json.empty() ? "[]" : "an array";
  return io::printable(json.dump(-1, ' ', false, io::Json::error_handler_t::replace), 80);
}

void reject(const KeyValue& value, const std::string& allowed) {
  throw io::Error(value.where + ": found " + found_text(value.json) + ", allowed: " + allowed);
}

void reject_unbuilt(const KeyValue& value, const std::string& allowed) {
  throw io::Error(value.where + ": found " + found_text(value.json) + ", which is not built yet, allowed: " + allowed);
}

}  // namespace fp8::configs::detail
