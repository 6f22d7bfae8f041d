// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/observers/merge_states.h"

#include <memory>
#include <stdexcept>

#include "fp8/measure/observers/registry.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::measure {
namespace {

using io::Json;

/// An observer that knows what `state` says.
std::unique_ptr<Observer> observer_of(const ObserverStates& states, const Json& state, const std::string& where) {
  ObserverContext context;
  context.format = states.format;
  context.fp8_max = states.fp8_max;
  context.parameters = states.parameters;
  context.affordable = true;  // as in the calibration
  try {
    auto observer = find_observer(states.observer).make(context);
    observer->restore(state, where);
    return observer;
  } catch (const std::invalid_argument& error) {
    io::fail_at(where, error.what());
  }
}

Json merged(const ObserverStates& states, const Json& a, const Json& b, const std::string& where) {
  if (a.is_null()) return b;
  if (b.is_null()) return a;
  const auto observer = observer_of(states, a, where);
  try {
    observer->merge(*observer_of(states, b, where));
  } catch (const std::invalid_argument& error) {
    io::fail_at(where, error.what());
  }
  return observer->state();
}

/// Lists of as many tensors, element by element.
Json merged_lists(const ObserverStates& states, const Json& a, const Json& b, const std::string& where) {
  if (a.size() != b.size())
    io::fail_at(where, "expected " + std::to_string(a.size()) + " tensors, found " + std::to_string(b.size()));
  Json list = Json::array();
  for (std::size_t i = 0; i < a.size(); ++i)
    list.push_back(merged(states, a[i], b[i], where + "[" + std::to_string(i) + "]"));
  return list;
}

void merge_node(const ObserverStates& states, Json& into, const Json& other, const std::string& where) {
  for (const char* key : {"inputs", "outputs"}) {
    if (!other.contains(key)) {
      into.erase(key);  // seen by one alone, they would stand for half of the data
    } else if (into.contains(key)) {
      into[key] = merged_lists(states, into[key], other[key], where + "." + key);
    }
  }
  if (into.contains("weight") && other.contains("weight"))
    into["weight"] = merged(states, into["weight"], other["weight"], where + ".weight");
}

std::vector<Amax> results(const ObserverStates& states, const Json& list, const std::string& where) {
  std::vector<Amax> values;
  for (std::size_t i = 0; i < list.size(); ++i) {
    values.push_back(observer_of(states, list[i], where + "[" + std::to_string(i) + "]")->result());
  }
  return values;
}

}  // namespace

void merge(ObserverStates& into, const ObserverStates& other, const std::string& where) {
  if (other.observer != into.observer)
    io::fail_at(where,
                "expected observer " + io::in_quotes(into.observer) + ", found " + io::in_quotes(other.observer));
  if (other.parameters != into.parameters || other.format != into.format || other.fp8_max != into.fp8_max) {
    io::fail_at(where, "the observers' parameters differ");
  }
  for (const auto& [module, node] : other.nodes) {
    const auto [found, is_new] = into.nodes.emplace(module, node);
    if (!is_new) merge_node(into, found->second, node, where + ": Nodes." + module);
  }
}

void apply(const ObserverStates& states, MeasurementFile& file, const std::string& where) {
  for (Measurement& m : file.modules) {
    const auto found = states.nodes.find(m.module);
    if (found == states.nodes.end()) continue;
    const Json& node = found->second;
    const std::string at = where + ": Nodes." + m.module;
    if (node.contains("inputs")) m.inputs = results(states, node["inputs"], at + ".inputs");
    if (node.contains("outputs") && m.outputs.has_value())
      m.outputs = results(states, node["outputs"], at + ".outputs");
    if (node.contains("weight") && m.weight.has_value())
      m.weight = observer_of(states, node["weight"], at + ".weight")->result();
  }
}

}  // namespace fp8::measure
