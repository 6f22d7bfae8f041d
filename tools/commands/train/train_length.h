// SPDX-License-Identifier: Apache-2.0
// Optimizer steps of a run that is asked for in epochs and shares. No torch here.
#pragma once
#include <cstdint>
#include <functional>

#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {

/// What --epochs, --warmup-ratio, --eval-each-epoch and --save-each-epoch are in steps. steps_of: so many epochs, a
/// part of a step being one, as in transformers (trainer::steps_of_epochs). Throws UsageError where that does not fit
/// the rest.
void count_steps(TrainOptions& options, const std::function<std::int64_t(double epochs)>& steps_of);

/// Throws UsageError for more steps of some kind than --steps.
void check_steps(const TrainOptions& options);

}  // namespace fp8::commands
