// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/measurement_file.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <list>
#include <set>
#include <system_error>

#include "fp8/runtime/io/atomic_file.h"
#include "fp8/runtime/io/error.h"
#include "fp8/runtime/io/json.h"
#include "fp8/runtime/io/npz.h"

namespace fp8::measure {
namespace {

namespace fs = std::filesystem;
using io::Json;
using io::PyValue;

constexpr char kSuffix[] = "_hooks_maxabs";

// --- writing

Json to_json(const Amax& amax) {
  Json rows = Json::array();
  for (float v : amax) rows.push_back(Json::array({v}));
  return rows;
}

PyValue to_python(const Amax& amax) { return io::NdArray{{static_cast<std::int64_t>(amax.size()), 1}, amax}; }

Json json_of(const MeasurementFile& file) {
  Json nodes = Json::object();
  for (const auto& m : file.modules) {
    Json node = Json::object();
    node["inputs"] = Json::array();
    for (const auto& amax : m.inputs) node["inputs"].push_back(to_json(amax));
    if (m.outputs.has_value()) {
      node["outputs"] = Json::array();
      for (const auto& amax : *m.outputs) node["outputs"].push_back(to_json(amax));
    }
    if (m.weight.has_value()) node["params"] = Json{{"weight", to_json(*m.weight)}};
    nodes[m.module] = std::move(node);
  }
  Json out = Json::object();
  if (file.num_samples.has_value()) out["NumSamples"] = *file.num_samples;
  out["GlobalRank"] = nullptr;
  out["LocalRank"] = file.local_rank.has_value() ? Json(*file.local_rank) : Json(nullptr);
  out["Mode"] = "DynamicRange";
  out["Nodes"] = std::move(nodes);
  return out;
}

PyValue python_of(const MeasurementFile& file) {
  io::PyDict nodes;
  for (const auto& m : file.modules) {
    const auto list = [](const std::vector<Amax>& values) {
      io::PyList items;
      for (const auto& amax : values) items.items.push_back(to_python(amax));
      return items;
    };
    io::PyDict node;
    node.insert("inputs", list(m.inputs));
    if (m.outputs.has_value()) node.insert("outputs", list(*m.outputs));
    if (m.weight.has_value()) {
      io::PyDict params;
      params.insert("weight", to_python(*m.weight));
      node.insert("params", std::move(params));
    }
    nodes.insert(m.module, std::move(node));
  }
  io::PyDict out;
  if (file.num_samples.has_value()) out.insert("NumSamples", *file.num_samples);
  out.insert("GlobalRank", PyValue());
  out.insert("LocalRank", file.local_rank.has_value() ? PyValue(*file.local_rank) : PyValue());
  out.insert("Mode", "DynamicRange");
  out.insert("Nodes", std::move(nodes));
  return out;
}

/// Makes a folder and its parents; takes back what it made unless keep() is called.
class MadeFolders {
 public:
  explicit MadeFolders(const fs::path& folder) {
    std::error_code error;
    for (fs::path at = folder; !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
      made_.push_back(at);
      if (at == at.parent_path()) break;
    }
    if (folder.empty()) return;
    fs::create_directories(folder, error);
    if (!error && !fs::is_directory(folder, error)) error = std::make_error_code(std::errc::not_a_directory);
    if (!error) return;
    remove();
    throw io::Error(io::printable(folder.string(), 4096) + ": can't be created: " + error.message());
  }
  ~MadeFolders() { remove(); }
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;
  void keep() { made_.clear(); }

