// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/scale_file/scale_file.h"

#include <tuple>

#include "fp8/runtime/io/base/checksum.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using io::Json, io::PyValue;
using measure::in_message, measure::StatsName;

// --- writing

void check_written(const std::vector<float>& values, const std::string& module) {
  for (float v : values)
    if (!std::isfinite(v) || v <= 0)
      io::fail<std::invalid_argument>("{}: expected finite scales > 0, found {}", module, v);
  if (values.empty()) io::fail<std::invalid_argument>("{}: expected a scale, found none", module);
}

PyValue list_of(const std::vector<float>& values) {
  return io::NdArray{{static_cast<std::int64_t>(values.size())}, values};
}

PyValue value_of(const StoredScale& s, const std::string& module, bool weight) {
  check_written(s.values, module);
  if (!s.per_channel) {
    if (s.values.size() != 1)
      io::fail<std::invalid_argument>("{}: expected one scale, found {}", module, s.values.size());
    return io::NdArray{{}, s.values};
  }
  if (!weight || s.in.empty()) return list_of(s.values);
  io::PyDict dict;
  dict.insert(std::int64_t{0}, list_of(s.values));
  dict.insert(std::int64_t{1}, list_of(s.in));
  return dict;
}

PyValue tree_of(const ScaleFile& file, const std::optional<std::int64_t>& local_rank) {
  io::PyDict nodes;
  for (const auto& m : file.modules) {
    const auto list = [&](const std::vector<StoredScale>& scales) {
      io::PyList items;
      for (const auto& s : scales) items.items.push_back(value_of(s, m.module, false));
      return items;
    };
    io::PyDict node, params;
    node.insert("inputs", list(m.inputs));
    node.insert("outputs", list(m.outputs));
    if (m.weight.has_value()) params.insert("weight", value_of(*m.weight, m.module, true));
    node.insert("params", std::move(params));
    nodes.insert(m.module, std::move(node));
  }
  io::PyDict out = measure::header_of({std::nullopt, std::nullopt, local_rank, "Scale"});
  out.insert("Nodes", std::move(nodes));
  return out;
}

// --- reading

class Reader {
 public:
  explicit Reader(std::string name) : name_(std::move(name)) {}

  ScaleFile read(const Json& json) {
    const auto header = measure::read_header(json, name_, {"Scale"});
    file_.local_rank = header.local_rank;
    for (const auto& [module, node] : json["Nodes"].items()) read_node(module, node);
    if (zeros_ > 0)
      file_.warnings.push_back(
          io::message("{}: {} scales are 0 (the first in '{}'), read as 1: a tensor of zeros was measured", name_,
                      zeros_, first_zero_));
    return std::move(file_);
  }

 private:
  void read_node(const std::string& module, const Json& node) {
    const std::string where = name_ + ": Nodes." + io::printable(module);
    if (!node.is_object()) io::fail_at(where, "expected an object, found {}", node.type_name());
    ModuleScales m;
    m.module = module;
    module_ = io::printable(module);
    for (const auto& [key, old_key, target] :
         {std::tuple{"inputs", "input", &m.inputs}, std::tuple{"outputs", "output", &m.outputs}}) {
      const auto it = node.contains(key) ? node.find(key) : node.find(old_key);
      if (it == node.end() || it->is_null()) continue;
      // One output may stand without its list.
      if (it->is_number()) {
        target->push_back(scale(*it, where + "." + key));
        continue;
      }
      if (!it->is_array()) io::fail_at(where + "." + key, "expected a list of scales, found {}", it->type_name());
      for (std::size_t i = 0; i < it->size(); ++i)
        target->push_back(scale((*it)[i], where + "." + key + "[" + std::to_string(i) + "]"));
    }
    const auto params = node.find("params");
    if (params != node.end() && params->is_object() && params->contains("weight"))
      m.weight = weight((*params)["weight"], where + ".params.weight");
    file_.modules.push_back(std::move(m));
  }

  float number(const Json& value, const std::string& where) {
    if (!value.is_number()) io::fail_at(where, "expected a scale, found {}", in_message(value));
    const double v = value.get<double>();
    const float f = value.get<float>();
    if (!std::isfinite(v) || v < 0 || !std::isfinite(f))
      io::fail_at(where, "expected a finite scale > 0, found {}", in_message(value));
    if (f > 0) return f;
    if (zeros_++ == 0) first_zero_ = module_;
    return 1.0f;
  }

  /// v, [v, ...] or nested lists with one value each: [[v], ...].
  StoredScale scale(const Json& value, const std::string& where) {
    if (value.is_number()) return StoredScale::of(number(value, where));
    if (!value.is_array() || value.empty()) io::fail_at(where, "expected a scale, found {}", in_message(value));
    StoredScale s;
    s.per_channel = true;
    for (const auto& item : value)
      s.values.push_back(number(item.is_array() && item.size() == 1 ? item[0] : item, where));
    return s;
  }

