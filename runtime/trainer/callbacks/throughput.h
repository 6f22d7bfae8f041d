// SPDX-License-Identifier: Apache-2.0
// The speed of each loop as a row to the trainer's loggers when the loop ends, by Optimum's names (metrics.h):
//
//   fit         train_runtime, train_samples_per_second, train_steps_per_second, train_tokens_per_second
//   validate    eval_...      test    test_...      predict    predict_...
//
// TrainerOptions::throughput_warmup_steps are left out of the speeds, but not in a validation of fit(), which is warm;
// adjust_throughput leaves out what fit() takes for logging, validation and checkpoints.
#pragma once
#include <cstdint>
#include <deque>
#include <string>

#include "fp8/runtime/trainer/trainer_callback.h"

namespace fp8::trainer {

/// Throws std::invalid_argument where a loop begins without a logger. A fast_dev_run has none, and no rows.
class ThroughputRows : public TrainerCallback {
 public:
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_validation_start(Trainer& trainer) override;
  void on_test_start(Trainer& trainer) override;
  void on_predict_start(Trainer& trainer) override;
  void on_fit_end(Trainer& trainer) override;
  void on_validation_end(Trainer& trainer, double loss) override;
  void on_test_end(Trainer& trainer, double loss) override;
  void on_predict_end(Trainer& trainer) override;
};

// Lightning's ThroughputMonitor: with each step that is logged, how much training has done so far and how fast it was
// over the last `window_size` steps:
//
//   train/time  train/batches  train/samples  train/lengths               since fit() began, without validation
//   train/device/batches_per_sec  .../samples_per_sec  .../items_per_sec  of a rank, from a full window on
//   train/batches_per_sec  train/samples_per_sec  train/items_per_sec     of all ranks, where there are several
//
// Batches say how many samples and tokens (items) they have. The other loops' speed: throughput.h.

class ThroughputMonitor : public TrainerCallback {
 public:
  /// window_size: steps, 2 or more, else std::invalid_argument.
  explicit ThroughputMonitor(std::int64_t window_size = 100, std::string separator = "/");

  /// Throws std::invalid_argument where there is no logger.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_step_end(Trainer& trainer, const StepReport& report) override;

 private:
  struct Sums {
    double time = 0, batches = 0, samples = 0, lengths = 0;
  };
  std::size_t window_size_;
  std::string separator_;
  std::deque<Sums> window_;
};

}  // namespace fp8::trainer
