// SPDX-License-Identifier: Apache-2.0
// The table of observers: those built in and those registered.
#include "fp8/measure/observers/observer.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "fp8/measure/observers/built_in_observers.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/ops/common/arguments.h"

namespace fp8::measure {
namespace {

/// What ObserverRegistrations added; everything in it belongs to one that lives.
struct Registered {
  std::mutex mutex;
  std::map<std::string, ObserverType> types;
};

Registered& registered() {
  static Registered table;
  return table;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const ObserverType* find_built_in(const std::string& name) {
  for (const auto& [built_in, type] : built_in_observer_types()) {
    if (built_in == name) return &type;
  }
  return nullptr;
}

}  // namespace

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
  throw io::Error(where + ": this kind of observer keeps no state");
}

double ObserverContext::parameter(std::string_view key, double otherwise) const {
  const auto found = parameters.find(key);
  return found != parameters.end() ? found->second : otherwise;
}

std::vector<std::string> observer_names() {
  std::vector<std::string> names;
  for (const auto& entry : built_in_observer_types()) names.push_back(entry.first);
  const std::lock_guard<std::mutex> lock(registered().mutex);
  for (const auto& entry : registered().types) names.push_back(entry.first);
  return names;
}

ObserverType find_observer(const std::string& name) {
  if (const auto* type = find_built_in(name)) return *type;
  {
    const std::lock_guard<std::mutex> lock(registered().mutex);
    if (const auto found = registered().types.find(name); found != registered().types.end()) return found->second;
  }
  throw std::invalid_argument("observer: found " + io::in_quotes(name) + ", allowed: " + joined(observer_names()));
}

ObserverRegistration::ObserverRegistration(std::string name, ObserverType type) : name_(std::move(name)) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  if (name_.empty() || !std::all_of(name_.begin(), name_.end(), allowed)) {
    throw std::invalid_argument("observer: found the name " + io::in_quotes(name_) +
                                ", allowed: lower case letters, digits and _");
  }
  if (!type.make) throw std::invalid_argument("observer " + io::in_quotes(name_) + ": make is missing");
  const std::lock_guard<std::mutex> lock(registered().mutex);
  if (find_built_in(name_) != nullptr || !registered().types.emplace(name_, std::move(type)).second) {
    throw std::invalid_argument("observer " + io::in_quotes(name_) + ": the name is taken");
  }
}

ObserverRegistration::~ObserverRegistration() {
  const std::lock_guard<std::mutex> lock(registered().mutex);
  registered().types.erase(name_);
}

}  // namespace fp8::measure
