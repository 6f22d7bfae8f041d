// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/ignore_list.h"

#include "fp8/quant/names/folded_names.h"

namespace fp8::quant {

using configs::escaped_for_regex;

namespace {

constexpr std::string_view kPattern = "re:", kAnyPrefix = "(.*\\.)?", kExperts = ".experts.";

bool is_number(std::string_view part) {
  return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
}

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    parts.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool ends_at_dot(const std::string& name, const std::string& suffix) {
  return name.ends_with(suffix) && (name.size() == suffix.size() || name[name.size() - suffix.size() - 1] == '.');
}

/// An entry, made ready to be asked of many names.
class Entry {
 public:
  Entry(const CheckpointForm& form, const std::string& text) : text_(text), fits_(form.ignored_by(text)) {}
  const std::string& text() const { return text_; }
  bool matches(const std::string& name) const { return name == text_ || (fits_ && fits_(name)); }

 private:
  std::string text_;
  NameTest fits_;
};

/// The names of quantized modules, as files and readers have them.
class Quantized {
 public:
  explicit Quantized(const ConfigSpec& spec) {
    for (const auto& module : spec.quantized) {
      for (auto& name : spec.names.names_on_load(module)) {
        kinds_.try_emplace(folded_name(name), name);
        names_.insert(std::move(name));
      }
    }
  }

  /// The first that an entry matches, null for none. Entries without digits can't tell names that differ in numbers
  /// only.
  const std::string* found(const Entry& entry) const {
    const bool digits = std::ranges::any_of(entry.text(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) {
      const auto at = std::ranges::find_if(kinds_, [&](const auto& kind) { return entry.matches(kind.second); });
      return at == kinds_.end() ? nullptr : &at->second;
    }
    const auto at = std::ranges::find_if(names_, [&](const auto& name) { return entry.matches(name); });
    return at == names_.end() ? nullptr : &*at;
  }
  bool ends_with(const std::string& suffix, bool numbers_alike) const {
    if (!numbers_alike) return std::ranges::any_of(names_, [&](const auto& name) { return ends_at_dot(name, suffix); });
    const std::string end = folded_name(suffix);
    return std::ranges::any_of(kinds_, [&](const auto& kind) { return ends_at_dot(kind.first, end); });
  }
  /// True if one stands below a part with that end.
  bool stands_below(const std::string& suffix, bool numbers_alike) const {
    const std::string part = "." + (numbers_alike ? folded_name(suffix) : suffix) + ".";
    const auto below = [&](const std::string& name) { return ("." + name).find(part) != std::string::npos; };
    if (!numbers_alike) return std::ranges::any_of(names_, below);
    return std::ranges::any_of(kinds_, [&](const auto& kind) { return below(kind.first); });
  }
  bool holds_below(const std::string& part) const {
    return std::ranges::any_of(
        kinds_, [&](const auto& kind) { return ("." + kind.first).find("." + part + ".") != std::string::npos; });
  }

 private:
  std::set<std::string> names_;
  std::map<std::string, std::string> kinds_;  // folded -> one of them
};

/// Returns the index of the part at which a name is cut so that the prefix before it stays open: its first numbered
/// container, else its last part.
std::size_t first_of_suffix(const std::vector<std::string>& parts) {
  for (std::size_t i = 1; i + 1 < parts.size(); ++i)
    if (is_number(parts[i])) return i - 1;
  return parts.size() - 1;
}

std::string joined(const std::vector<std::string>& parts, std::size_t first) {
  std::string out;
  for (std::size_t i = first; i < parts.size(); ++i) out += (out.empty() ? "" : ".") + parts[i];
  return out;
}

/// The shortest end of a name of which is_taken() is false, as a pattern that any prefix may stand before: of all
/// layers alike if that can be. Empty if the whole name is taken.
std::string shortest_pattern(const std::string& name, const Quantized& quantized,
                             bool (Quantized::*is_taken)(const std::string& suffix, bool numbers_alike) const,
                             const char* end) {
  const auto parts = parts_of(name);
  for (const bool alike : {true, false}) {
    for (std::size_t first = first_of_suffix(parts) + 1; first-- > 0;) {
      const std::string suffix = joined(parts, first);
      if ((quantized.*is_taken)(suffix, alike)) continue;
      std::string text;
      for (const auto& part : parts_of(suffix))
        text +=
            (text.empty() ? "" : "\\.") + (alike && is_number(part) ? std::string("\\d+") : escaped_for_regex(part));
      return std::string(kPattern) + std::string(kAnyPrefix) + text + end;
    }
  }
  return "";
}

/// "re:(.*\.)?layers\.\d+\.mlp\.gate$": the shortest end of a name that no quantized module shares.
std::string pattern_for(const std::string& name, const Quantized& quantized) {
  return shortest_pattern(name, quantized, &Quantized::ends_with, "$");
}

/// "re:(.*\\.)?layers\\.\\d+\\.mlp\\.experts(\\..*)?$": the same for a mixture, which vLLM asks for by its expert 0
/// ("P.experts.0.gate_proj"). Empty if quantized modules stand below it.
std::string experts_pattern(const std::string& mixture, const Quantized& quantized) {
  return shortest_pattern(mixture, quantized, &Quantized::stands_below, "(\\..*)?$");
}

/// "re:(.*\.)?visual\..*": whatever stands below a part.
std::string below_entry(const std::string& part) {
  return std::string(kPattern) + std::string(kAnyPrefix) + escaped_for_regex(part) + "\\..*";
}

class List {
 public:
  void add(std::string entry) {
    if (!entry.empty() && seen_.insert(entry).second) entries_.push_back(std::move(entry));
  }
  std::vector<std::string>& entries() { return entries_; }

