// SPDX-License-Identifier: Apache-2.0
// Names of files that more than one folder writes, reads or looks for. No torch here.
#pragma once
#include <cstddef>
#include <cstdio>
#include <string>

namespace fp8::io {

// In the folder of a checkpoint, as transformers has them.
inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kWeightsFile[] = "model.safetensors", kIndexFile[] = "model.safetensors.index.json";
inline constexpr char kTorchWeightsFile[] = "pytorch_model.bin", kTorchIndexFile[] = "pytorch_model.bin.index.json";
inline constexpr char kHfQuantConfigFile[] = "hf_quant_config.json";  // ModelOpt's, beside config.json

/// Of shard i (from 0) of n: "model-00001-of-00003.safetensors"; of the only one kWeightsFile.
inline std::string shard_file(std::size_t i, std::size_t n) {
  if (n == 1) return kWeightsFile;
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, n);
  return name;
}

/// In the folder of a rank's share of a checkpoint.
inline constexpr char kShareFile[] = "share.json";

/// What the names of measurements and scales hold, and those of their lists of modules end in before ".json"
/// (measure/files/stats_files.h).
inline constexpr char kHooks[] = "_hooks_", kModuleList[] = "_mod_list";

}  // namespace fp8::io
