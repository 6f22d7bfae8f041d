// SPDX-License-Identifier: Apache-2.0
// The callbacks of `fp8 train`: those of its options, and those that a run file names.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/callbacks/model_checkpoint.h"
#include "fp8/runtime/trainer/loggers.h"
#include "fp8/runtime/trainer/parts.h"
#include "fp8/runtime/trainer/trainer.h"
#include "fp8/runtime/trainer/training_module.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/train/train_options.h"
#include "fp8/tools/commands/train/train_precision.h"
#include "fp8/tools/commands/train/train_settings.h"
#include "fp8/tools/commands/work/snapshots.h"

namespace fp8::commands {

using Callbacks = std::vector<std::shared_ptr<trainer::TrainerCallback>>;

/// The values that a part of a run file may use.
trainer::PartContext part_context(const TrainOptions& options, const Context& context);

/// Those of every rank: what ends training or writes a checkpoint does so on all of them. Throws io::Error naming
/// the place of a part that is wrong.
Callbacks callbacks_of(const TrainOptions& options, const Context& context);

/// Throws the errors of callbacks_of(), before anything is written.
void check_callbacks(const TrainOptions& options, const Context& context);

/// Adds those of rank 0: log.jsonl, and a bar that knows where training starts. steps: of the whole run; -1: not
/// known.
void add_log(Callbacks& callbacks, const TrainOptions& options, const Context& context, const TrainPrecision& precision,
             std::int64_t steps);

/// Says where a run that was asked to stop can go on. Throws Interrupted.
[[noreturn]] void end_early(const TrainOptions& options, const Context& context, const trainer::FitResult& result);

/// The trainer's options, from options and keys of a run file; of a model of one's own without its length.
trainer::TrainerOptions trainer_options(const TrainOptions& options, const TrainPrecision& precision,
                                        const TrainRanks& ranks);
/// The settings of a run file that fp8 train has no option for.
/// Steps of `epochs` epochs of `batches` batches that all ranks share, by what the run says of them.
std::int64_t steps_of_epochs(const TrainOptions& options, std::int64_t batches, int ranks, double epochs);

/// That of --profile, or of a run file; null: none. What it says are warnings of `context`, which must outlive it.
std::shared_ptr<runtime::Profiler> profiler_of(const TrainOptions& options, const Context& context);

void apply(const TrainerKeys& keys, trainer::TrainerOptions& options);

// The writer of a training log (work/snapshots.h).

class TrainLog : public trainer::TrainerCallback {
 public:
  /// more: adds to a step's entry what else is to be logged. Opens the file and locks it for this process; throws
  /// io::Error if another run holds it.
  TrainLog(std::filesystem::path path, std::function<void(io::Json&)> more);

  /// Throws io::Error if a run is writing this log; nothing if there is none.
  static void refuse_if_locked(const std::filesystem::path& path);

  bool is_logger() const override { return true; }
  /// The log ends with `step` from here on. Throws io::Error if it does not reach so far.
  void on_fit_start(trainer::Trainer&, std::int64_t step) override;
  /// The step's line, and a row of the same numbers to each of the trainer's loggers.
  void on_step_end(trainer::Trainer& trainer, const trainer::StepReport& report) override;
  void on_save_checkpoint(trainer::Trainer&, std::int64_t step) override;

 private:
  trainer::LogFile file_;
  std::function<void(io::Json&)> more_;
};

// --load-best: the weights of OUT are those of the checkpoint of lowest eval_loss.

/// The first that keeps the best; null: none does.
std::shared_ptr<const trainer::ModelCheckpoint> best_of(
    const std::vector<std::shared_ptr<trainer::TrainerCallback>>& callbacks);

/// Replaces the weights in `out` by those of `checkpoint`, a folder of the same run with the same files. Nothing if
/// that is empty, for no evaluation has had a number. Throws io::Error.
void take_weights(const std::filesystem::path& checkpoint, const std::filesystem::path& out);

}  // namespace fp8::commands
