// SPDX-License-Identifier: Apache-2.0
// The list of modules in high precision of a config: entries that the form's readers match with the modules
// they build. No torch here.
//
// Each form says what its readers take an entry for (CheckpointForm::ignored_by). They rename on load: files say
// vision_tower.x where the model has model.vision_tower.x. Names of modules that are not known to keep their name are
// therefore written twice where a form has patterns: as the file has them, and as a pattern with an open prefix.
// Readers of the other forms map most names themselves, and are given those that a row of the table changes too; INC's
// reader has none of its own.
#pragma once

#include "fp8/quant/forms/form.h"

namespace fp8::quant {

/// The entries for the modules of spec.kept_linears, the mixtures of spec.kept_experts, and for spec.ignore. Throws
/// io::Error if one matches a quantized module, naming both: readers would take its codes for values.
std::vector<std::string> ignore_entries(const CheckpointForm& form, const ConfigSpec& spec);

/// The entries of a config, made ready to be asked of many names.
class IgnoreList {
 public:
  IgnoreList() = default;
  /// Throws io::Error for an entry that is no regular expression where the form has them.
  IgnoreList(const CheckpointForm& form, const std::vector<std::string>& entries);
  /// An entry because of which some reader of the form takes the module as kept; null if none does.
  const std::string* entry_for(const std::string& name) const;
  bool holds(const std::string& entry) const { return names_.contains(entry); }

 private:
  struct Entries;
  std::set<std::string> names_;
  std::shared_ptr<const Entries> entries_;
};

/// transformers makes a Linear with a scale of each that no entry of compressed-tensors' list leaves out: throws
/// io::Error for one of `linears` that is not so. in_fp8: those that have codes; stored: the tensors of the file.
void require_linears(const std::vector<std::string>& entries, const std::vector<std::string>& linears,
                     const std::vector<std::string>& in_fp8, const std::vector<std::string>& stored);

// Of what forms make their rules.

/// compressed-tensors': after "re:" an entry is matched from the start of the name (re.match), open at the end.
NameTest matched_after_re(const std::string& entry);
/// vLLM's: an entry that holds the name of a layer of experts ("P.experts" of "P.experts.3.down_proj") keeps all of it.
bool names_layer_of_experts(const std::string& entry, const std::string& name);

}  // namespace fp8::quant
