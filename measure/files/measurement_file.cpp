// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/files/measurement_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "fp8/runtime/io/base/checksum.h"

namespace fp8::measure {
namespace {

namespace fs = std::filesystem;
using io::Json, io::PyValue;

constexpr double kMaxSize = 16'777'216;  // 2^24: beyond it float32, the .npz's type, has no exact sizes

// --- writing

PyValue array_of(const Amax& values, MeasurementMode mode) {
  const auto n = static_cast<std::int64_t>(values.size());
  return mode == MeasurementMode::shape ? io::NdArray{{1, n}, values} : io::NdArray{{n, 1}, values};
}

/// {module: {"inputs": [[[amax], ...]]}}.
Json nodes_json(const std::vector<Measurement>& modules) {
  Json nodes = Json::object();
  for (const auto& m : modules) {
    Json inputs = Json::array();
    for (const auto& amax : m.inputs) {
      Json rows = Json::array();
      for (const float value : amax) rows.push_back(Json::array({static_cast<double>(value)}));
      inputs.push_back(std::move(rows));
    }
    nodes[m.module] = {{"inputs", std::move(inputs)}};
  }
  return nodes;
}

PyValue tree_of(const MeasurementFile& file) {
  const auto list = [&](const std::vector<Amax>& values) {
    io::PyList items;
    for (const auto& amax : values) items.items.push_back(array_of(amax, file.mode));
    return items;
  };
  io::PyDict nodes;
  for (const auto& m : file.modules) {
    io::PyDict node;
    node.insert("inputs", list(m.inputs));
    if (m.outputs.has_value()) node.insert("outputs", list(*m.outputs));
    if (m.weight.has_value()) {
      io::PyDict params;
      params.insert("weight", array_of(*m.weight, file.mode));
      node.insert("params", std::move(params));
    }
    nodes.insert(m.module, std::move(node));
  }
  io::PyDict out =
      header_of({file.num_samples, file.global_rank, file.local_rank, name_of(file.mode), file.planned_samples});
  out.insert("Nodes", std::move(nodes));
  return out;
}

// --- reading

void check_value(double v, MeasurementMode mode, const std::string& where) {
  if (mode == MeasurementMode::shape) {
    if (!(v >= 0 && v <= kMaxSize && v == std::floor(v)))
      io::fail_at(where, "expected sizes from 0 to 2^24, found {}", v);
  } else if (!std::isfinite(v) || v < 0 || v > 3.4028234663852886e38) {
    io::fail_at(where, "expected a finite amax >= 0, found {}", v);
  }
}

/// [[v], ...], [v, ...] or v; sizes: [[v, ...]] or [v, ...].
Amax amax_from(const Json& value, MeasurementMode mode, const std::string& where) {
  const bool shape = mode == MeasurementMode::shape;
  const char* form = shape ? "[[size, size, ...]]" : "[[amax]]";
  const Json& rows = shape && value.is_array() && value.size() == 1 && value[0].is_array() ? value[0] : value;
  Amax amax;
  const auto add = [&](const Json& v) {
    if (!v.is_number()) io::fail_at(where, "expected {}, found {}", form, in_message(v));
    check_value(v.get<double>(), mode, where);
    amax.push_back(v.get<float>());
  };
  if (rows.is_number()) {
    add(rows);
    return amax;
  }
  if (!rows.is_array() || (rows.empty() && !shape))
    io::fail_at(where, "expected {}, found {}", form, rows.is_array() ? "[]" : rows.type_name());
  for (const auto& row : rows) add(!shape && row.is_array() && row.size() == 1 ? row[0] : row);
  return amax;
}

std::vector<Amax> list_from(const Json& value, MeasurementMode mode, const std::string& where) {
  if (!value.is_array()) io::fail_at(where, "expected a list of tensors, found {}", value.type_name());
  std::vector<Amax> list;
  for (std::size_t i = 0; i < value.size(); ++i)
    list.push_back(amax_from(value[i], mode, where + "[" + std::to_string(i) + "]"));
  return list;
}

/// node[key], or what old files call it; null if there is neither.
const Json* field(const Json& node, const char* key, const char* old_key) {
  const auto it = node.find(key);
  if (it != node.end()) return &*it;
  const auto old = node.find(old_key);
  return old != node.end() ? &*old : nullptr;
}

Measurement node_from(const std::string& module, const Json& node, MeasurementMode mode, const std::string& where) {
  if (!node.is_object()) io::fail_at(where, "expected an object, found {}", node.type_name());
  Measurement m{module, {}, std::nullopt, std::nullopt};
  if (const Json* inputs = field(node, "inputs", "input")) m.inputs = list_from(*inputs, mode, where + ".inputs");
  if (const Json* outputs = field(node, "outputs", "output"); outputs != nullptr && !outputs->is_null())
    m.outputs = list_from(*outputs, mode, where + ".outputs");
  const auto params = node.find("params");
  if (params != node.end() && params->is_object() && params->contains("weight"))
    m.weight = amax_from((*params)["weight"], mode, where + ".params.weight");
  return m;
}

/// The value under `key` in a file beside the measurement, if it is there and of these values; else null.
Json beside(const fs::path& path, const char* key, const MeasurementFile& file) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return nullptr;
  Json json = io::read_json(path);
  if (!json.is_object() || !json.contains("measurement") || !json.contains(key))
    io::fail_at(path.string(), "expected an object with 'measurement' and '{}'", key);
  return json["measurement"] == file.fingerprint() ? std::move(json[key]) : Json();
}

std::optional<ModelFingerprint> model_of(const StatsName& name, const MeasurementFile& file) {
  const Json weights = beside(name.fingerprint(), "weights", file);
  if (weights.is_null()) return std::nullopt;
  return model_from_json(weights, name.fingerprint().string() + ": weights");
}

std::vector<Measurement> kv_cache_of(const StatsName& name, const MeasurementFile& file) {
  const Json nodes = beside(name.kv_cache(), "Nodes", file);
  const std::string where = name.kv_cache().string() + ": Nodes";
  if (!nodes.is_object() && !nodes.is_null()) io::fail_at(where, "expected an object, found {}", nodes.type_name());
  std::vector<Measurement> modules;
  for (const auto& [module, node] : nodes.items())
    modules.push_back(node_from(module, node, MeasurementMode::dynamic_range, where + "." + io::printable(module)));
  return modules;
}

const Measurement* find_in(const std::vector<Measurement>& modules, const std::string& module) {
  const auto it = std::ranges::find_if(modules, [&](const Measurement& m) { return m.module == module; });
  return it == modules.end() ? nullptr : &*it;
}

void check_node(const Json& node, const std::string& where) {
  if (!node.is_object()) io::fail_at(where, "expected an object, found {}", node.type_name());
  for (const char* key : {"inputs", "outputs"})
    if (node.contains(key) && !node[key].is_array()) bad_state(where + "." + key, "a list", node[key]);
}

}  // namespace

