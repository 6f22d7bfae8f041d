// SPDX-License-Identifier: Apache-2.0
// Lists of patterns that choose modules by their dotted names ("model.layers.0.mlp.up_proj"). No torch here.
//
//   kind      a name is meant if                        whose patterns are of that kind
//   search    Python's re.search finds the expression   lists of a QUANT_CONFIG; "modules" of a recipe;
//                                                       include, exclude, linear, keep; allow, block and rules
//                                                       of convert_modules; the blocklist in INC's checkpoints
//   match     re.match does: \A(?:EXPRESSION)           "re:EXPRESSION" in compressed-tensors' and quark's checkpoints
//                                                       and in ignore; modules_to_not_convert of transformers
//   wildcard  fnmatch takes it whole                    modelopt's lists, layer_quant_config of quark
//   parts     whole parts of it are the pattern's       the table of families, quant/names/model_names.h
//
// NamePatterns is of the first, and of the second for entries of ignore; match_expression() and matches_wildcard() are
// for the next two, entries of checkpoints' configs (quant/forms/ignore_list.h).
#pragma once
#include <memory>
#include <set>

#include "fp8/runtime/io/base/text.h"

// Python's re.search on UTF-8 text, through PCRE2. The two languages agree on what module names need; where they
// don't, the pattern is translated first:
//
//   \Z -> \z     \v -> \x0b     {,n} -> {0,n}     [[:alpha:]] -> [\[:alpha:]     \uXXXX, \UXXXXXXXX -> \x{XXXX}
//
// A pattern that Python rejects for a bad escape (\h, \K, \Q, ...), an unknown extension ((?R), (?&name), ...) or with
// nothing to repeat ("(*VERB)") is an error here too. \d \w \s \b and case folding follow Unicode, as for Python's str.
//
// Three differences remain: the flags a, L, u are not known; a reference to a group that opens later is accepted; \B
// matches an empty text (as in Python from 3.14 on).

namespace fp8::configs {

/// A compiled pattern. Copies share it; searching is thread-safe.
class PythonRegex {
 public:
  /// Throws io::Error "WHERE: pattern 'a(b': missing closing parenthesis, at offset 3". `where` is the file and key,
  /// or the option. Patterns are at most 64 KiB.
  PythonRegex(std::string_view pattern, std::string_view where);

  /// True if the pattern matches anywhere in `text` (re.search). Throws io::Error naming the pattern and the text if
  /// matching takes more than a million steps or 32 MiB, or if `text` is not UTF-8.
  bool search(std::string_view text) const;

  const std::string& pattern() const { return pattern_; }
  const std::string& where() const { return where_; }

 private:
  std::string pattern_, where_;
  std::shared_ptr<const void> code_;
};

/// Returns the expression by which re.search finds what re.match finds by `expression`: bound at the start, open at the
/// end.
std::string match_expression(std::string_view expression);

/// The regular expression for this text.
std::string escaped_for_regex(std::string_view text);

/// fnmatch(3): * ? [...], of the whole name; a backslash is one.
bool matches_wildcard(const std::string& pattern, const std::string& name);

class NamePatterns {
 public:
  NamePatterns() = default;
  /// `where`: the option or key, for messages. Throws io::Error for an expression that does not compile.
  NamePatterns(const std::vector<std::string>& patterns, std::string_view where);
  void add(std::string_view pattern, std::string_view where) {
    patterns_.emplace_back(pattern, where);
    written_.emplace_back(pattern);
  }
  /// An entry as llm-compressor's "ignore" has them: "re:EXPRESSION" is what re.match finds by it, any other the module
  /// of that very name.
  void add_ignored(std::string_view entry, std::string_view where);

  bool empty() const { return patterns_.empty(); }
  std::size_t size() const { return patterns_.size(); }
  const PythonRegex& operator[](std::size_t i) const { return patterns_[i]; }

  /// True if any of them is found in `name`; first_match() returns the first that is.
  bool matches(std::string_view name) const { return first_match(name).has_value(); }
  std::optional<std::size_t> first_match(std::string_view name) const;
  /// As the caller wrote it.
  const std::string& written(std::size_t i) const { return written_[i]; }
  /// Those that are found in none of `names`: most often a slip.
  std::vector<std::size_t> idle(const std::vector<std::string>& names) const;
  /// Throws io::Error with the nearest of `names` for a pattern that is found in none of them.
  void require_used(const std::vector<std::string>& names) const;

 private:
  std::vector<PythonRegex> patterns_;
  std::vector<std::string> written_;
};

// Spelling help of the configuration readers: runtime/io's.

using io::closest, io::edit_distance;

// Which modules a QUANT_CONFIG means: Intel Neural Compressor's rule over allowlist and blocklist.
//
//   selected =  type not in blocklist.types
//          and (allowlist is empty  or  type in allowlist.types  or  name matches one of allowlist.names)
//          and  name matches none of blocklist.names
//
// types are exact class names ("Linear"), names are Python regular expressions searched in the full dotted name
// ("lm_head" matches "model.lm_head"), case-sensitive. The blocklist wins. That the type is one that can be quantized
// at all is the caller's to ask.

/// One of the two lists, as written in the file.
struct ModuleList {
  std::vector<std::string> names, types;
  bool empty() const { return names.empty() && types.empty(); }
  bool operator==(const ModuleList&) const = default;
};

/// An entry of a list that matched no module.
struct UnusedEntry {
  std::string key;      ///< "allowlist.types"
  std::string entry;    ///< "torch.nn.Linear"
  std::string message;  ///< one line, with the file and a suggestion
};

class ModuleFilter {
 public:
  /// `source` (the file) stands in messages. Throws io::Error for a pattern that does not compile.
  ModuleFilter(const ModuleList& allowlist, const ModuleList& blocklist, std::string source);

  /// The rule above, for a module of class `type` with the full name `name`; remembers which entries matched.
  bool selects(std::string_view type, std::string_view name);

  /// After selects() was called for every module of the model: the entries of both lists that matched none of them.
  std::vector<UnusedEntry> unused_entries() const;

 private:
  struct Entry {
    std::string text;
    bool used = false;
  };
  struct List {
    std::string key;
    std::vector<Entry> types, names;
    NamePatterns patterns;  // one per name
    bool has_type(std::string_view type);
    bool has_name(std::string_view name);
  };
  static List make_list(const ModuleList& list, const char* key, const std::string& source);
  std::string message_for(const std::string& key, const std::string& entry, bool is_type) const;

  std::string source_;
  List allow_, block_;
  std::set<std::string, std::less<>> seen_types_;
};

}  // namespace fp8::configs
