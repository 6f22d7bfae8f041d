// SPDX-License-Identifier: Apache-2.0
// The rule over allowlist and blocklist, and what to say about entries without effect.
#include "fp8/configs/module_filter.h"

#include "fp8/configs/name_patterns.h"
#include "fp8/runtime/io/base/fail.h"

namespace fp8::configs {

ModuleFilter::ModuleFilter(const ModuleList& allowlist, const ModuleList& blocklist, std::string source)
    : source_(std::move(source)),
      allow_(make_list(allowlist, "allowlist", source_)),
      block_(make_list(blocklist, "blocklist", source_)) {}

ModuleFilter::List ModuleFilter::make_list(const ModuleList& list, const char* key, const std::string& source) {
  List result;
  result.key = key;
  for (const std::string& type : list.types) result.types.push_back({type});
  for (std::size_t i = 0; i < list.names.size(); ++i) {
    result.names.push_back({list.names[i]});
    result.patterns.add(list.names[i], io::message("{}: key '{}.names[{}]'", source, key, i));
  }
  return result;
}

// Both look at every entry, not only up to the first that matches: an entry is unused only if no module needed it.
bool ModuleFilter::List::has_type(std::string_view type) {
  bool found = false;
  for (Entry& entry : types) {
    if (entry.text == type) found = entry.used = true;
  }
  return found;
}

bool ModuleFilter::List::has_name(std::string_view name) {
  bool found = false;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (patterns[i].search(name)) found = names[i].used = true;
  }
  return found;
}

bool ModuleFilter::selects(std::string_view type, std::string_view name) {
  if (seen_types_.find(type) == seen_types_.end()) seen_types_.emplace(type);
  const bool allows_all = allow_.types.empty() && allow_.names.empty();
  const bool type_allowed = allow_.has_type(type), name_allowed = allow_.has_name(name);
  const bool type_blocked = block_.has_type(type), name_blocked = block_.has_name(name);
  return !type_blocked && (allows_all || type_allowed || name_allowed) && !name_blocked;
}

std::vector<UnusedEntry> ModuleFilter::unused_entries() const {
  std::vector<UnusedEntry> unused;
  const auto collect = [&](const std::vector<Entry>& entries, const std::string& key, bool is_type) {
    for (const Entry& entry : entries) {
      if (!entry.used) unused.push_back({key, entry.text, message_for(key, entry.text, is_type)});
    }
  };
  for (const List* list : {&allow_, &block_}) {
    collect(list->types, list->key + ".types", true);
    collect(list->names, list->key + ".names", false);
  }
  return unused;
}

std::string ModuleFilter::message_for(const std::string& key, const std::string& entry, bool is_type) const {
  std::string message = source_ + ": key '" + key + "': " + io::in_quotes(entry) + " matches no module of this model";
  if (!is_type) return message + " (names are regular expressions searched in the full name, case-sensitive)";
  message += " (types are class names without a module path)";
  // The class name behind a path is what people mean; else the nearest class of this model.
  const std::string last = entry.substr(entry.rfind('.') + 1);
  const std::string suggestion =
      seen_types_.count(last) != 0 ? last : closest(last, {seen_types_.begin(), seen_types_.end()});
  if (!suggestion.empty()) message += "; did you mean " + io::in_quotes(suggestion) + "?";
  return message;
}

}  // namespace fp8::configs
