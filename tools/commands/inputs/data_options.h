// SPDX-License-Identifier: Apache-2.0
// The options that say which text a model sees.
#pragma once
#include <cstdint>
#include <filesystem>

#include "fp8/tools/commands/cli/options.h"

namespace fp8::commands {

struct DataOptions {
  std::filesystem::path data;
  std::int64_t samples = -1, seq_len = 256, skip = 0, batch = 8;
};

/// --data --samples --seq-len --skip --batch; the values in `target` are the defaults.
void add_data_options(Options& options, DataOptions& target, Options::Need need = Options::Need::required);

}  // namespace fp8::commands
