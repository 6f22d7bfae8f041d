// SPDX-License-Identifier: Apache-2.0
// The plan of each module of a high precision checkpoint in a form: one decision for quantizing, its dry run,
// `inspect --plan` and the damage report. No torch here.
//
//   CheckpointModules   what the modules are
//   StackedExperts      the modules that stacked tensors become
//   make_plan           which of them the options select, and how
//   here                what the form's readers would misread, what engines run as one product and a file can't halve,
//                       what has no place in a file
#pragma once

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/quant/checkpoint/stacked_experts.h"

namespace fp8::quant {

class CheckpointPlan {
 public:
  /// options must outlive this. Reads headers; with options.allow_nonfinite all of the weights. Throws io::Error naming
  /// folder and module: the source is in fp8, nothing is left to quantize, a scheme that the form can't hold, a family
  /// that no reader takes.
  CheckpointPlan(const std::filesystem::path& model, const CheckpointOptions& options);

  /// The one that the options name.
  const CheckpointForm& form() const { return form_; }
  const io::Checkpoint& source() const { return source_; }
  const io::Json& config() const { return config_; }
  const CheckpointModules& modules() const { return modules_; }
  const StackedExperts& stacked() const { return stacked_; }
  const Plan& plan() const { return plan_; }
  /// Of tensors that hold NaN or Inf; empty unless they are allowed.
  const std::map<std::string, NonFinite>& nonfinite() const { return nonfinite_; }

  /// Returns the place of a planned module's weight: its own tensor, the embedding's for a tied head, or one that
  /// stacks it.
  WeightSlice source_of(const std::string& module) const;
  /// The module as the form writes it.
  WeightSpec spec_of(const PlannedModule& module) const;
  /// The modules that own a key-value cache.
  std::vector<std::string> attention() const;
  /// True if scales of the key-value caches are made.
  bool with_kv() const { return with_kv_; }
  /// True if lm_head is quantized from the embedding's tensor.
  bool untied() const { return untied_; }
  /// Readers need each Linear that stays by name, and the mixtures whose experts all stay: in the output's spelling.
  std::vector<std::string> kept_linears() const;
  std::vector<std::string> kept_experts() const;

 private:
  static ModuleChoice choice(const CheckpointOptions& options);
  std::vector<std::string> checked() const;
  std::map<std::string, NonFinite> allowed_nonfinite() const;
  PlanOptions without_nonfinite(PlanOptions options) const;
  const std::string& source_tensor(const std::string& module) const;
  std::vector<ModuleInfo> find_modules() const;
  std::vector<NodeInfo> find_nodes() const;
  std::vector<std::string> names_of_modules() const;
  PlanOptions plan_options(PlanOptions plan) const;
  void forget_idle_names_of_experts();
  void check_source(const PlannedModule& module) const;
  void check_family() const;
  void leave(const std::vector<SkippedModule>& modules);
  void leave_unwritable();
  [[noreturn]] void refuse_empty() const;
  void note_experts();
  void note_vllm();
  void refuse_tied_heads();
  void list_transposed();
  void drop_idle_hints();
  void leave_halved_groups();
  void refuse_unscaled_parts() const;
  void place_nodes();
  void check_model() const;
  std::set<std::string> kept_mixtures() const;

  const CheckpointOptions& options_;
  const CheckpointForm& form_;
  io::Json config_;
  io::Checkpoint source_;
  CheckpointModules modules_;
  std::map<std::string, NonFinite> nonfinite_;
  StackedExperts stacked_;
  Plan plan_;
  bool with_kv_ = false, untied_ = false;
};

}  // namespace fp8::quant
