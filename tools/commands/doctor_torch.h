// SPDX-License-Identifier: Apache-2.0
// What LibTorch says of itself.
#pragma once
#include <string>
#include <vector>

#include "fp8/runtime/autocast/lists.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/late.h"

namespace fp8::commands {

struct TorchFacts {
  std::string version;
  int threads = 0;
  std::string hpu;                         ///< "available", "not in this build", or "error"
  runtime::autocast::AutocastLists lists;  ///< in force
  std::vector<std::string> problems;       ///< of the files that were named for them, of extensions

  struct Extension {
    std::string file;
    std::vector<std::string> ops, parts;
  };
  std::vector<Extension> extensions;  ///< that --load and FP8_EXTENSIONS name
};

/// Throws io::Error where LibTorch can't be loaded.
extern Late<TorchFacts(const Context& context)> torch_facts;

}  // namespace fp8::commands
