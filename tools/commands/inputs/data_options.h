// SPDX-License-Identifier: Apache-2.0
// The options that say what a model sees. No torch here.
#pragma once
#include <cstdint>

#include "fp8/tools/commands/cli/options.h"
#include "fp8/tools/text/data/data_file.h"

namespace fp8::commands {

/// Of a text. 0: what the command makes of what is left out.
struct DataOptions {
  text::DataFiles data;
  std::int64_t samples = -1, seq_len = 256, skip = 0, batch = 8;
  bool shorter = false;  ///< a text of fewer than seq_len tokens is taken as it is
};

/// --data or an option like it. several: words behind one another, which a command with positional arguments can't
/// take.
void add_data_option(Options& options, const std::string& name, text::DataFiles& target, const std::string& help,
                     Options::Need need, bool several = true);

/// --data --samples --seq-len --skip --batch; the values in `target` are the defaults.
void add_data_options(Options& options, DataOptions& target, Options::Need need = Options::Need::required,
                      bool several = true);

/// For a command that was given no --data; says so.
void take_built_in_text(DataOptions& target, const Context& context);

/// The file of a command that takes one. Throws UsageError for several.
std::filesystem::path one_file(const text::DataFiles& files);

/// Of the arguments of a TorchScript model.
struct ScriptDataOptions {
  std::int64_t samples = -1, skip = 0;  ///< -1: all
  std::int64_t batch = 0;               ///< samples per forward; 0: 8, and 1 for a model that keeps state
  std::int64_t chunk = 512;             ///< frames per sample of a WAV file
};

}  // namespace fp8::commands
