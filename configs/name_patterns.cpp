// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/name_patterns.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

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

namespace {

/// The name whose last parts, as many as the pattern has, are nearest to it: "model.lm_head" to "lm_hed".
std::string nearest_name(const std::string& pattern, const std::vector<std::string>& names) {
  std::string text;
  for (const char c : pattern) {
    if (std::string_view("\\^$()").find(c) == std::string_view::npos) text += c;
  }
  const auto parts = std::count(text.begin(), text.end(), '.') + 1;
  std::map<std::string, std::string> ends;  // of names
  for (const auto& name : names) {
    std::size_t at = name.size() + 1;
    for (auto left = parts; left > 0 && at != std::string::npos && at > 0; --left) at = name.rfind('.', at - 1);
    const std::size_t first = at == std::string::npos ? 0 : at + 1;
    ends.try_emplace(name.substr(std::min(first, name.size())), name);
  }
  std::vector<std::string> words;
  for (const auto& [end, name] : ends) words.push_back(end);
  return ends.empty() ? "" : ends.at(io::closest(text, words));
}

}  // namespace

void NamePatterns::require_used(const std::vector<std::string>& names) const {
  for (const std::size_t i : idle(names)) {
    const std::string nearest = nearest_name(patterns_[i].pattern(), names);
    throw io::Error(patterns_[i].where() + ": pattern " + io::in_quotes(patterns_[i].pattern()) + " matches no module" +
                    (nearest.empty() ? "" : "; the nearest is " + io::in_quotes(nearest)));
  }
}

namespace {

thread_local int command_lines = 0;  // CommandLineNames alive on this thread

}  // namespace

CommandLineNames::CommandLineNames() { ++command_lines; }
CommandLineNames::~CommandLineNames() { --command_lines; }

std::string option_name(std::string_view api, std::string_view command_line) {
  return std::string(command_lines > 0 ? command_line : api);
}

}  // namespace fp8::configs