  StoredScale weight(const Json& value, const std::string& where) {
    if (!value.is_object()) return scale(value, where);
    if (value.size() != 2 || !value.contains("0") || !value.contains("1"))
      io::fail_at(where, "expected a scale or {0: per output channel, 1: per input channel}, found {}",
                  in_message(value));
    StoredScale s = scale(value["0"], where + ".0");
    s.per_channel = true;
    s.in = scale(value["1"], where + ".1").values;
    return s;
  }

  std::string name_, module_, first_zero_;
  ScaleFile file_;
  std::size_t zeros_ = 0;
};

/// The fingerprint file: empty origin and false if there is none or it is of other values.
bool read_origin(const StatsName& name, const ScaleFile& file, ScaleOrigin& origin) {
  std::error_code ignored;
  if (!fs::exists(name.fingerprint(), ignored)) return false;
  const Json json = io::read_json(name.fingerprint());
  const auto text = [&](const char* key) {
    if (!json.is_object() || !json.contains(key) || !json[key].is_string())
      io::fail_at(name.fingerprint().string(), "key '{}': expected a string", key);
    return json[key].get<std::string>();
  };
  origin = {text("model"), text("measurement"), text("method")};
  return text("scales") == file.fingerprint();
}

std::string changed(const ScaleOrigin& stored, const ScaleOrigin& wanted) {
  const auto differs = [](const std::string& a, const std::string& b) { return !a.empty() && !b.empty() && a != b; };
  std::vector<std::string> what;
  if (differs(stored.model, wanted.model)) what.push_back("model");
  if (differs(stored.measurement, wanted.measurement)) what.push_back("measurement");
  if (differs(stored.method, wanted.method)) what.push_back("scale method");
  return io::joined(what);
}

using measure::Measurement, measure::MeasurementFile;

constexpr measure::ExpertValues kPlace = measure::ExpertValues::inputs;

MeasurementFile as_file(const ScaleFile& file) {
  MeasurementFile out;
  out.local_rank = file.local_rank;
  out.modules = as_nodes(file);
  return out;
}

std::vector<StoredScale> scales_of(const std::vector<measure::Amax>& values, const std::vector<StoredScale>* like) {
  std::vector<StoredScale> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool per_channel = values[i].size() != 1 || (like != nullptr && i < like->size() && (*like)[i].per_channel);
    out.push_back({values[i], {}, per_channel});
  }
  return out;
}

/// Back from nodes. `like`: modules that say how a value was stored, by any name that a node may have had.
ScaleFile from_nodes(const MeasurementFile& nodes, const std::map<std::string, const ModuleScales*>& like) {
  ScaleFile out;
  out.local_rank = nodes.local_rank;
  for (const auto& node : nodes.modules) {
    const auto it = like.find(node.module);
    const ModuleScales* model = it == like.end() ? nullptr : it->second;
    ModuleScales m;
    m.module = node.module;
    m.inputs = scales_of(node.inputs, model != nullptr ? &model->inputs : nullptr);
    if (node.outputs.has_value()) m.outputs = scales_of(*node.outputs, model != nullptr ? &model->outputs : nullptr);
    if (node.weight.has_value()) {
      const bool known = model != nullptr && model->weight.has_value();
      m.weight = StoredScale{*node.weight, known ? model->weight->in : std::vector<float>{},
                             node.weight->size() != 1 || (known && model->weight->per_channel)};
    }
    out.modules.push_back(std::move(m));
  }
  return out;
}

/// One entry of a list of experts stands for all of them: the same layer's weights are stored alike.
void add_like(const ScaleFile& file, std::map<std::string, const ModuleScales*>& like) {
  for (const auto& m : file.modules) like.emplace(m.module, &m);
}

void use_any_expert(const std::vector<Measurement>& nodes, std::map<std::string, const ModuleScales*>& like) {
  std::map<std::string, const ModuleScales*> lists;
  for (const auto& [name, m] : like)
    if (measure::is_expert(name)) lists.emplace(name.substr(0, name.rfind('.')), m);
  for (const auto& node : nodes) {
    if (!measure::is_expert(node.module)) continue;
    const auto it = lists.find(node.module.substr(0, node.module.rfind('.')));
    if (it != lists.end()) like.emplace(node.module, it->second);
  }
}

}  // namespace

const ModuleScales* ScaleFile::find(const std::string& module) const {
  const auto it = std::ranges::find_if(modules, [&](const ModuleScales& m) { return m.module == module; });
  return it == modules.end() ? nullptr : &*it;
}

std::string ScaleFile::fingerprint() const {
  io::Fnv hash;
  const auto add = [&](const StoredScale& s) {
    const auto n = static_cast<std::uint64_t>(s.values.size());
    hash.add(&n, sizeof n);
    hash.add(s.values);
    hash.add(s.in);
  };
  for (const auto& m : modules) {
    hash.add(m.module);
    for (const auto& s : m.inputs) add(s);
    hash.add("outputs");
    for (const auto& s : m.outputs) add(s);
    hash.add("weight");
    if (m.weight.has_value()) add(*m.weight);
  }
  return hash.text();
}

