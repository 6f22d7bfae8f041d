// SPDX-License-Identifier: Apache-2.0
// Readers of single values, and the table. To add a key: one reader, one row, one test.
#include "fp8/configs/quant_config_keys.h"

namespace fp8::configs::detail {
namespace {

// INC takes JSON's true as well as "True" and "TRUE".
bool boolean(const KeyValue& value) {
  if (value.json.is_boolean()) return value.json.get<bool>();
  if (value.json.is_string()) {
    const std::string word = upper(value.json.get<std::string>());
    if (word == "TRUE" || word == "FALSE") return word == "TRUE";
  }
  reject(value, "true, false");
}

void read_value(const KeyValue& value, bool& to) { to = boolean(value); }
std::string shown(bool value) { return value ? "true" : "false"; }

template <NamedEnum E>
void read_value(const KeyValue& value, E& to) {
  to = choose<E>(value);
}
template <NamedEnum E>
std::string shown(E value) {
  return name_of(value);
}

// Names of observers are case-sensitive: they are part of file names.
void read_observer(const KeyValue& value, QuantConfig& config) {
  const std::string found = value.json.is_string() ? value.json.get<std::string>() : "";
  if (value.options->observers.empty()) {
    if (!is_observer_name(found)) reject(value, kObserverNames);
    config.observer = found;
    return;
  }
  std::vector<std::string> names;
  for (const ObserverKeys& observer : value.options->observers) names.push_back(observer.name);
  if (!value.json.is_string()) reject(value, io::joined(names));
  if (std::ranges::find(names, found) == names.end())
    reject(value, io::joined(names) + "; did you mean '" + closest(found, names) + "'?");
  config.observer = found;
}

// Read behind all other keys, because scale_params has a say.
void read_scale_method(const KeyValue& value, QuantConfig& config) {
  const Backoffs backoffs{config.scale_params.weight_backoff, config.scale_params.input_backoff};
  config.scale_methods = read_scale_methods(value.json, config.source, kScaleMethodKey, backoffs);
  config.scale_method = config.scale_methods.default_method;
}

std::string show_scale_method(const QuantConfig& config) {
  const ScaleMethods& methods = config.scale_methods;
  std::string text = methods.name();
  const auto add = [&text](const ScaleMethods::Table& table, const char* what) {
    if (!table.empty()) text += " + " + std::to_string(table.size()) + " " + what;
  };
  add(methods.nodes, "nodes");
  add(methods.layers, "layers");
  add(methods.layer_types, "layer_types");
  return text;
}

// Intel Neural Compressor adds these two to what it saves; they are hp_dtype and fp8_config once more.
bool is_injected(const std::string& name) { return name == "hp_dtype" || name == "lp_dtype"; }

void read_scale_params(const KeyValue& value, QuantConfig& config) {
  if (!value.json.is_object())
    reject(value, "an object with input_backoff, weight_backoff, parameters of the observer");
  const std::string prefix = value.where.substr(0, value.where.size() - 1);  // without the closing quote
  for (const auto& [name, json] : value.json.items()) {
    const KeyValue item{json, prefix + "." + io::printable(name) + "'"};
    if (name == "input_backoff") {
      config.scale_params.input_backoff = backoff(item);
    } else if (name == "weight_backoff") {
      config.scale_params.weight_backoff = backoff(item);
    } else if (!is_injected(name)) {
      const io::Json number = number_in(json);
      if (!number.is_number()) reject(item, "a number");
      config.scale_params.observer.emplace_back(name, number.get<double>());
    }
  }
}

std::string show_scale_params(const QuantConfig& config) {
  io::Json json = io::Json::object();
  if (config.scale_params.input_backoff) json["input_backoff"] = *config.scale_params.input_backoff;
  if (config.scale_params.weight_backoff) json["weight_backoff"] = *config.scale_params.weight_backoff;
  for (const auto& [name, value] : config.scale_params.observer) json[name] = value;
  return json.dump(-1, ' ', false, io::Json::error_handler_t::replace);
}

std::vector<std::string> strings(const KeyValue& value) {
  if (!value.json.is_array()) reject(value, "an array of strings");
  std::vector<std::string> result;
  for (const io::Json& item : value.json) {
    if (!item.is_string()) reject({item, value.where + ", element " + std::to_string(result.size())}, "a string");
    result.push_back(item.get<std::string>());
  }
  return result;
}

// {"names": [...], "types": [...]}; a part that is absent keeps what it had, as in INC.
void read_value(const KeyValue& value, ModuleList& list) {
  if (!value.json.is_object()) reject(value, "an object with the keys names, types");
  for (const auto& [part, json] : value.json.items()) {
    if (part != "names" && part != "types")
      io::fail<io::Error>("{}: unknown key {}, did you mean '{}'? allowed: names, types", value.where,
                          io::in_quotes(part), closest(part, {"names", "types"}));
    (part == "names" ? list.names : list.types) = strings({json, value.where + ", " + part});
  }
}

std::string shown(const ModuleList& list) {
  const io::Json json{{"names", list.names}, {"types", list.types}};
  return json.dump(-1, ' ', false, io::Json::error_handler_t::replace);
}

void read_dump_stats_path(const KeyValue& value, QuantConfig& config) {
  const std::string allowed = "a path: folder and beginning of the file names, such as \"./out/inc_output\"";
  if (!value.json.is_string()) reject(value, allowed);
  const auto path = value.json.get<std::string>();
  if (path.find('\0') != std::string::npos) reject(value, allowed);
  config.dump_stats_path = path;  // empty: none, which is an error only where a file is needed (require_stats_path)
}

// As INC calls them.
const EnumChoice<recipes::FloatType>& hp_dtypes() {
  using enum recipes::FloatType;
  static const EnumChoice<recipes::FloatType> types = {{BF16, "BF16"}, {F16, "FP16"}, {F32, "FP32"}};
  return types;
}
void read_hp_dtype(const KeyValue& value, QuantConfig& config) { config.hp_dtype = choose(value, hp_dtypes()); }
std::string show_hp_dtype(const QuantConfig& config) { return name_of(config.hp_dtype, hp_dtypes()); }

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

void read_interval(const KeyValue& value, QuantConfig& config) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  const io::Json number = number_in(value.json);
  if (!number.is_number_integer() || number < 0 || number > kMax) reject(value, "an integer >= 0");
  config.calibration_sample_interval = number.get<std::int64_t>();
}

void read_rounding(const KeyValue& value, QuantConfig& config) {
  if (!value.json.is_object()) reject(value, "an object with the keys method, dampening_frac, actorder");
  const std::string prefix = value.where.substr(0, value.where.size() - 1);  // without the closing quote
  for (const auto& [name, json] : value.json.items()) {
    const KeyValue item{json, prefix + "." + io::printable(name) + "'"};
    const auto names = recipes::rounding_method_names();
    if (name == "method") {
      if (!json.is_string() || std::ranges::find(names, json.get<std::string>()) == names.end())
        reject(item, io::joined(names));
      config.rounding.method = json.get<std::string>();
    } else if (name == "dampening_frac") {
      const io::Json number = number_in(json);
      if (!number.is_number() || !(number > 0) || !(number <= 1)) reject(item, "a number above 0, up to 1");
      config.rounding.dampening_frac = number.get<double>();
    } else if (name == "actorder") {
      if (!json.is_null() && json != io::Json("static")) reject(item, "\"static\", null");
      config.rounding.by_diagonal = !json.is_null();
    } else {
      io::fail<io::Error>("{}: unknown key {}, allowed: method, dampening_frac, actorder", value.where,
                          io::in_quotes(name));
    }
  }
}

std::string show_rounding(const QuantConfig& config) {
  const RoundingKeys& keys = config.rounding;
  if (keys.nearest()) return keys.method;
  return io::Json{{"method", keys.method},
                  {"dampening_frac", keys.dampening_frac},
                  {"actorder", keys.by_diagonal ? io::Json("static") : io::Json()}}
      .dump();
}

// Readers of keys without effect check the value all the same: a typing error there is a typing error.
void check_method(const KeyValue& value, QuantConfig&) {
  if (!value.json.is_string() || upper(value.json.get<std::string>()) != "HOOKS") reject(value, "HOOKS");
}
void check_boolean(const KeyValue& value, QuantConfig&) { boolean(value); }
void check_string(const KeyValue& value, QuantConfig&) {
  if (!value.json.is_string()) reject(value, "a string");
}
void check_rank(const KeyValue& value, QuantConfig&) {
  if (!value.json.is_null() && !number_in(value.json).is_number_integer()) reject(value, "an integer, null");
}
void check_nothing(const KeyValue&, QuantConfig&) {}

void only_empty(const KeyValue& value, QuantConfig&) {
  if (value.json.is_object() && value.json.empty()) return;
  reject(value, "{} (module classes are added in code, not here)");
}

/// A key whose value is a member, read and shown by the member's type.
template <auto QuantConfig::*member>
Key key(const char* name, const char* note) {
  return {name,
          KeyStatus::built,
          note,
          "",
          [](const KeyValue& v, QuantConfig& c) { read_value(v, c.*member); },
          [](const QuantConfig& c) { return shown(c.*member); }};
}

template <std::optional<float> ScaleParams::*member>
Key backoff_key(const char* name) {
  return {name,
          KeyStatus::built,
          "as in scale_params",
          "",
          [](const KeyValue& v, QuantConfig& c) { c.scale_params.*member = backoff(v); },
          [](const QuantConfig& c) {
            const auto& value = c.scale_params.*member;
            return value ? io::Json(*value).dump() : "null";
          }};
}

std::vector<Key> keys_of_methods() {
  using enum KeyStatus;
  using C = QuantConfig;
  return {
      key<&C::mode>("mode",
                    "NONE leaves the model alone; MEASURE and SHAPE observe it; QUANTIZE converts it; LOAD takes an "
                    "fp8 checkpoint; AUTO: measuring commands measure, quantizing ones quantize"),
      {"observer", built, "what is recorded of tensors; part of the names of measurement files", "", read_observer,
       [](const C& c) { return c.observer; }},
      {kScaleMethodKey, built, "how scales are made of measurements and weights, per module where it is an object", "",
       read_scale_method, show_scale_method},
      {"scale_params", built, "input_backoff and weight_backoff replace the method's; parameters of the observer", "",
       read_scale_params, show_scale_params},
      backoff_key<&ScaleParams::input_backoff>("input_backoff"),
      backoff_key<&ScaleParams::weight_backoff>("weight_backoff"),
      key<&C::scale_format>("scale_format",
                            "SCALAR keeps scales as numbers, CONST as tensors: the same results; PCS methods, "
                            "fake_quant and dynamic_quantization make it CONST"),
      {"device_for_scales", built, "generation whose range and hardware scales are used; null: the device in use", "",
       read_device_for_scales, show_device_for_scales},
      key<&C::fp8_config>("fp8_config", "format of weights and activations"),
      {"hp_dtype", built, "high precision: type of results, and of the arithmetic of scales", "", read_hp_dtype,
       show_hp_dtype},
      key<&C::dynamic_quantization>("dynamic_quantization",
                                    "scales of activations made at each call; nothing is measured"),
      key<&C::use_qdq>("use_qdq", "weights in fp8, arithmetic in high precision"),
      key<&C::fake_quant>("fake_quant", "values go through fp8 and back; weights stay in high precision (training)"),
      {"rounding", built, "how fp8 quantize --data chooses the codes of weights; not a key of Intel Neural Compressor",
       "", read_rounding, show_rounding},
      key<&C::weight_scale_search>(
          "weight_scale_search",
          "mse: scales of weights that maxabs_arbitrary makes are searched for the least squared error; the other "
          "methods keep theirs. Not a key of Intel Neural Compressor"),
      key<&C::row_parallel_allreduce>("row_parallel_linear_allreduce_quantization",
                                      "fp8 all-reduce behind RowParallelLinear"),
  };
}

std::vector<Key> keys_of_files() {
  using enum KeyStatus;
  using C = QuantConfig;
  return {
      key<&C::allowlist>("allowlist", "only these modules (types: class names, names: patterns); empty: all"),
      key<&C::blocklist>("blocklist", "not these modules; wins over allowlist"),
      {"dump_stats_path", built,
       "folder and beginning of the names of measurement and scale files; \"\": none, where no file is read or written",
       "", read_dump_stats_path, [](const C& c) { return c.dump_stats_path.string(); }},
      key<&C::measure_exclude>(
          "measure_exclude",
          "OUTPUT and ALL: outputs are not measured, unless a module type needs them; the others exclude nothing"),
      key<&C::ignore_modules_wo_measures>(
          "ignore_modules_wo_measures",
          "true: selected modules without measurement stay in high precision; false: an error"),
      key<&C::separate_measure_files>("seperate_measure_files",
                                      "several processes: one set of files each, with _RANK_WORLD in their names"),
      key<&C::recalc_scales>(
          "recalc_scales",
          "true: scale files are not read; false: they are used as long as they fit measurement and method"),
      {"calibration_sample_interval", built, "measurements are written every so many samples too; 0: at the end", "",
       read_interval, [](const C& c) { return std::to_string(c.calibration_sample_interval); }},
      key<&C::measure_on_hpu>("measure_on_hpu",
                              "false: the model stays on the host while it is prepared (block-wise calibration)"),
  };
}

std::vector<Key> keys_without_effect() {
  using enum KeyStatus;
  constexpr const char* kProcess =
      "found out from the process (RANK, LOCAL_RANK, WORLD_SIZE), as in Intel Neural Compressor";
  return {
      {"mod_dict", ignored, "module classes are added in code", "{}", only_empty, nullptr},
      {"method", ignored, "HOOKS is the only one", "HOOKS", check_method, nullptr},
      {"quantize_weight", ignored, "weights are quantized whenever their module is", "null", check_boolean, nullptr},
      {"dump_stats_xlsx_path", ignored, "no spreadsheet is written", "null", check_string, nullptr},
      {"int_gcfg", ignored, "of an older generation of the tool", "null", check_nothing, nullptr},
      {"local_rank", ignored, kProcess, "null", check_rank, nullptr},
      {"global_rank", ignored, kProcess, "null", check_rank, nullptr},
      {"world_size", ignored, kProcess, "null", check_rank, nullptr},
      {"$schema", ignored, "for editors: the JSON Schema of this file", "null", check_string, nullptr},
      {"device_type", ignored, "found out from the device", "null", check_nothing, nullptr},
  };
}

}  // namespace

