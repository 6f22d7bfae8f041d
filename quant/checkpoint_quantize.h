// SPDX-License-Identifier: Apache-2.0
// Checkpoint folder in, fp8 checkpoint folder out, tensor by tensor: memory is bounded by a few chunks, whatever the model's size.
// No torch here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fp8/quant/formats/checkpoint_format.h"
#include "fp8/quant/plan.h"

namespace fp8::quant {

struct CheckpointOptions {
  PlanOptions plan;
  CheckpointFormat format = CheckpointFormat::compressed_tensors;
  bool overwrite = false;
  bool dry_run = false;  ///< plan and byte counts only; nothing is written, no data read
  std::uint64_t shard_bytes = 5'000'000'000;  ///< tensor data of one file, unless a single tensor is larger
  /// Called with bytes done and in all, at most some hundred times; may be empty.
  std::function<void(std::uint64_t, std::uint64_t)> progress;
  /// Asked between chunks; true ends the work with an io::Error "interrupted" and leaves nothing behind. May be empty.
  std::function<bool()> stop;
};

struct CheckpointReport {
  std::vector<std::pair<std::string, std::string>> quantized;  ///< module, scheme
  std::vector<SkippedModule> skipped;
  std::vector<std::string> warnings;
  std::uint64_t weights_bytes = 0;  ///< tensor data written (or to be written)
  std::uint64_t source_bytes = 0;
};

/// Reads `model` (config.json, *.safetensors), writes `out` in the form asked for, with tokenizer and generation files carried
/// through. Throws io::Error or std::invalid_argument, naming file, tensor or key; nothing stands under `out` then.
CheckpointReport quantize_checkpoint(const std::filesystem::path& model, const std::filesystem::path& out, const CheckpointOptions& options);

}  // namespace fp8::quant
