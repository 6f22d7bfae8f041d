// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/observers/observer.h"

#include "fp8/runtime/ops/common/edge.h"

namespace fp8::measure {

const at::Tensor& Observed::values() const {
  if (!values_.defined()) {
    const auto type = tensor_.scalar_type();
    values_ = (runtime::ops::is_high_precision(type) ? tensor_ : tensor_.to(at::kFloat)).contiguous();
  }
  return values_;
}

void Observer::merge(const Observer&) {
  throw std::invalid_argument("this kind of observer does not merge: it has no merge()");
}

void Observer::observe_part(const Observed&, const PartOf&) {
  throw std::invalid_argument("this kind of observer takes whole tensors only: it has no observe_part()");
}

void Observer::restore(const io::Json&, const std::string& where) {
  io::fail<io::Error>("{}: this kind of observer keeps no state", where);
}

double ObserverContext::parameter(const configs::ObserverParameter& parameter) const {
  const auto found = parameters.find(parameter.name);
  if (found == parameters.end()) return parameter.otherwise;
  if (!parameter.takes(found->second))
    io::fail<std::invalid_argument>("{}: found {}, allowed: {}", parameter.name, found->second, parameter.allowed());
  return found->second;
}

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
  if (a.size() != b.size()) io::fail_at(where, "expected {} tensors, found {}", a.size(), b.size());
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
  for (std::size_t i = 0; i < list.size(); ++i)
    values.push_back(observer_of(states, list[i], where + "[" + std::to_string(i) + "]")->result());
  return values;
}

}  // namespace

ObserverType find_observer(const std::string& name) {
  for (ObserverType& type : observer_types()) {
    if (type.name != name) continue;
    if (!type.make) type.make = [name](const ObserverContext& context) { return make_built_in(name, context); };
    return std::move(type);
  }
  io::fail<std::invalid_argument>("observer: found {}, allowed: {}", io::in_quotes(name), io::joined(observer_names()));
}

void merge(ObserverStates& into, const ObserverStates& other, const std::string& where) {
  if (other.observer != into.observer)
    io::fail_at(where, "expected observer {}, found {}", io::in_quotes(into.observer), io::in_quotes(other.observer));
  if (other.parameters != into.parameters || other.format != into.format || other.fp8_max != into.fp8_max)
    io::fail_at(where, "the observers' parameters differ");
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