const std::vector<Key>& keys() {
  static const std::vector<Key> table = [] {
    std::vector<Key> all;
    for (const auto& part : {keys_of_methods(), keys_of_files(), keys_without_effect()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return table;
}

const std::vector<Alias>& aliases() {
  static const std::vector<Alias> table{
      {"whitelist", "allowlist"}, {"blacklist", "blocklist"}, {"separate_measure_files", "seperate_measure_files"}};
  return table;
}

std::string canonical_name(const std::string& name) {
  for (const Alias& alias : aliases())
    if (name == alias.name) return alias.key;
  return name;
}

io::Json number_in(const io::Json& json) {
  constexpr std::size_t kLongest = 40;
  if (!json.is_string() || json.get_ref<const std::string&>().size() > kLongest) return json;
  io::Json number = io::Json::parse(json.get_ref<const std::string&>(), nullptr, /*allow_exceptions=*/false);
  return number.is_number() ? number : json;
}

float backoff(const KeyValue& value) {
  const io::Json found = number_in(value.json);
  const double number = found.is_number() ? found.get<double>() : 0.0;
  if (!(number >= 0x1p-20 && number <= 1.0)) reject(value, "a number from 2^-20 to 1");
  return static_cast<float>(number);
}

std::string found_text(const io::Json& json) {
  if (json.is_object()) return json.empty() ? "{}" : "an object";
  if (json.is_array()) return json.empty() ? "[]" : "an array";
  return io::printable(json.dump(-1, ' ', false, io::Json::error_handler_t::replace), 80);
}

void reject(const KeyValue& value, const std::string& allowed) {
  io::fail<io::Error>("{}: found {}, allowed: {}", value.where, found_text(value.json), allowed);
}

}  // namespace fp8::configs::detail
