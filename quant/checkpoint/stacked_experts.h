// SPDX-License-Identifier: Apache-2.0
// Experts of a mixture that a checkpoint stacks in one tensor: which tensors these are, and which modules, one per
// expert and projection, they become. Readers of fp8 take one weight with its scale per expert.
//
//   model.layers.0.mlp.experts.gate_up_proj  [E, 2 I, H]   ->   model.layers.0.mlp.experts.0.gate_proj  [I, H]
//                                                               model.layers.0.mlp.experts.0.up_proj    [I, H], ...
//   model.layers.0.mlp.experts.down_proj     [E, H, I]     ->   model.layers.0.mlp.experts.0.down_proj  [H, I], ...
//
// All experts of a layer are cast or none: engines run them as one product. What no row of expert_weights.h describes
// stays as it is. No torch here.
#pragma once
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fp8/quant/checkpoint/weight_slice.h"
#include "fp8/quant/plan/plan.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

struct ExpertFamily;
struct ExpertSpelling;

/// The experts of one layer.
struct StackedMixture {
  std::string name;                               ///< as engines call them: "model.layers.0.mlp.experts"
  std::vector<std::string> tensors;               ///< the stacks, in file order
  std::vector<std::vector<std::size_t>> modules;  ///< of each of those, expert by expert: indices of their list
  std::string kept;                               ///< why they stay as they are; empty: they are to be cast
  bool packed = false;                            ///< in MXFP4 already
};

class StackedExperts {
 public:
  StackedExperts() = default;
  /// keep: tensors (without ".weight") and modules that stay in high precision, with the reason. Throws io::Error
  /// naming the tensor whose shape is not what its family stacks: no experts, an odd number of rows for gate and up,
  /// stacks that do not fit each other.
  StackedExperts(const io::Checkpoint& source, const io::Json& config, ExpertForm form,
                 const std::map<std::string, std::string>& keep);

  /// Those that are to be cast, Linear by Linear.
  std::vector<ModuleInfo> modules() const;
  const std::vector<StackedMixture>& mixtures() const { return mixtures_; }

  /// Those of a module that an expert's weight becomes; null for any other.
  const WeightSlice* slice_of(const std::string& module) const;
  /// True for a tensor that stacks experts, cast or not.
  bool is_stack(const std::string& tensor) const { return by_tensor_.count(tensor) != 0; }
  /// The modules that a tensor becomes, in the order of its experts; empty if it stays.
  std::vector<std::string> modules_of(const std::string& tensor) const;
  /// What a tensor or module is called in the output: beside experts whose place has another name there.
  std::string written_name(const std::string& name) const;

  /// After planning: mixtures of which a module is missing in `plan` stay whole, and are listed by tensor instead of by
  /// module.
  void settle(Plan& plan);
  /// The mixtures that stay as they are.
  std::vector<std::string> kept() const;
  /// Those that are in MXFP4 already.
  std::vector<std::string> packed() const;
  /// What the user should know of them, one line each.
  std::vector<std::string> notices() const;

 private:
  struct Module {
    std::string name;
    WeightSlice slice;
    std::size_t mixture = 0;
  };

  void find_family_stacks(const io::Checkpoint& source, const ExpertFamily& family);
  void find_other_stacks(const io::Checkpoint& source, const ExpertFamily* family);
  bool add_mixture(const io::Checkpoint& source, const ExpertSpelling& spelling, const std::string& down);
  std::string written_below(const std::string& below, const ExpertSpelling& spelling);
  std::string reason_to_keep(const StackedMixture& mixture, const std::unordered_set<std::string>& planned,
                             const std::unordered_map<std::string, std::string>& skipped) const;

  std::vector<StackedMixture> mixtures_;
  std::vector<Module> modules_;
  std::unordered_map<std::string, std::size_t> by_module_;                          // indices of modules_
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>> by_tensor_;  // of mixtures_, and of its tensors
  std::map<std::string, std::string> renamed_;  // "model.layers.0.mlp." -> "model.layers.0.block_sparse_moe."
  std::string note_;                            // of the family
  std::size_t unknown_ = 0;                     // mixtures without a row
  std::string first_unknown_;
};

}  // namespace fp8::quant
