// SPDX-License-Identifier: Apache-2.0
// Python regular expressions that choose modules: a name is meant if any of them is found in it. No torch here.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "fp8/configs/python_regex.h"

namespace fp8::quant {

class NamePatterns {
 public:
  /// Throws io::Error naming the option for an expression that does not compile.
  NamePatterns(const std::vector<std::string>& patterns, const std::string& option) {
    for (const auto& p : patterns) patterns_.emplace_back(p, option);
  }
  bool match(const std::string& name) const {
    return std::any_of(patterns_.begin(), patterns_.end(), [&](const auto& p) { return p.search(name); });
  }

 private:
  std::vector<configs::PythonRegex> patterns_;
};

}  // namespace fp8::quant
