// SPDX-License-Identifier: Apache-2.0
// Reading scale_method, and which entry a module takes.
#include "fp8/configs/scale_methods.h"

#include "fp8/configs/quant_config_keys.h"

namespace fp8::configs {
namespace {

using detail::Backoffs, detail::KeyValue;
using recipes::NamedScaleMethod, recipes::ScaleMethod;

// A tensor's method, and whether its backoff was written down (by itself or by the default it inherits from).
struct Tensor {
  ScaleMethod method;
  bool has_backoff = false;
};

struct Entry {
  Tensor weight, activation;
};

// The place of a value, for messages: the file, and the path of keys to it.
struct Path {
  std::string file, key;
  Path operator/(const std::string& part) const { return {file, key + "." + io::printable(part)}; }
  KeyValue value(const io::Json& json) const { return {json, file + ": key '" + key + "'"}; }
};

void require_object(const io::Json& json, const Path& path, const std::vector<std::string>& keys) {
  if (!json.is_object()) detail::reject(path.value(json), "an object with the keys " + io::joined(keys));
  for (const auto& [key, value] : json.items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    io::fail<io::Error>("{}: unknown key {}, did you mean '{}'? allowed: {}", path.value(json).where,
                        io::in_quotes(key), closest(key, keys), io::joined(keys));
  }
}

template <class E>
void read_enum(const io::Json& object, const char* key, const Path& path, E& out,
               const EnumChoice<E>& among = choice_of<E>()) {
  if (const auto found = object.find(key); found != object.end())
    out = detail::choose((path / key).value(*found), among);
}

void read_candidates(const io::Json& params, const Path& path, ScaleMethod& method) {
  require_object(params, path, {"weight_scales"});
  const auto found = params.find("weight_scales");
  if (found == params.end() || found->is_null()) return;
  const Path at = path / "weight_scales";
  constexpr const char* kAllowed = "an array of 1 to 256 numbers > 0";
  if (!found->is_array() || found->empty() || found->size() > 256) detail::reject(at.value(*found), kAllowed);
  method.candidates.clear();
  for (const io::Json& item : *found) {
    const io::Json number = detail::number_in(item);
    const double value = number.is_number() ? number.get<double>() : 0.0;
    if (!(value > 0.0) || static_cast<float>(value) == 0.0f || !std::isfinite(static_cast<float>(value)))
      detail::reject(at.value(item), kAllowed);
    method.candidates.push_back(static_cast<float>(value));
  }
}

// {granularity, scale_value_type, rounding_method, backoff, params}; `tensor` comes with what it inherits.
void read_tensor(const io::Json& json, const Path& path, Tensor& tensor) {
  using enum recipes::ScaleValue;
  require_object(json, path, {"granularity", "scale_value_type", "rounding_method", "backoff", "params"});
  ScaleMethod& method = tensor.method;
  read_enum(json, "granularity", path, method.granularity, recipes::inc_granularities());
  read_enum(json, "scale_value_type", path, method.value, choice_of({MAXABS, FIXED_VALUE, OPT, DUMMY_SCALES}));
  read_enum(json, "rounding_method", path, method.rounding);
  if (const auto found = json.find("backoff"); found != json.end()) {
    method.backoff = detail::backoff((path / "backoff").value(*found));
    tensor.has_backoff = true;
  }
  if (const auto found = json.find("params"); found != json.end() && !found->is_null())
    read_candidates(*found, path / "params", method);
  if (method.value != OPT && !method.candidates.empty()) {
    const auto params = json.find("params");
    if (params != json.end() && !params->is_null() && params->contains("weight_scales"))
      io::fail<io::Error>("{}: found candidates for scale_value_type {}, allowed: only with OPT",
                          (path / "params.weight_scales").value(json).where, name_of(method.value));
    method.candidates.clear();  // inherited from a default that searches
  }
}

Entry read_entry(const io::Json& json, const Path& path, Entry entry) {
  require_object(json, path, {"weight", "activation"});
  if (const auto found = json.find("weight"); found != json.end()) read_tensor(*found, path / "weight", entry.weight);
  if (const auto found = json.find("activation"); found != json.end())
    read_tensor(*found, path / "activation", entry.activation);
  return entry;
}

std::string triple(const ScaleMethod& method) {
  return std::string(name_of(method.granularity, recipes::inc_granularities())) + " " + name_of(method.value) + " " +
         name_of(method.rounding);
}

// The row of the table that `entry` is, with its own backoffs and candidates.
NamedScaleMethod named(const Entry& entry, const Path& path, const io::Json& json) {
  if (const NamedScaleMethod* row = recipes::find_scale_method(entry.weight.method, entry.activation.method)) {
    NamedScaleMethod method = *row;
    method.weight = entry.weight.method;
    method.activation = entry.activation.method;
    return method;
  }
  std::vector<std::string> activations, weights;
  for (const NamedScaleMethod& row : recipes::scale_methods()) {
    if (row.weight.same_kind(entry.weight.method)) activations.push_back(triple(row.activation));
    std::string weight = triple(row.weight);
    if (std::ranges::find(weights, weight) == weights.end()) weights.push_back(std::move(weight));
  }
  const std::string where = path.value(json).where + ": Unsupported config: weight " + triple(entry.weight.method);
  if (activations.empty()) io::fail<io::Error>("{}, allowed for a weight: {}", where, io::joined(weights));
  io::fail<io::Error>("{} with activation {}, allowed for that weight: {}", where, triple(entry.activation.method),
                      io::joined(activations));
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() <= 9 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Backoffs of scale_params, where the JSON has none of its own and there is something to back off from.
void apply(const std::optional<float>& backoff, bool has_own, ScaleMethod& method) {
  const bool used = method.value == recipes::ScaleValue::MAXABS || method.value == recipes::ScaleValue::OPT;
  if (backoff && !has_own && used) method.backoff = *backoff;
}

NamedScaleMethod finished(const Entry& entry, const Path& path, const io::Json& json, const Backoffs& backoffs) {
  NamedScaleMethod method = named(entry, path, json);
  apply(backoffs.weight, entry.weight.has_backoff, method.weight);
  apply(backoffs.activation, entry.activation.has_backoff, method.activation);
  return method;
}

// The number behind the first "layers." (else "layers/") that has one; "" without.
std::string_view layer_of(std::string_view name) {
  for (const std::string_view word : {std::string_view("layers."), std::string_view("layers/")}) {
    for (auto at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
      const std::string_view rest = name.substr(at + word.size());
      const auto end = std::find_if(rest.begin(), rest.end(), [](char c) { return c < '0' || c > '9'; });
      if (end != rest.begin()) return rest.substr(0, static_cast<std::size_t>(end - rest.begin()));
    }
  }
  return {};
}

// The entry of `methods` for a module, and which it is.
std::pair<std::string, const NamedScaleMethod*> entry_for(const ScaleMethods& methods, std::string_view name,
                                                          std::string_view type) {
  const auto find = [](const ScaleMethods::Table& table, std::string_view key) {
    const auto found = table.find(key);
    return found == table.end() ? nullptr : &found->second;
  };
  if (const auto* method = find(methods.nodes, name)) return {"nodes." + std::string(name), method};
  const std::string_view layer = layer_of(name);
  if (const auto* method = find(methods.layers, layer)) return {"layers." + std::string(layer), method};
  if (const auto* method = find(methods.layer_types, type)) return {"layer_types." + std::string(type), method};
  return {"default", &methods.default_method};
}

}  // namespace

io::Json to_json(const ScaleMethod& method) {
  io::Json params = io::Json::object();
  if (!method.candidates.empty()) params["weight_scales"] = method.candidates;
  return {{"granularity", name_of(method.granularity, recipes::inc_granularities())},
          {"scale_value_type", name_of(method.value)},
          {"rounding_method", name_of(method.rounding)},
          {"backoff", method.backoff},
          {"params", params}};
}

ScaleMethod scale_method_from_json(const io::Json& json, const std::string& where, const std::string& key) {
  Tensor tensor;
  read_tensor(json, {where, key}, tensor);
  return tensor.method;
}

const NamedScaleMethod& ScaleMethods::for_module(std::string_view name, std::string_view type) const {
  return *entry_for(*this, name, type).second;
}

std::string ScaleMethods::source_of(std::string_view name, std::string_view type) const {
  return entry_for(*this, name, type).first;
}

bool ScaleMethods::needs_measurements() const {
  const auto entries = all();
  return std::any_of(entries.begin(), entries.end(), [](const auto& e) { return e.second->needs_measurements(); });
}

std::vector<std::pair<std::string, const NamedScaleMethod*>> ScaleMethods::all() const {
  std::vector<std::pair<std::string, const NamedScaleMethod*>> entries{{"default", &default_method}};
  for (const auto& [name, method] : nodes) entries.emplace_back("nodes." + name, &method);
  for (const auto& [name, method] : layers) entries.emplace_back("layers." + name, &method);
  for (const auto& [name, method] : layer_types) entries.emplace_back("layer_types." + name, &method);
  return entries;
}

ScaleMethods detail::read_scale_methods(const io::Json& json, const std::string& file, const std::string& key,
                                        const Backoffs& backoffs) {
  const Path path{file, key};
  ScaleMethods methods;
  if (!json.is_object()) {
    const NamedScaleMethod* method = json.is_string() ? recipes::find_scale_method(json.get<std::string>()) : nullptr;
    if (method == nullptr) {
      std::string hint = recipes::list_of_scale_methods() + ", or an object with the key default";
      if (json.is_string()) {
        std::vector<std::string> names;
        for (const NamedScaleMethod& row : recipes::scale_methods()) names.push_back(io::lower(row.name));
        hint += "; did you mean '" + closest(json.get<std::string>(), names) + "'?";
      }
      reject(path.value(json), hint);
    }
    methods.default_method = *method;
    apply(backoffs.weight, false, methods.default_method.weight);
    apply(backoffs.activation, false, methods.default_method.activation);
    return methods;
  }
  require_object(json, path, {"default", "nodes", "layers", "layer_types"});
  if (!json.contains("default"))
    io::fail<io::Error>("{}: found an object without the key default, which it must have", path.value(json).where);
  const Entry base = read_entry(json["default"], path / "default", {});
  methods.default_method = finished(base, path / "default", json["default"], backoffs);
  for (const auto& [section, table] : {std::pair<const char*, ScaleMethods::Table*>{"nodes", &methods.nodes},
                                       {"layers", &methods.layers},
                                       {"layer_types", &methods.layer_types}}) {
    const auto found = json.find(section);
    if (found == json.end() || found->is_null()) continue;
    if (!found->is_object()) reject((path / section).value(*found), "an object of methods");
    for (const auto& [name, item] : found->items()) {
      const Path at = path / section / name;
      if (table == &methods.layers && !is_number(name))
        io::fail<io::Error>("{}: found {}, allowed: a layer's number", (path / section).value(item).where,
                            io::in_quotes(name));
      table->emplace(name, finished(read_entry(item, at, base), at, item, backoffs));
    }
  }
  return methods;
}

io::Json method_report(const ScaleMethods& methods, const std::vector<std::pair<std::string, std::string>>& modules) {
  io::Json report = io::Json::object();
  for (const auto& [name, type] : modules) {
    const NamedScaleMethod& method = methods.for_module(name, type);
    report[name] = {{"ACTIVATION", to_json(method.activation)}, {"WEIGHT", to_json(method.weight)}};
  }
  return report;
}

}  // namespace fp8::configs
