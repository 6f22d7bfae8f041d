// SPDX-License-Identifier: Apache-2.0
// OUT of `fp8 train`: new, or that of the same run.
#pragma once
#include <functional>

#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {

/// Makes OUT and train.json in it with `settings`, or finds the run in it that is to go on. check(file, written):
/// throws for a run that is another one; true: what was made at its end is not its end any more. Returns true for a run
/// that goes on. Throws io::Error.
bool open_folder(const TrainOptions& options, const io::Json& settings,
                 const std::function<bool(const std::filesystem::path& file, const io::Json& written)>& check);

}  // namespace fp8::commands
