// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/observers/observer_types.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "fp8/measure/observers/observer_parameters.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::measure {
namespace {

using Parameters = std::vector<configs::ObserverParameter>;

/// In the order of messages and help.
const std::vector<ObserverType>& built_in_types() {
  static const std::vector<ObserverType> types = {
      {.name = "maxabs",
       .help = "the largest magnitude",
       .kept = Kept::amax,
       .parameters = Parameters{},
       .keeps_heads = true,
       .takes_parts = true},
      {.name = "maxabs_per_channel",
       .help = "the largest magnitude of each channel",
       .kept = Kept::amax,
       .parameters = Parameters{},
       .keeps_heads = true,
       .takes_parts = true},
      {.name = "save",
       .help = "every tensor, as a `.pt` file",
       .kept = Kept::tensors,
       .parameters = Parameters{kSaveMib}},
      {.name = "shape",
       .help = "the sizes of the last tensor",
       .kept = Kept::sizes,
       .parameters = Parameters{},
       .reads_values = false,
       .takes_parts = true},
      {.name = "histogram",
       .help = "the largest magnitude, and a histogram of magnitudes beside the file",
       .kept = Kept::amax,
       .parameters = Parameters{kBins},
       .keeps_state = true,
       .takes_parts = true},
      {.name = "percentile",
       .help = "a threshold below which that share of magnitudes lies",
       .parameters = Parameters{kPercentile, kBins},
       .keeps_state = true,
       .takes_parts = true},
      {.name = "mse",
       .help = "the threshold with the least expected squared error",
       .parameters = Parameters{kBins},
       .keeps_state = true,
       .takes_parts = true},
      {.name = "kl",
       .help = "the threshold whose distribution diverges least",
       .parameters = Parameters{kBins},
       .keeps_state = true,
       .takes_parts = true},
  };
  return types;
}

/// What ObserverRegistrations added; everything in it belongs to one that lives.
struct Registered {
  std::mutex mutex;
  std::map<std::string, ObserverType> types;
};

Registered& registered() {
  static Registered table;
  return table;
}

const ObserverType* find_built_in(const std::string& name) {
  for (const ObserverType& type : built_in_types()) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

}  // namespace

std::vector<ObserverType> observer_types() {
  std::vector<ObserverType> types = built_in_types();
  const std::lock_guard<std::mutex> lock(registered().mutex);
  for (const auto& entry : registered().types) types.push_back(entry.second);
  return types;
}

std::vector<std::string> observer_names(const std::function<bool(const ObserverType&)>& wanted) {
  std::vector<std::string> names;
  for (const ObserverType& type : observer_types()) {
    if (!wanted || wanted(type)) names.push_back(type.name);
  }
  return names;
}

ObserverRegistration::ObserverRegistration(ObserverType type) : name_(type.name) {
  if (!configs::is_observer_name(name_)) {
    throw std::invalid_argument("observer: found the name " + io::in_quotes(name_) +
                                ", allowed: " + configs::kObserverNames);
  }
  if (!type.make) throw std::invalid_argument("observer " + io::in_quotes(name_) + ": make is missing");
  const std::lock_guard<std::mutex> lock(registered().mutex);
  if (find_built_in(name_) != nullptr || !registered().types.emplace(name_, std::move(type)).second)
    throw std::invalid_argument("observer " + io::in_quotes(name_) + ": the name is taken");
}

ObserverRegistration::~ObserverRegistration() {
  const std::lock_guard<std::mutex> lock(registered().mutex);
  registered().types.erase(name_);
}

}  // namespace fp8::measure
