// SPDX-License-Identifier: Apache-2.0
// Whom a leaf's time goes to in a table of modules: "model.layers.0.mlp", else its phase "(optimizer)", else "(none)".
#pragma once
#include <string>

namespace fp8::runtime {

inline std::string owner_of(const std::string& module, const std::string& phase) {
  return module.empty() ? "(" + (phase.empty() ? "none" : phase) + ")" : module;
}

}  // namespace fp8::runtime
