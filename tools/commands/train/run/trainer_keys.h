// SPDX-License-Identifier: Apache-2.0
// The section `trainer:` of a run file. Not for users of the library. No torch here.
#pragma once
#include <string>

#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {

/// A scalar in the words of the command line. Throws io::Error "PLACE: ...".
std::string option_text(const io::Json& value, const std::string& place);

void take_trainer(const RunTree& tree, Options& options, RunSettings& run);

}  // namespace fp8::commands