const Measurement* MeasurementFile::find(const std::string& module) const { return find_in(modules, module); }

const Measurement* MeasurementFile::find_cache(const std::string& module) const {
  const Measurement* aside = find_in(kv_cache, module);
  return aside != nullptr ? aside : find(module);
}

std::string MeasurementFile::shortage() const {
  const std::int64_t measured = num_samples.value_or(0), planned = planned_samples.value_or(0);
  return measured < planned ? io::message("{} of {} samples", measured, planned) : "";
}

std::string MeasurementFile::fingerprint() const {
  io::Fnv hash;
  for (const auto& m : modules) {
    hash.add(m.module);
    for (const auto& amax : m.inputs) hash.add(amax);
    for (const auto& amax : m.outputs.value_or(std::vector<Amax>{})) hash.add(amax);
    hash.add(m.weight.value_or(Amax{}));
  }
  return hash.text();
}

std::vector<FileBytes> measurement_bytes(const StatsName& name, const MeasurementFile& file) {
  MeasurementFile written = file;
  if (!written.local_rank.has_value() && name.rank.has_value()) written.local_rank = name.rank->index;
  auto files = stats_bytes(name, tree_of(written));
  files.emplace_back(name.mod_list(), io::json_text(name.mod_list(), Json(file.selected), 4));
  if (file.model.has_value()) {
    const Json json = {{"measurement", file.fingerprint()}, {"weights", to_json(*file.model)}};
    files.emplace_back(name.fingerprint(), io::json_text(name.fingerprint(), json, -1));
  }
  if (!file.kv_cache.empty()) {
    const Json json = {{"measurement", file.fingerprint()}, {"Nodes", nodes_json(file.kv_cache)}};
    files.emplace_back(name.kv_cache(), io::json_text(name.kv_cache(), json, 1));
  }
  return files;
}

