// SPDX-License-Identifier: Apache-2.0
// Which modules a high precision checkpoint has and what they are: a file holds names and shapes, no classes. No torch
// here.
//
// The first of these that applies decides:
//
//   the caller         ModuleChoice: patterns of modules that are, or are not, Linear
//   the family's row   model_names.h, of model_type and of its parts' model_types
//   the shape          two dimensions, more than one row and column
//   evidence           a bias as long as the rows: Linear; as long as the columns only, or GPT-2's names and shapes:
//                      Conv1D; in_proj_weight beside it: torch's attention, which uses the weight of its out_proj
//                      without calling it
//   the name           heads, routers, towers, embeddings as most families call them
//   size and place     outside of numbered layers: as many rows as the config counts words, positions, types or buckets
//   the stack          where the language model's blocks are known (model_stacks.h): what stands outside of them stays
//   the class          where they are not: heads of a class that is no language model stay
//
// Whatever is left is a Linear. Mistakes are not alike: a table taken for a Linear breaks the model, a Linear taken for
// a table stays as it is.
#pragma once

#include "fp8/quant/names/model_stacks.h"

namespace fp8::quant {

struct CheckpointModule {
  std::string name;    ///< "model.layers.0.mlp.up_proj"
  std::string tensor;  ///< that holds its weight: NAME.weight, the embedding's for a tied head
  std::vector<std::int64_t> shape;
  Role role = Role::linear;
  std::string why = {};  ///< why it stays in high precision unless it is asked for; empty for a Linear
  bool final = false;    ///< whatever asks for it
  bool certain = false;  ///< no reader has a Linear of this name
  bool tied = false;     ///< a head that the file does not have
};

/// The choices of the caller, before any rule. Python regular expressions, searched in the module's name.
struct ModuleChoice {
  std::vector<std::string> linear, keep;
  bool towers = false;  ///< towers and projectors are Linear like the rest
  /// how many rows share a scale, 0 for all: what readers split by rows can go with its scales or not
  std::int64_t scale_rows = 1;
};

class CheckpointModules {
 public:
  CheckpointModules() = default;
  /// Throws io::Error for bad patterns and for a tie_word_embeddings that is no truth value.
  CheckpointModules(const io::Checkpoint& checkpoint, const io::Json& config, const ModuleChoice& choice = {});

  /// All with a weight of two dimensions or more, in the file's order, then the tied heads.
  const std::vector<CheckpointModule>& all() const { return modules_; }
  const CheckpointModule* find(const std::string& module) const;
  /// halved_groups() of modules in fp8 against all others that a reader may make a Linear of.
  std::map<std::string, std::string> halved_by(const std::vector<std::string>& quantized) const;
  const ModelNames& names() const { return names_; }
  const ModelStacks& stacks() const { return stacks_; }
  /// config.json's tie_word_embeddings.
  bool tied() const { return tied_; }

  /// The class that plans and lists of a QUANT_CONFIG know: "Linear", "Embedding", "Conv1D", "Conv2d", ...
  static std::string type_of(const CheckpointModule& module);
  /// True if a reader may build a Linear of it: its list of modules in high precision must name it if it stays there.
  static bool may_be_linear(const CheckpointModule& module) { return module.shape.size() == 2 && !module.certain; }
  /// The decisions on an unknown family, folded (names/folded_names.h): "model.layers.*.mlp.up_proj", role or reason.
  /// Empty for a known one.
  std::vector<std::pair<std::string, std::string>> guesses() const;
  /// "unknown family 'x': these 12 weights were taken for Linear (...), these 3 were not (...)"; empty for a known one.
  std::string notice() const;

 private:
  class Judge;
  void add_tied_heads(const io::Checkpoint& checkpoint, bool untied);
  void take_lonely_towers();

  ModelNames names_;
  ModelStacks stacks_;
  bool tied_ = false;
  std::vector<CheckpointModule> modules_;
  std::map<std::string, std::size_t> by_name_;
};

}  // namespace fp8::quant
