// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/observers/states.h"

#include "fp8/runtime/io/base/file.h"

namespace fp8::measure {
namespace {

using io::Json;

void check_node(const Json& node, const std::string& where) {
  if (!node.is_object()) io::fail_at(where, std::string("expected an object, found ") + node.type_name());
  for (const char* key : {"inputs", "outputs"}) {
    if (node.contains(key) && !node[key].is_array()) bad_state(where + "." + key, "a list", node[key]);
  }
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
  if (!json.is_object()) io::fail_at(name, std::string("expected an object, found ") + json.type_name());
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
  const std::string text = found.dump(-1, ' ', true, io::Json::error_handler_t::replace);
  throw io::Error(where + ": expected " + expected + ", found " + io::printable(text, 40));
}

}  // namespace fp8::measure
