// SPDX-License-Identifier: Apache-2.0
// What a config says of modules that stay in high precision: entries that the form's readers match with the modules
// they build. No torch here.
//
//   form                 entries                             a reader takes a module as kept if
//   compressed-tensors   names; "re:" and a pattern          equal, or re.match: bound at the start, open at the end
//   fp8, vLLM            names                               equal; a layer of experts: its name is in an entry
//   fp8, transformers    names                               re.match up to a dot or the end; the entry ends the name
//   modelopt             names, wildcards                    equal, fnmatch, or found anywhere in the name
//   inc                  names, regular expressions          re.search
//   quark                names; "re:" and a pattern          as compressed-tensors
//
// Readers rename on load: files say vision_tower.x where the model has model.vision_tower.x. Names of modules that are
// not known to keep their
// name are therefore written twice to compressed-tensors: as the file has them, and as a pattern that leaves the prefix
// open. Readers of the other forms map most names themselves, and are given those that a row of the table changes too;
// INC's reader has none of its own.
#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fp8/quant/forms/form.h"

namespace fp8::quant {

/// The entries for the modules of spec.kept_linears, the mixtures of spec.kept_experts, and for spec.ignore. Throws
/// io::Error if one matches a quantized module, naming both:
/// readers would take its codes for values.
std::vector<std::string> ignore_entries(CheckpointFormat format, const ConfigSpec& spec);

/// Whether some reader of the form takes the module `name` as kept because of the entry.
bool entry_matches(CheckpointFormat format, const std::string& entry, const std::string& name);

/// The entries of a config, made ready to be asked of many names.
class IgnoreList {
 public:
  IgnoreList() = default;
  /// Throws std::invalid_argument for an entry that is no regular expression where the form has them.
  IgnoreList(CheckpointFormat format, const std::vector<std::string>& entries);
  /// An entry because of which some reader of the form takes the module as kept; null if none does.
  const std::string* entry_for(const std::string& name) const;
  bool holds(const std::string& entry) const { return names_.count(entry) != 0; }

 private:
  struct Entries;
  std::set<std::string> names_;
  std::shared_ptr<const Entries> entries_;
};

}  // namespace fp8::quant
