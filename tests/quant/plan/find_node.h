// SPDX-License-Identifier: Apache-2.0
// Parts of a plan by their names.
#pragma once
#include "fp8/quant/plan/plan.h"

namespace fp8::test {

/// Null if the plan has none of this name.
inline const quant::PlannedNode* find_node(const quant::Plan& plan, const std::string& name) {
  const auto found =
      std::find_if(plan.nodes.begin(), plan.nodes.end(), [&](const auto& node) { return node.info.name == name; });
  return found == plan.nodes.end() ? nullptr : &*found;
}

/// Why a plan leaves a module or node out; empty where it does not.
inline std::string reason(const quant::Plan& plan, const std::string& name) {
  for (const auto& s : plan.skipped)
    if (s.name == name) return s.reason;
  return "";
}

}  // namespace fp8::test
