// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/observers/states.h"

#include <stdexcept>

#include "fp8/measure/observers/registry.h"
#include "fp8/runtime/io/base/error.h"

namespace fp8::measure {
namespace {

using io::Json;

[[noreturn]] void fail(const std::string& where, const std::string& what) { throw io::Error(where + ": " + what); }

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
    fail(where, error.what());
  }
}

Json merged(const ObserverStates& states, const Json& a, const Json& b, const std::string& where) {
  if (a.is_null()) return b;
  if (b.is_null()) return a;
  const auto observer = observer_of(states, a, where);
  try {
    observer->merge(*observer_of(states, b, where));
  } catch (const std::invalid_argument& error) {
    fail(where, error.what());
  }
  return observer->state();
}

/// Lists of as many tensors, element by element.
Json merged_lists(const ObserverStates& states, const Json& a, const Json& b, const std::string& where) {
  if (a.size() != b.size())
    fail(where, "expected " + std::to_string(a.size()) + " tensors, found " + std::to_string(b.size()));
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

void check_node(const Json& node, const std::string& where) {
  if (!node.is_object()) fail(where, std::string("expected an object, found ") + node.type_name());
  for (const char* key : {"inputs", "outputs"}) {
    if (node.contains(key) && !node[key].is_array()) bad_state(where + "." + key, "a list", node[key]);
  }
}

std::vector<Amax> results(const ObserverStates& states, const Json& list, const std::string& where) {
  std::vector<Amax> values;
  for (std::size_t i = 0; i < list.size(); ++i) {
    values.push_back(observer_of(states, list[i], where + "[" + std::to_string(i) + "]")->result());
  }
  return values;
}

}  // namespace

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
  if (!json.is_object()) fail(name, std::string("expected an object, found ") + json.type_name());
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

void merge(ObserverStates& into, const ObserverStates& other, const std::string& where) {
  if (other.observer != into.observer)
    fail(where, "expected observer " + io::in_quotes(into.observer) + ", found " + io::in_quotes(other.observer));
  if (other.parameters != into.parameters || other.format != into.format || other.fp8_max != into.fp8_max) {
    fail(where, "the observers' parameters differ");
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
