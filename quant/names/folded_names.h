// SPDX-License-Identifier: Apache-2.0
// Many modules in few names, for people. No torch here.
//
//   model.layers.*.mlp.up_proj         of all layers that the model has
//   model.layers.{0,3-5}.mlp.up_proj   of these
//   model.layers.2.mlp.up_proj         of this one
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

namespace fp8::quant {

/// "model.layers.*.mlp.gate": whole parts that are numbers stand for all alike.
std::string folded_name(const std::string& module);

/// A name that stands for exactly these modules.
struct FoldedModules {
  std::string name;
  std::vector<std::string> modules;  ///< in the order given
};

class NameFolder {
 public:
  /// names: all that the model has. They say which numbers there are, and so what "*" means.
  explicit NameFolder(const std::vector<std::string>& names);

  /// As few names as stand for these modules and no others, in the order of their first modules.
  std::vector<FoldedModules> fold(const std::vector<std::string>& modules) const;

 private:
  std::string name_of(const std::string& module, const std::vector<std::set<std::string>>& product) const;

  std::map<std::string, std::set<std::string>> numbers_;  ///< by what stands before them, folded
};

}  // namespace fp8::quant
