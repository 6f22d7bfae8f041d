// SPDX-License-Identifier: Apache-2.0
// The checkpoint that takes another form, as it was found. No torch here.
#pragma once
#include <filesystem>
#include <string>

#include "fp8/quant/forms/form.h"

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

}  // namespace fp8::quant
