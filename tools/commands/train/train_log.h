// SPDX-License-Identifier: Apache-2.0
// OUT/log.jsonl: one object a line for each optimizer step.
//
//   {"step": 1, "epoch": 0, "loss": 5.54, "lr": 1e-05, "grad_norm": 3.2, "tokens": 4096, "seconds": 0.31,
//    "tokens_per_second": 13213.1, "memory": {"in_use": 21000000, "max": 91000000}}
//    and, where there is something to say: "eval_loss", "loss_scale" (16-mixed), "skipped": true (loss or grad_norm is
//    null then), "fp8": {...}
//
// tokens, seconds: of this step. memory: bytes of the device's tensors; with --device cpu {"resident_max"} of the
// process. A line is one write(2): a killed run leaves whole lines, or one cut short, which a resumed run drops.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/trainer_callback.h"

namespace fp8::commands {

/// In the folder of a run: this log, and what the run was asked for.
inline constexpr char kTrainLogFile[] = "log.jsonl", kTrainSettingsFile[] = "train.json";

/// The lines of a log; a last line cut short is left out. Throws io::Error naming file and line for anything else that
/// is no such log.
std::vector<io::Json> read_log(const std::filesystem::path& path);

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
  void on_step_end(trainer::Trainer&, const trainer::StepReport& report) override;
  void on_save_checkpoint(trainer::Trainer&, std::int64_t step) override;

 private:
  std::filesystem::path path_;
  io::Descriptor file_;
  std::function<void(io::Json&)> more_;
};

}  // namespace fp8::commands
