// SPDX-License-Identifier: Apache-2.0
// The options of `fp8 run`. No torch here.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/late.h"
#include "fp8/tools/commands/inputs/data_options.h"

namespace fp8::commands {

struct RunOptions : ScriptDataOptions {
  std::filesystem::path model, inputs, out, config, reference;
  std::string measurements;
  std::vector<std::string> include, exclude;
};

/// What the command does: run.cpp.
extern Late<void(const RunOptions& options, Context& context)> run_script;

}  // namespace fp8::commands
