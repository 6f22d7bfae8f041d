// SPDX-License-Identifier: Apache-2.0
// Files of Optimum Habana as options of `fp8 train`: --gaudi-config (gaudi_config.json) and --training-args
// (GaudiTrainingArguments as a JSON), read by configs/training. What the command line or a run file gives wins. No
// torch here.
#pragma once
#include <string>
#include <vector>

#include "fp8/tools/commands/cli/options.h"
#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {

/// Gives `options`, and with it `v`, what the files say and nobody else; the names of those options. Warnings say what
/// has no effect. Throws io::Error naming file and key for a file that has a problem, or asks for what only the command
/// line can give (--eval).
std::vector<std::string> take_gaudi_options(Options& options, TrainOptions& v, const Context& context);

}  // namespace fp8::commands
