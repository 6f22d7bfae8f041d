// SPDX-License-Identifier: Apache-2.0
// The callbacks of `fp8 train`: those of its options, and those that a run file names.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "fp8/runtime/trainer/parts/part.h"
#include "fp8/runtime/trainer/trainer.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/train/train_options.h"
#include "fp8/tools/commands/train/train_precision.h"
#include "fp8/tools/commands/train/train_ranks.h"

namespace fp8::commands {

using Callbacks = std::vector<std::shared_ptr<trainer::TrainerCallback>>;

/// What a part of a run file may ask for.
trainer::PartContext part_context(const TrainOptions& options, const Context& context);

/// Those of every rank: what ends training or writes a checkpoint does so on all of them. Throws io::Error naming
/// the place of a part that is wrong.
Callbacks callbacks_of(const TrainOptions& options, const Context& context);

/// The same errors, before anything is written.
void check_callbacks(const TrainOptions& options, const Context& context);

/// What rank 0 has beside them: log.jsonl, and a bar that knows where training starts. steps: of the whole run; -1: not
/// known.
void add_log(Callbacks& callbacks, const TrainOptions& options, const Context& context, const TrainPrecision& precision,
             std::int64_t steps);

/// Says where a run that was asked to stop can go on. Throws Interrupted.
[[noreturn]] void end_early(const TrainOptions& options, const Context& context, const trainer::FitResult& result);

/// What the options and the keys of a run file make of a trainer; of a model of one's own without its length.
trainer::TrainerOptions trainer_options(const TrainOptions& options, const TrainPrecision& precision,
                                        const TrainRanks& ranks);
/// The settings of a run file that fp8 train has no option for.
/// Steps of `epochs` epochs of `batches` batches that all ranks share, by what the run says of them.
std::int64_t steps_of_epochs(const TrainOptions& options, std::int64_t batches, int ranks, double epochs);

/// That of --profile, or of a run file; null: none. What it says are warnings of `context`, which must outlive it.
std::shared_ptr<runtime::Profiler> profiler_of(const TrainOptions& options, const Context& context);

void apply(const TrainerKeys& keys, trainer::TrainerOptions& options);

}  // namespace fp8::commands
