// SPDX-License-Identifier: Apache-2.0
// OUT/train.json: what a run of `fp8 train` was started with, so that a resumed one is the same run. Texts, configs and
// recipes are the same where their fingerprints are, wherever they lie; the number of steps alone may change.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {

/// The settings that decide a run's numbers. more: keys that the options alone do not tell (the fingerprints of texts
/// and config, the recipe as it was read).
io::Json train_settings(const TrainOptions& options, const Context& context, const io::Json& more);

/// The steps of a resumed run.
struct ResumedSteps {
  std::int64_t done = 0;  ///< of the newest checkpoint
  std::string warning;    ///< where the number of steps is another one than before: what the learning rate does
};

/// May the run that `written` (read from `file`) tells of go on as `asked`? Throws io::Error naming the first key that
/// differs, and for fewer steps than are done.
ResumedSteps check_resume(const std::filesystem::path& file, const io::Json& written, const io::Json& asked,
                          const TrainOptions& options);

// OUT of `fp8 train`: new, or that of the same run.

/// Makes OUT and train.json in it with `settings`, or finds the run in it that is to go on. check(file, written):
/// throws for a run that is another one; true: what was made at its end is not its end any more. Returns true for a run
/// that goes on. Throws io::Error.
bool open_folder(const TrainOptions& options, const io::Json& settings,
                 const std::function<bool(const std::filesystem::path& file, const io::Json& written)>& check);

}  // namespace fp8::commands
