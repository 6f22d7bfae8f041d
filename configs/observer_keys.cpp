// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/observer_keys.h"

#include <cmath>
#include <cstdio>

#include "fp8/runtime/io/base/text.h"

namespace fp8::configs {
namespace {

/// "65536", "1e9".
std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  std::string found = text;
  if (const auto at = found.find("e+0"); at != std::string::npos) found.erase(at + 1, 2);
  return found;
}

}  // namespace

bool ObserverParameter::takes(double value) const {
  return integer ? value >= low && value <= high && value == std::floor(value) : value > low && value <= high;
}

std::string ObserverParameter::allowed() const {
  return integer ? "an integer from " + text_of(low) + " to " + text_of(high)
                 : "a number above " + text_of(low) + ", up to " + text_of(high);
}

bool is_observer_name(std::string_view name) { return io::is_name(name, "_"); }

}  // namespace fp8::configs
