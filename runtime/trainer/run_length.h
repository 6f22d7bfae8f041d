// SPDX-License-Identifier: Apache-2.0
// How long a run is and where it validates, by its options alone: the one place that counts, for fit(), for schedules
// and for whoever plans. As Lightning 2.6 counts.
//
//   batches of an epoch    limit_train_batches (overfit_batches) of those that a rank has
//   steps of an epoch      batches / accumulate_grad_batches, rounded up: the last one takes what is left
//   steps of a run         those of max_epochs, at most max_steps
#pragma once
#include <cstdint>

#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {

/// batches: that a rank has. Throws as resolve_limit() does.
std::int64_t batches_of_epoch(const TrainerOptions& options, std::int64_t batches);

/// Optimizer steps that `batches` batches of an epoch are.
std::int64_t steps_of_epoch(const GradAccumulation& accumulation, std::int64_t epoch, std::int64_t batches);

/// Of epochs from `first` on, `batches` batches each, to the end of `epochs` epochs; a part of one is rounded up.
std::int64_t steps_of_epochs(const GradAccumulation& accumulation, std::int64_t batches, double epochs,
                             std::int64_t first = 0);

/// val_check_interval in batches; 0: never. batches: of an epoch. Throws std::invalid_argument for one that is longer
/// than the epoch, or that ends within a step.
std::int64_t batches_between_validations(const TrainerOptions& options, std::int64_t batches);

/// Whether a validation follows the step that ends with `batch` batches of `epoch` done, `before` of them earlier.
/// interval: batches_between_validations().
bool validates_after(const TrainerOptions& options, std::int64_t interval, std::int64_t batches, std::int64_t epoch,
                     std::int64_t before, std::int64_t batch);

}  // namespace fp8::trainer
