// SPDX-License-Identifier: Apache-2.0
// How arguments of a conversion choose modules: lists of Python regular expressions that are searched in dotted names.
#pragma once
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "fp8/configs/python_regex.h"

namespace fp8::te {

/// One list. name: the argument, for messages.
class NamePatterns {
 public:
  /// Throws io::Error "convert_modules: NAME: pattern ..." for one that does not compile.
  NamePatterns(const char* name, const std::vector<std::string>& patterns) : name_(name) {
    for (const auto& p : patterns) patterns_.emplace_back(p, std::string("convert_modules: ") + name);
  }

  bool empty() const { return patterns_.empty(); }
  const std::string& pattern(std::size_t i) const { return patterns_[i].pattern(); }

  /// The first that is found in a module's name.
  std::optional<std::size_t> first_match(const std::string& module) const {
    const auto found =
        std::find_if(patterns_.begin(), patterns_.end(), [&](const auto& p) { return p.search(module); });
    return found == patterns_.end() ? std::nullopt : std::optional<std::size_t>(found - patterns_.begin());
  }

  /// Patterns that are found in no module's name: most often a slip.
  void warn_of_idle(const std::vector<std::string>& modules, std::vector<std::string>& warnings) const {
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      const bool found =
          std::any_of(modules.begin(), modules.end(), [&](const auto& module) { return patterns_[i].search(module); });
      if (!found)
        warnings.push_back(std::string(name_) + "[" + std::to_string(i) + "] \"" + pattern(i) +
                           "\": no module has such a name");
    }
  }

 private:
  const char* name_;
  std::vector<configs::PythonRegex> patterns_;
};

/// allow and block.
class NameLists {
 public:
  NameLists(const std::vector<std::string>& allow, const std::vector<std::string>& block)
      : allow_("allow", allow), block_("block", block) {}

  /// Why a module stays in high precision whatever else selects it; nullopt: it need not. An empty allow allows all.
  std::optional<std::string> reason_to_keep(const std::string& module) const {
    if (const auto i = block_.first_match(module)) return "blocked by \"" + block_.pattern(*i) + "\"";
    if (!allow_.empty() && !allow_.first_match(module)) return "not in the allow list";
    return std::nullopt;
  }

  void warn_of_idle(const std::vector<std::string>& modules, std::vector<std::string>& warnings) const {
    allow_.warn_of_idle(modules, warnings);
    block_.warn_of_idle(modules, warnings);
  }

 private:
  NamePatterns allow_, block_;
};

}  // namespace fp8::te
