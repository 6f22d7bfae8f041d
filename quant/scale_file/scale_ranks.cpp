// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/scale_file/scale_ranks.h"

#include <algorithm>
#include <map>

#include "fp8/runtime/io/base/file.h"

namespace fp8::quant {
namespace {

using measure::Measurement;
using measure::MeasurementFile;

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
  for (const auto& [name, m] : like) {
    if (measure::is_expert(name)) lists.emplace(name.substr(0, name.rfind('.')), m);
  }
  for (const auto& node : nodes) {
    if (!measure::is_expert(node.module)) continue;
    const auto it = lists.find(node.module.substr(0, node.module.rfind('.')));
    if (it != lists.end()) like.emplace(node.module, it->second);
  }
}

}  // namespace

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
    if (std::find(changed.begin(), changed.end(), m.module) == changed.end()) continue;
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
