// SPDX-License-Identifier: Apache-2.0
// The row of a table of modules that a leaf's time belongs to: "model.layers.0.mlp", else its phase "(optimizer)", else
// "(none)".
#pragma once
#include <string>

namespace fp8::runtime {

inline std::string owner_of(const std::string& module, const std::string& phase) {
  return module.empty() ? "(" + (phase.empty() ? "none" : phase) + ")" : module;
}

}  // namespace fp8::runtime
