// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/name_patterns.h"

#include <fnmatch.h>

#include <algorithm>

namespace fp8::configs {

std::string match_expression(std::string_view expression) { return "\\A(?:" + std::string(expression) + ")"; }

bool matches_wildcard(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

NamePatterns::NamePatterns(const std::vector<std::string>& patterns, std::string_view where) {
  for (const auto& pattern : patterns) add(pattern, where);
}

std::optional<std::size_t> NamePatterns::first_match(std::string_view name) const {
  const auto found = std::ranges::find_if(patterns_, [&](const PythonRegex& regex) { return regex.search(name); });
  if (found == patterns_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - patterns_.begin());
}

std::vector<std::size_t> NamePatterns::idle(const std::vector<std::string>& names) const {
  std::vector<std::size_t> idle;
  for (std::size_t i = 0; i < size(); ++i) {
    if (std::ranges::none_of(names, [&](const auto& name) { return patterns_[i].search(name); })) idle.push_back(i);
  }
  return idle;
}

}  // namespace fp8::configs
