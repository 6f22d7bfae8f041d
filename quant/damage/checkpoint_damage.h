// SPDX-License-Identifier: Apache-2.0
// The damage report of a checkpoint folder, read in chunks: memory stays bounded whatever the model's size. No torch
// here.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/quant/damage/damage.h"
#include "fp8/quant/plan/plan.h"

namespace fp8::quant {

struct CheckpointDamage {
  std::vector<ModuleDamage> modules;  ///< weights only; in the checkpoint's order
  std::vector<SkippedModule> skipped;
  std::vector<std::string> warnings;
};

/// What quantizing the high precision checkpoint `model` by `options` would do to its weights, of which
/// options.progress counts the bytes twice. Modules with NaN or Inf are skipped. Throws io::Error naming file and
/// tensor, and as quantize_checkpoint does.
CheckpointDamage damage_of_checkpoint(const std::filesystem::path& model, const CheckpointOptions& options);

/// What has been done to the weights of the compressed-tensors checkpoint `model`: amax, zeros and saturated codes
/// (those at the format's largest value); with `reference`, the high precision checkpoint it was made of, also
/// underflow and SQNR.
CheckpointDamage damage_of_fp8_checkpoint(const std::filesystem::path& model,
                                          const std::optional<std::filesystem::path>& reference,
                                          const std::function<bool()>& stop);

}  // namespace fp8::quant
