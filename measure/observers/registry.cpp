// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/observers/registry.h"

#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "fp8/measure/observers/built_in_observers.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::measure {
namespace {

/// What makes the observers of the library, each of which has its row in observer_types.cpp.
constexpr struct {
  std::string_view name;
  std::unique_ptr<Observer> (*make)(const ObserverContext&);
} kMakers[] = {
    {"maxabs", make_maxabs},
    {"maxabs_per_channel", make_maxabs_per_channel},
    {"save", make_save},
    {"shape", make_shape},
    {"histogram", make_histogram},
    {"percentile", make_percentile},
    {"mse", make_mse},
    {"kl", make_kl},
};

}  // namespace

ObserverType find_observer(const std::string& name) {
  for (ObserverType& type : observer_types()) {
    if (type.name != name) continue;
    for (const auto& maker : kMakers) {
      if (maker.name == name) type.make = maker.make;
    }
    return std::move(type);
  }
  throw std::invalid_argument("observer: found " + io::in_quotes(name) + ", allowed: " + io::joined(observer_names()));
}

}  // namespace fp8::measure