std::vector<fs::path> write_measurements(const StatsName& name, const MeasurementFile& file) {
  return write_together(measurement_bytes(name, file));
}

std::vector<fs::path> write_measurements(const std::string& prefix, const MeasurementFile& file,
                                         const MeasurementName& name) {
  return write_measurements(StatsName{prefix, name.observer, "", name.rank}, file);
}

void check_writable(const std::string& prefix) {
  std::error_code error;
  fs::path folder = fs::absolute(StatsName{prefix}.json(), error).parent_path();
  while (!fs::exists(folder, error) && folder != folder.parent_path()) folder = folder.parent_path();
  if (!fs::is_directory(folder, error))
    io::fail_at(io::printable(folder.string(), 4096), "expected a folder for measurements, found a file");
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    io::fail(folder, "measurements can't be written there: {}", std::strerror(errno));
}

StatsName find_measurement(const std::string& where, const std::string& observer) {
  std::error_code ignored;
  const bool folder = fs::is_directory(where, ignored);
  if (auto name = folder ? std::nullopt : parse_stats_name(where)) return *name;
  const StatsName plain{where, observer};
  if (!folder && plain.exists()) return plain;
  const fs::path place = folder ? fs::path(where) : fs::path(where).parent_path();
  std::vector<StatsName> all, wanted;
  if (folder || fs::is_directory(place.empty() ? "." : place, ignored)) {
    for (const auto& name : list_stats(place.empty() ? "." : place)) {
      if (name.is_scales()) continue;
      if (!folder && fs::path(name.prefix).filename() != fs::path(where).filename()) continue;
      all.push_back(name);
      if (name.observer == observer && !name.rank.has_value()) wanted.push_back(name);
    }
  }
  if (wanted.size() == 1) return wanted[0];
  if (std::ranges::any_of(all, [&](const StatsName& n) { return n.observer == observer; }))
    std::erase_if(all, [&](const StatsName& n) { return n.observer != observer; });
  if (all.size() == 1 && all[0].rank.has_value() && all[0].rank->world > 1)
    io::fail_at(where,
                "expected one measurement, found that of one rank of {} ({}.json), whose values are not those of the "
                "others; name it if it is meant, or unify all",
                all[0].rank->world, fs::path(all[0].base()).filename().string());
  if (all.size() == 1) return all[0];
  if (all.empty() && !folder) return plain;  // reading it says what is missing
  if (all.empty()) io::fail_at(where, "expected a measurement (*_hooks_{}.json), found none", observer);
  const bool ranks =
      std::ranges::all_of(all, [&](const StatsName& n) { return n.same_set(all[0]) && n.rank.has_value(); });
  const std::string first = fs::path(all[0].base()).filename().string();
  if (ranks)
    io::fail_at(where, "expected one measurement, found {} ranks ({}.json, ...); name one, or unify them", all.size(),
                first);
  io::fail_at(where, "expected one measurement, found {} ({}.json, ...); name one by its prefix or file", all.size(),
              first);
}

