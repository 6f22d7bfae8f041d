// SPDX-License-Identifier: Apache-2.0
// What a caller's patterns say of a module: include, exclude and ignore of PlanOptions. No torch here.
#pragma once
#include <string>
#include <vector>

#include "fp8/configs/name_patterns.h"
#include "fp8/quant/names/expert_weights.h"
#include "fp8/quant/plan/plan.h"

namespace fp8::quant {

class ModulePatterns {
 public:
  /// options must outlive this. Throws io::Error for an expression that does not compile.
  explicit ModulePatterns(const PlanOptions& options);

  bool empty() const { return include_.empty() && exclude_.empty(); }
  bool includes(const std::string& module) const;
  /// "excluded by --exclude"; empty: no pattern excludes it. type: its class, by which ignore may name it.
  std::string excludes(const std::string& module, const std::string& type) const;
  /// Throws io::Error with the nearest module for a pattern that means none of this model: most often a slip.
  void require_used(const std::vector<ModuleInfo>& modules, const std::vector<NodeInfo>& nodes) const;

 private:
  const PlanOptions& options_;
  configs::NamePatterns include_, exclude_;
};

/// For a model in memory: patterns and `keep` mean its checkpoint's names.
void name_as_in_checkpoint(PlanOptions& options, const NamesInCheckpoint& names);

}  // namespace fp8::quant
