// SPDX-License-Identifier: Apache-2.0
// The options that say what a model sees. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>

#include "fp8/tools/commands/cli/options.h"

namespace fp8::commands {

/// Of a text.
struct DataOptions {
  std::filesystem::path data;
  std::int64_t samples = -1, seq_len = 256, skip = 0, batch = 8;
};

/// --data --samples --seq-len --skip --batch; the values in `target` are the defaults.
void add_data_options(Options& options, DataOptions& target, Options::Need need = Options::Need::required);

/// Of the arguments of a TorchScript model.
struct ScriptDataOptions {
  std::int64_t samples = -1, skip = 0;  ///< -1: all
  std::int64_t batch = 0;               ///< samples per forward; 0: 8, and 1 for a model that keeps state
  std::int64_t chunk = 512;             ///< frames per sample of a WAV file
};

}  // namespace fp8::commands
