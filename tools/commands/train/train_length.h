// SPDX-License-Identifier: Apache-2.0
// Optimizer steps of a run that is asked for in epochs and shares. No torch here.
#pragma once
#include <cstdint>

#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {

/// What --epochs, --warmup-ratio, --eval-each-epoch and --save-each-epoch are in steps. batches: of an epoch, for all
/// ranks. A part of a step is one, as in transformers. Throws UsageError where that does not fit the rest.
void count_steps(TrainOptions& options, std::int64_t batches, int ranks);

/// Throws UsageError for more steps of some kind than --steps.
void check_steps(const TrainOptions& options);

}  // namespace fp8::commands