MeasurementFile measurement_from_json(const Json& json, const std::string& name) {
  using enum MeasurementMode;
  const StatsHeader header = read_header(json, name, {name_of(dynamic_range), name_of(shape)});
  MeasurementFile file;
  file.num_samples = header.num_samples;
  file.planned_samples = header.planned_samples;
  file.global_rank = header.global_rank;
  file.local_rank = header.local_rank;
  file.mode = parse_enum<MeasurementMode>(header.mode).value();
  for (const auto& [module, node] : json["Nodes"].items())
    file.modules.push_back(node_from(module, node, file.mode, name + ": Nodes." + io::printable(module)));
  return file;
}

MeasurementFile read_measurements(const StatsName& name) {
  MeasurementFile file =
      measurement_from_json(read_stats(name), (fs::exists(name.json()) ? name.json() : name.npz()).string());
  if (fs::exists(name.mod_list())) {
    const Json list = io::read_json(name.mod_list());
    if (list.is_array())
      for (const auto& module : list)
        if (module.is_string()) file.selected.push_back(module.get<std::string>());
  }
  file.observer = name.observer;
  file.model = model_of(name, file);
  file.kv_cache = kv_cache_of(name, file);
  return file;
}

MeasurementFile read_measurements(const std::string& where) { return read_measurements(find_measurement(where)); }

std::filesystem::path backup_path(const std::filesystem::path& folder, const std::string& name) {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  ::localtime_r(&now, &local);
  char time[32];
  std::strftime(time, sizeof time, "%d-%m_%H-%M-%S", &local);
  const std::string first = (folder / ("backup_" + name + "_" + time)).string();
  std::filesystem::path path = first;
  for (int n = 2; std::filesystem::exists(path); ++n) path = first + "_" + std::to_string(n);
  return path;
}

std::filesystem::path observer_states_path(const StatsName& name) { return name.base() + ".observers"; }

Json to_json(const ObserverStates& states) {
  Json parameters = Json::object(), nodes = Json::object();
  for (const auto& [key, value] : states.parameters) parameters[key] = value;
  for (const auto& [module, node] : states.nodes) nodes[module] = node;
  return {{"Observer", states.observer},
          {"Format", recipes::name_of(states.format)},
          {"Fp8Max", states.fp8_max},
          {"Parameters", std::move(parameters)},
          {"Nodes", std::move(nodes)}};
}

ObserverStates read_observer_states(const std::filesystem::path& path) {
  const std::string name = path.string();
  const Json json = io::read_json(path);
  if (!json.is_object()) io::fail_at(name, "expected an object, found {}", json.type_name());
  const auto get = [&](const char* key) { return json.value(key, Json()); };
  const Json observer = get("Observer"), format = get("Format"), max = get("Fp8Max"), parameters = get("Parameters"),
             nodes = get("Nodes");
  ObserverStates states;
  if (!observer.is_string()) bad_state(name + ": key 'Observer'", "a name", observer);
  states.observer = observer.get<std::string>();
  if (format == "E5M2") {
    states.format = recipes::Format::E5M2;
  } else if (format != "E4M3") {
    bad_state(name + ": key 'Format'", "\"E4M3\" or \"E5M2\"", format);
  }
  if (!max.is_number() || !(max.get<double>() > 0) || max.get<double>() > 57344)
    bad_state(name + ": key 'Fp8Max'", "a number up to 57344", max);
  states.fp8_max = max.get<float>();
  if (!parameters.is_object()) bad_state(name + ": key 'Parameters'", "an object", parameters);
  for (const auto& [key, value] : parameters.items()) {
    if (!value.is_number()) bad_state(name + ": Parameters." + key, "a number", value);
    states.parameters[key] = value.get<double>();
  }
  if (!nodes.is_object()) bad_state(name + ": key 'Nodes'", "an object", nodes);
  for (const auto& [module, node] : nodes.items()) {
    check_node(node, name + ": Nodes." + module);
    states.nodes[module] = node;
  }
  return states;
}

void bad_state(const std::string& where, const std::string& expected, const io::Json& found) {
  io::fail<io::Error>("{}: expected {}, found {}", where, expected, in_message(found));
}

}  // namespace fp8::measure