 private:
  std::set<std::string> seen_;
  std::vector<std::string> entries_;
};

void add_patterns(const ConfigSpec& spec, const Quantized& quantized, List& list) {
  for (const auto& name : spec.names.built()) {
    const bool below = name.ends_with('.');
    if (!below) list.add(pattern_for(name, quantized));
    if (below && !quantized.holds_below(name.substr(0, name.size() - 1)))
      list.add(below_entry(name.substr(0, name.size() - 1)));
  }
  for (const auto& module : spec.kept_linears) {
    for (const auto& name : spec.names.names_on_load(module)) {
      const std::string tower = spec.names.tower_of(name);
      if (!tower.empty() && !quantized.holds_below(tower)) {
        list.add(below_entry(tower));
      } else {
        list.add(pattern_for(name, quantized));
      }
    }
  }
}

}  // namespace

NameTest matched_after_re(const std::string& entry) {
  if (!entry.starts_with(kPattern)) return {};
  const configs::PythonRegex regex(configs::match_expression(entry.substr(kPattern.size())), "ignore");
  return [regex](const std::string& name) { return regex.search(name); };
}

bool names_layer_of_experts(const std::string& entry, const std::string& name) {
  const auto at = name.find(kExperts);
  return at != std::string::npos && entry.find(name.substr(0, at + kExperts.size() - 1)) != std::string::npos;
}

struct IgnoreList::Entries {
  std::vector<Entry> list;
};

IgnoreList::IgnoreList(const CheckpointForm& form, const std::vector<std::string>& entries)
    : names_(entries.begin(), entries.end()) {
  auto made = std::make_shared<Entries>();
  for (const auto& entry : entries) made->list.emplace_back(form, entry);
  entries_ = std::move(made);
}

const std::string* IgnoreList::entry_for(const std::string& name) const {
  if (const auto same = names_.find(name); same != names_.end()) return &*same;
  if (entries_ == nullptr) return nullptr;
  const auto found = std::ranges::find_if(entries_->list, [&](const Entry& entry) { return entry.matches(name); });
  return found == entries_->list.end() ? nullptr : &found->text();
}

std::vector<std::string> ignore_entries(const CheckpointForm& form, const ConfigSpec& spec) {
  const Quantized quantized(spec);
  List list;
  for (const auto& module : spec.kept_linears) {
    list.add(quantized.found(Entry(form, module)) == nullptr ? module : form.exact_entry(module));
    if (form.writes_patterns() || !form.is_renamed_on_load()) continue;
    for (const auto& name : spec.names.names_on_load(module))
      if (name != module && quantized.found(Entry(form, name)) == nullptr) list.add(name);
  }
  if (form.writes_patterns() && !spec.names.stable()) add_patterns(spec, quantized, list);
  for (const auto& mixture : spec.kept_experts) {
    if (!form.is_renamed_on_load()) continue;                        // its reader builds experts of no stack
    if (quantized.found(Entry(form, mixture)) != nullptr) continue;  // a file with stacks beside single experts
    list.add(mixture);
    if (form.writes_patterns()) list.add(experts_pattern(mixture, quantized));
  }
  for (const auto& entry : spec.ignore) list.add(entry);
  for (const auto& entry : list.entries())
    if (const std::string* module = quantized.found(Entry(form, entry)); module != nullptr)
      io::fail<io::Error>(
          "the entry {} of the list of modules in high precision would be taken for {} too, which is in fp8: readers "
          "would use its codes as values",
          io::in_quotes(entry), io::in_quotes(*module));
  return std::move(list.entries());
}

void require_linears(const std::vector<std::string>& entries, const std::vector<std::string>& linears,
                     const std::vector<std::string>& in_fp8, const std::vector<std::string>& stored) {
  configs::NamePatterns ignored;
  for (const std::string& entry : entries) ignored.add_ignored(entry, "ignore");
  const std::set<std::string> coded(in_fp8.begin(), in_fp8.end()), in_file(stored.begin(), stored.end());
  for (const std::string& name : linears) {
    const bool converted = coded.contains(name);
    if (converted == ignored.matches(name) || (converted && !in_file.contains(name + ".weight")))
      io::fail<io::Error>(
          "save: {}: is in {}, and transformers would take it for the other, by its name, or because it shares its "
          "weight with another module; convert without it (blocklist)",
          name, converted ? "fp8" : "high precision");
  }
}

}  // namespace fp8::quant
