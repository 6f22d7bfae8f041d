// SPDX-License-Identifier: Apache-2.0
// compressed-tensors' "config_groups" as they are read: schemes, each with the modules that it is of. Used by
// compressed_tensors.cpp alone. No torch here.
#pragma once
#include <string>
#include <vector>

#include "fp8/configs/name_patterns.h"
#include "fp8/quant/forms/form.h"

namespace fp8::quant {

class ConfigGroups {
 public:
  /// base: what fp8.json tells of every scheme. Throws io::Error "WHERE: key ...: found ..., built are ...", also for
  /// what stands beside the groups, would change the weights' meaning and is not built.
  ConfigGroups(const io::Json& config, const std::string& where, const Scheme& base);

  /// True for a checkpoint of which caches alone are in fp8.
  bool empty() const { return groups_.empty(); }
  /// Of the group that knows the module best. Throws io::Error if several have no target for it.
  const Scheme& scheme_of(const std::string& module) const;

 private:
  class Group {
   public:
    Group(const io::Json& json, const std::string& where, const Scheme& base);
    const Scheme& scheme() const { return scheme_; }
    /// 0: not at all, 1: by its class, 2: by a pattern, 3: by its name. The largest of all groups wins.
    int matches(const std::string& module) const;

   private:
    Scheme scheme_;
    std::vector<std::string> names_;
    configs::NamePatterns patterns_;
  };

  std::string where_;
  std::vector<Group> groups_;
};

}  // namespace fp8::quant
