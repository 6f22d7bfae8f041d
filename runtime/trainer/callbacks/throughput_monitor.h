// SPDX-License-Identifier: Apache-2.0
// Lightning's ThroughputMonitor: with each step that is logged, how much training has done so far and how fast it was
// over the last `window_size` steps:
//
//   train/time  train/batches  train/samples  train/lengths               since fit() began, without validation
//   train/device/batches_per_sec  .../samples_per_sec  .../items_per_sec  of a rank, from a full window on
//   train/batches_per_sec  train/samples_per_sec  train/items_per_sec     of all ranks, where there are several
//
// Batches say how many samples and tokens (items) they have. The other loops' speed: throughput_rows.h.
#pragma once
#include <cstdint>
#include <deque>
#include <string>

#include "fp8/runtime/trainer/trainer_callback.h"

namespace fp8::trainer {

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
