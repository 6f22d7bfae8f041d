// SPDX-License-Identifier: Apache-2.0
// A node of a plan by its name.
#pragma once
#include "fp8/quant/plan/plan.h"

namespace fp8::test {

/// Null if the plan has none of this name.
inline const quant::PlannedNode* find_node(const quant::Plan& plan, const std::string& name) {
  const auto found =
      std::find_if(plan.nodes.begin(), plan.nodes.end(), [&](const auto& node) { return node.info.name == name; });
  return found == plan.nodes.end() ? nullptr : &*found;
}

}  // namespace fp8::test