 private:
  void remove() noexcept {
    std::error_code ignored;  // one that is not empty is somebody else's by now, and stays
    for (const auto& path : made_) fs::remove(path, ignored);
    made_.clear();
  }
  std::vector<fs::path> made_;  // the deepest first
};

// --- reading

[[noreturn]] void fail(const std::string& where, const std::string& what) { throw io::Error(where + ": " + what); }

void check_value(double v, const std::string& where) {
  if (!std::isfinite(v) || v < 0 || v > 3.4028234663852886e38) fail(where, "expected a finite amax >= 0, found " + std::to_string(v));
}

Amax amax_from(const Json& value, const std::string& where) {
  if (!value.is_array() || value.empty()) fail(where, "expected [[amax]], found " + std::string(value.type_name()));
  Amax amax;
  for (const auto& row : value) {
    const Json& v = row.is_array() && row.size() == 1 ? row[0] : row;
    if (!v.is_number()) fail(where, "expected [[amax]], found " + row.dump().substr(0, 40));
    check_value(v.get<double>(), where);
    amax.push_back(v.get<float>());
  }
  return amax;
}

std::vector<Amax> list_from(const Json& value, const std::string& where) {
  if (!value.is_array()) fail(where, "expected a list of tensors, found " + std::string(value.type_name()));
  std::vector<Amax> list;
  for (std::size_t i = 0; i < value.size(); ++i) list.push_back(amax_from(value[i], where + "[" + std::to_string(i) + "]"));
  return list;
}

MeasurementFile from_json(const Json& json, const std::string& name) {
  if (!json.is_object()) fail(name, "expected an object, found " + std::string(json.type_name()));
  if (!json.contains("Nodes") || !json["Nodes"].is_object()) fail(name, "expected a measurement, found no object 'Nodes'");
  if (const auto mode = json.value("Mode", Json("DynamicRange")); mode != "DynamicRange") {
    fail(name, "expected 'Mode' \"DynamicRange\" (a measurement), found " + mode.dump());
  }
  MeasurementFile file;
  if (const auto samples = json.value("NumSamples", Json()); samples.is_number_integer()) {
    file.num_samples = samples.get<std::int64_t>();
  } else if (!samples.is_null()) {
    fail(name, "key 'NumSamples': expected an integer or null, found " + io::printable(samples.dump(-1, ' ', true), 40));
  }
  if (json.contains("LocalRank") && json["LocalRank"].is_number_integer()) file.local_rank = json["LocalRank"].get<std::int64_t>();
  for (const auto& [module, node] : json["Nodes"].items()) {
    const std::string where = name + ": Nodes." + module;
    if (!node.is_object()) fail(where, "expected an object, found " + std::string(node.type_name()));
    Measurement m{module, {}, std::nullopt, std::nullopt};
    if (node.contains("inputs")) m.inputs = list_from(node["inputs"], where + ".inputs");
    if (node.contains("outputs")) m.outputs = list_from(node["outputs"], where + ".outputs");
    if (node.contains("params") && node["params"].is_object() && node["params"].contains("weight")) {
      m.weight = amax_from(node["params"]["weight"], where + ".params.weight");
    }
    file.modules.push_back(std::move(m));
  }
  return file;
}

/// The same tree as JSON, so that one reader serves both forms. Arrays of shape [C, 1] become [[v], ...].
Json json_from(const PyValue& value) {
  if (const auto* dict = value.get_if<io::PyDict>()) {
    Json out = Json::object();
    for (const auto& [key, item] : dict->items()) {
      const auto* text = std::get_if<std::string>(&key);
      out[text != nullptr ? *text : std::to_string(std::get<std::int64_t>(key))] = json_from(item);
    }
    return out;
  }
  const auto list = [](const std::vector<PyValue>& items) {
    Json out = Json::array();
    for (const auto& item : items) out.push_back(json_from(item));
    return out;
  };
  if (const auto* items = value.get_if<io::PyList>()) return list(items->items);
  if (const auto* items = value.get_if<io::PyTuple>()) return list(items->items);
  if (const auto* array = value.get_if<io::NdArray>()) return to_json(array->data);
  if (const auto* text = value.get_if<std::string>()) return *text;
  if (const auto* integer = value.get_if<std::int64_t>()) return *integer;
  if (const auto* real = value.get_if<double>()) return *real;
  if (const auto* flag = value.get_if<bool>()) return *flag;
  return nullptr;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

const Measurement* MeasurementFile::find(const std::string& module) const {
  for (const auto& m : modules) {
    if (m.module == module) return &m;
  }
  return nullptr;
}

std::string MeasurementFile::fingerprint() const {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](const void* data, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
  };
  const auto add_all = [&](const Amax& amax) { add(amax.data(), amax.size() * sizeof(float)); };
  for (const auto& m : modules) {
    add(m.module.data(), m.module.size() + 1);
    for (const auto& amax : m.inputs) add_all(amax);
    for (const auto& amax : m.outputs.value_or(std::vector<Amax>{})) add_all(amax);
    add_all(m.weight.value_or(Amax{}));
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::vector<fs::path> write_measurements(const std::string& prefix, const MeasurementFile& file) {
  const std::string base = prefix + kSuffix;
  const std::vector<fs::path> paths = {base + ".json", base + ".npz", base + "_mod_list.json"};
  const std::string contents[] = {io::json_text(paths[0], json_of(file), 4), io::npz_bytes(paths[1], python_of(file)),
                                  io::json_text(paths[2], Json(file.selected), 4)};
  MadeFolders folders(paths[0].parent_path());
  std::list<io::AtomicFile> files;  // all written before the first appears: a full disk leaves none of them
  for (std::size_t i = 0; i < paths.size(); ++i) {
    files.emplace_back(paths[i], contents[i].size());
    files.back().append(contents[i]);
  }
  for (auto& written : files) written.commit();
  folders.keep();
  return paths;
}

void check_writable(const std::string& prefix) {
  std::error_code error;
  fs::path folder = fs::absolute(prefix + kSuffix, error).parent_path();
  while (!fs::exists(folder, error) && folder != folder.parent_path()) folder = folder.parent_path();
  if (!fs::is_directory(folder, error)) fail(io::printable(folder.string(), 4096), "expected a folder for measurements, found a file");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    fail(io::printable(folder.string(), 4096), std::string("measurements can't be written there: ") + std::strerror(errno));
  }
}

std::string find_measurements(const std::string& where) {
  for (const std::string& end : {std::string(kSuffix) + ".json", std::string(kSuffix) + ".npz"}) {
    if (ends_with(where, end)) return where.substr(0, where.size() - end.size());
  }
  if (!fs::is_directory(where)) return where;
  std::set<std::string> found;  // prefixes: the .json and the .npz of one measurement have the same
  for (const auto& entry : fs::directory_iterator(where)) {
    const std::string path = entry.path().string();
    for (const std::string& end : {std::string(kSuffix) + ".json", std::string(kSuffix) + ".npz"}) {
      if (ends_with(path, end)) found.insert(path.substr(0, path.size() - end.size()));
    }
  }
  if (found.empty()) fail(where, std::string("expected a measurement (*") + kSuffix + ".json), found none");
  if (found.size() > 1) fail(where, "expected one measurement, found " + std::to_string(found.size()) + "; name one by its prefix");
  return *found.begin();
}

MeasurementFile read_measurements(const std::string& where) {
  const std::string base = find_measurements(where) + kSuffix;
  const bool json = fs::exists(base + ".json");
  if (!json && !fs::exists(base + ".npz")) fail(base + ".json", "expected a measurement, found no such file (nor " + base + ".npz)");
  MeasurementFile file = json ? from_json(io::read_json(base + ".json"), base + ".json") : from_json(json_from(io::read_npz(base + ".npz")), base + ".npz");
  if (fs::exists(base + "_mod_list.json")) {
    const Json list = io::read_json(base + "_mod_list.json");
    if (list.is_array()) {
      for (const auto& name : list) {
        if (name.is_string()) file.selected.push_back(name.get<std::string>());
      }
    }
  }
  return file;
}

}  // namespace fp8::measure