std::vector<measure::FileBytes> scale_bytes(const StatsName& name, const ScaleFile& file,
                                            const std::optional<ScaleOrigin>& origin) {
  if (!name.is_scales())
    io::fail<std::invalid_argument>("{}: expected the name of a scale file, found no method", name.base());
  const auto local_rank = file.local_rank.has_value() || !name.rank.has_value()
                              ? file.local_rank
                              : std::optional<std::int64_t>(name.rank->index);
  auto files = measure::stats_bytes(name, tree_of(file, local_rank));
  if (origin.has_value()) {
    const Json json = {{"scales", file.fingerprint()},
                       {"model", origin->model},
                       {"measurement", origin->measurement},
                       {"method", origin->method}};
    files.emplace_back(name.fingerprint(), io::json_text(name.fingerprint(), json, 4));
  }
  return files;
}

std::vector<fs::path> write_scales(const StatsName& name, const ScaleFile& file,
                                   const std::optional<ScaleOrigin>& origin) {
  return measure::write_together(scale_bytes(name, file, origin));
}

ScaleFile scales_from_json(const Json& json, const std::string& name) { return Reader(name).read(json); }

ScaleFile read_scales(const StatsName& name) {
  return scales_from_json(measure::read_stats(name), (fs::exists(name.json()) ? name.json() : name.npz()).string());
}

ScaleChoice choose_scales(const StatsName& name, const ScaleOrigin& wanted, bool recalc_scales) {
  ScaleChoice choice;
  if (!name.exists()) return choice;
  ScaleFile file = read_scales(name);
  ScaleOrigin stored;
  const std::string path = name.json().string();
  if (!read_origin(name, file, stored)) {
    choice.state = ScaleState::foreign;
    if (recalc_scales) return choice;
    choice.warning =
        path +
        ": nothing says what these scales were made of; they are used as they are (recalc_scales computes them anew)";
  } else if (const std::string what = changed(stored, wanted); !what.empty()) {
    choice.state = ScaleState::stale;
    choice.warning = path + ": made of another " + what + "; the scales are computed anew";
    return choice;
  } else {
    choice.state = ScaleState::fresh;
    if (recalc_scales) return choice;
  }
  choice.scales = std::move(file);
  return choice;
}

std::vector<Measurement> as_nodes(const ScaleFile& file) {
  std::vector<Measurement> nodes;
  for (const auto& m : file.modules) {
    Measurement node{m.module, {}, std::nullopt, std::nullopt};
    for (const auto& s : m.inputs) node.inputs.push_back(s.values);
    node.outputs.emplace();
    for (const auto& s : m.outputs) node.outputs->push_back(s.values);
    if (m.weight.has_value()) node.weight = m.weight->values;
    nodes.push_back(std::move(node));
  }
  return nodes;
}

ScaleFile unify(const std::vector<ScaleFile>& group, const std::vector<std::string>& names, bool experts,
                std::vector<std::string>& warnings) {
  std::vector<MeasurementFile> files;
  std::map<std::string, const ModuleScales*> like;
  for (const auto& file : group) {
    files.push_back(as_file(file));
    add_like(file, like);
  }
  const MeasurementFile out = measure::unify(files, names, {experts, kPlace}, warnings);
  use_any_expert(out.modules, like);
  return from_nodes(out, like);
}

ScaleFile expand(const ScaleFile& file, const configs::Rank& rank, const std::string& name) {
  std::map<std::string, const ModuleScales*> like;
  add_like(file, like);
  return from_nodes(measure::expand(as_file(file), rank, {true, kPlace}, name), like);
}

std::vector<std::string> apply_cache_ranges(ScaleFile& file) {
  std::vector<Measurement> nodes = as_nodes(file);
  const auto changed = measure::apply_cache_ranges(nodes);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    auto& m = file.modules[i];
    io::ensure(nodes[i].module == m.module, "nodes in the order of the file");
    if (std::ranges::find(changed, m.module) == changed.end()) continue;
    const bool single =
        nodes[i].inputs[0].size() == 1 && nodes[i].inputs[1].size() == 1 && m.inputs[1].values.size() == 1;
    const bool product = single && m.outputs.size() == 1 &&
                         m.outputs[0].values == std::vector<float>{m.inputs[0].values[0] * m.inputs[1].values[0]};
    m.inputs[1] = {nodes[i].inputs[1], {}, nodes[i].inputs[1].size() != 1};
    if (product) m.outputs[0] = StoredScale::of(m.inputs[0].values[0] * m.inputs[1].values[0]);
  }
  return changed;
}

}  // namespace fp8::quant
