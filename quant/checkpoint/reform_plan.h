// SPDX-License-Identifier: Apache-2.0
// The checkpoint that takes another form, as it was found, and what becomes of every weight, decided before anything
// is written. Internal to quant; no torch here.
#pragma once
#include <filesystem>
#include <string>

#include "fp8/quant/checkpoint/pipeline.h"

namespace fp8::quant {

/// A folder to be converted: its tensors, what of them is in fp8, its config.json, its fp8.json (or null).
struct ConvertSource {
  /// assume: as ConvertOptions has it.
  explicit ConvertSource(const std::filesystem::path& model, const std::string& assume = "");

  io::Checkpoint checkpoint;
  io::Json config, sidecar, quantization;
  StoredCheckpoint stored;
  recipes::FloatType type = recipes::FloatType::BF16;  ///< config.json's dtype, of the model in high precision
  bool high_precision() const { return stored.weights.empty(); }
  std::string form_name() const;
};

/// All of the plan but its texts and nonfinite tensors. Throws as convert_checkpoint() says.
FolderPlan plan_conversion(const ConvertSource& source, const ConvertOptions& options);

}  // namespace fp8::quant
