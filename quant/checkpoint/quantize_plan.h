// SPDX-License-Identifier: Apache-2.0
// What becomes of each module of a high precision checkpoint in a form: one decision for quantizing, its dry run,
// `inspect --plan` and the damage report. No torch here.
//
//   StackedExperts   the modules that stacked tensors become
//   make_plan        which modules the options select, and how
//   writable         less those that the form's readers would misread
//   whole            less those that engines run as one product with one that stays: no file can halve it
//   nodes            what has no weight: caches with a place in a file, others without
#pragma once

#include "fp8/quant/checkpoint/pipeline.h"

namespace fp8::quant {

struct CheckpointPlan {
  /// Reads headers; with options.allow_nonfinite all of the weights. Throws io::Error naming folder and module: the
  /// source is in fp8, nothing is left to quantize, a scheme that the form can't hold, a family that no reader takes.
  CheckpointPlan(const std::filesystem::path& model, const CheckpointOptions& options);

  const CheckpointForm& form;  ///< the one that the options name
  const SourceFolder source;
  const std::map<std::string, NonFinite> nonfinite;  ///< empty unless it is allowed
  StackedExperts stacked;                            ///< what they become in the end
  Plan plan;
  bool with_kv = false;  ///< scales of the key-value caches are made
  bool untied = false;   ///< lm_head is quantized from the embedding's tensor

  /// Returns the place of a planned module's weight: its own tensor, the embedding's for a tied head, or one that
  /// stacks it.
  WeightSlice source_of(const std::string& module) const;
  /// The modules that own a key-value cache.
  std::vector<std::string> attention() const;
  /// Readers need each Linear that stays by name, and the mixtures whose experts all stay: in the output's spelling.
  std::vector<std::string> kept_linears() const;
  std::vector<std::string> kept_experts() const;
};

}  // namespace fp8::quant
