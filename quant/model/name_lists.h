// SPDX-License-Identifier: Apache-2.0
// allow and block of a conversion: which modules it leaves alone whatever else selects them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "fp8/configs/name_patterns.h"

namespace fp8::quant {

/// The patterns that are an argument of convert_modules. Throws io::Error "convert_modules: NAME: pattern ..." for one
/// that does not compile.
inline configs::NamePatterns argument_patterns(const std::string& name, const std::vector<std::string>& patterns) {
  return {patterns, "convert_modules: " + name};
}

/// Adds a warning for each that is found in no module's name.
inline void warn_of_idle(const std::string& name, const configs::NamePatterns& patterns,
                         const std::vector<std::string>& modules, std::vector<std::string>& warnings) {
  for (const std::size_t i : patterns.idle(modules))
    warnings.push_back(name + "[" + std::to_string(i) + "] \"" + patterns[i].pattern() +
                       "\": no module has such a name");
}

class NameLists {
 public:
  NameLists(const std::vector<std::string>& allow, const std::vector<std::string>& block)
      : allow_(argument_patterns("allow", allow)), block_(argument_patterns("block", block)) {}

  /// Why a module stays in high precision; nullopt: it need not. An empty allow allows all.
  std::optional<std::string> reason_to_keep(const std::string& module) const {
    if (const auto i = block_.first_match(module)) return "blocked by \"" + block_[*i].pattern() + "\"";
    if (!allow_.empty() && !allow_.matches(module)) return "not in the allow list";
    return std::nullopt;
  }

  void warn_of_idle(const std::vector<std::string>& modules, std::vector<std::string>& warnings) const {
    quant::warn_of_idle("allow", allow_, modules, warnings);
    quant::warn_of_idle("block", block_, modules, warnings);
  }

 private:
  configs::NamePatterns allow_, block_;
};

}  // namespace fp8::quant
