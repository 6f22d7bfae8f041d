// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/plan/module_patterns.h"

#include <algorithm>
#include <set>

#include "fp8/runtime/io/base/fail.h"

namespace fp8::quant {

ModulePatterns::ModulePatterns(const PlanOptions& options)
    : options_(options),
      include_(options.include, io::option("include")),
      exclude_(options.exclude, io::option("exclude")) {
  for (const auto& entry : options.ignore) exclude_.add_ignored(entry, io::option("ignore"));
}

bool ModulePatterns::includes(const std::string& module) const {
  return !include_.empty() &&
         std::ranges::any_of(options_.names_of(module), [&](const auto& name) { return include_.matches(name); });
}

std::string ModulePatterns::excludes(const std::string& module, const std::string& type) const {
  if (exclude_.empty()) return "";
  for (const auto& name : options_.names_of(module)) {
    if (const auto found = exclude_.first_match(name)) return "excluded by " + exclude_[*found].where();
  }
  return std::ranges::find(options_.ignore, type) == options_.ignore.end() ? "" : "excluded by " + io::option("ignore");
}

void ModulePatterns::require_used(const std::vector<ModuleInfo>& modules, const std::vector<NodeInfo>& nodes) const {
  if (empty()) return;
  std::vector<std::string> names = options_.checkpoint_names;
  std::set<std::string> types;
  const auto add = [&](const std::string& module, const std::string& type) {
    for (auto& name : options_.names_of(module)) names.push_back(std::move(name));
    types.insert(type);
  };
  for (const auto& m : modules) add(m.name, m.type);
  for (const auto& n : nodes) add(n.name, n.type);
  include_.require_used(names);
  names.insert(names.end(), options_.other_names.begin(), options_.other_names.end());
  configs::NamePatterns excluded(options_.exclude, io::option("exclude"));
  for (const auto& entry : options_.ignore) {
    if (!types.contains(entry)) excluded.add_ignored(entry, io::option("ignore"));
  }
  excluded.require_used(names);
}

void name_as_in_checkpoint(PlanOptions& options, const NamesInCheckpoint& names) {
  options.called = [names](const std::string& module) { return names.all_of(module); };
  options.checkpoint_names = names.everything();
}

}  // namespace fp8::quant
