// SPDX-License-Identifier: Apache-2.0
// The writer of a training log (train_log_file.h).
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/loggers/log_file.h"
#include "fp8/runtime/trainer/trainer_callback.h"
#include "fp8/tools/commands/train/train_log_file.h"

namespace fp8::commands {

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

}  // namespace fp8::commands
