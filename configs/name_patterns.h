// SPDX-License-Identifier: Apache-2.0
// Lists of patterns that choose modules by their dotted names ("model.layers.0.mlp.up_proj"). No torch here.
//
//   kind      a name is meant if                        whose patterns are of that kind
//   search    Python's re.search finds the expression   lists of a QUANT_CONFIG; "modules" of a recipe;
//                                                       --include, --exclude, --linear, --keep; allow, block and rules
//                                                       of convert_modules; the blocklist in INC's checkpoints
//   match     re.match does: \A(?:EXPRESSION)           "re:EXPRESSION" in compressed-tensors' and quark's checkpoints;
//                                                       modules_to_not_convert of transformers
//   wildcard  fnmatch takes it whole                    modelopt's lists, layer_quant_config of quark
//   parts     whole parts of it are the pattern's       the table of families, quant/names/model_names.h
//
// NamePatterns is of the first; match_expression() and matches_wildcard() are for the next two, entries of checkpoints'
// configs (quant/forms/ignore_list.h).
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/configs/python_regex.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::configs {

/// What re.search finds where re.match finds `expression`: bound at the start, open at the end.
std::string match_expression(std::string_view expression);

/// fnmatch(3): * ? [...], of the whole name; a backslash is one.
bool matches_wildcard(const std::string& pattern, const std::string& name);

class NamePatterns {
 public:
  NamePatterns() = default;
  /// `where`: the option or key, for messages. Throws io::Error for an expression that does not compile.
  NamePatterns(const std::vector<std::string>& patterns, std::string_view where);
  void add(std::string_view pattern, std::string_view where) { patterns_.emplace_back(pattern, where); }

  bool empty() const { return patterns_.empty(); }
  std::size_t size() const { return patterns_.size(); }
  const PythonRegex& operator[](std::size_t i) const { return patterns_[i]; }

  /// Whether any of them is found in `name`; the first that is.
  bool matches(std::string_view name) const { return first_match(name).has_value(); }
  std::optional<std::size_t> first_match(std::string_view name) const;
  /// Those that are found in none of `names`: most often a slip.
  std::vector<std::size_t> idle(const std::vector<std::string>& names) const;
  /// Throws io::Error with the nearest of `names` for a pattern that is found in none of them.
  void require_used(const std::vector<std::string>& names) const;

 private:
  std::vector<PythonRegex> patterns_;
};

// Spelling help of the configuration readers: runtime/io's.

using io::closest;
using io::edit_distance;

// What messages call an option: the member's name where the library is called, "--include" where the command line is.
// No torch here.

/// While one lives, messages made on this thread name the command line's options.
class CommandLineNames {
 public:
  CommandLineNames();
  ~CommandLineNames();
  CommandLineNames(const CommandLineNames&) = delete;
  CommandLineNames& operator=(const CommandLineNames&) = delete;
};

/// One of the two. option_name("'include'", "--include")
std::string option_name(std::string_view api, std::string_view command_line);

}  // namespace fp8::configs
