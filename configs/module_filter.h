// SPDX-License-Identifier: Apache-2.0
// Which modules a QUANT_CONFIG means: Intel Neural Compressor's rule over allowlist and blocklist.
//
//   selected =  type not in blocklist.types
//          and (allowlist is empty  or  type in allowlist.types  or  name matches one of allowlist.names)
//          and  name matches none of blocklist.names
//
// types are exact class names ("Linear"), names are Python regular expressions searched in the full dotted name
// ("lm_head" matches "model.lm_head"), case-sensitive. The blocklist wins. That the type is one that can be quantized
// at all is the caller's to ask.
#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/configs/name_patterns.h"

namespace fp8::configs {

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
