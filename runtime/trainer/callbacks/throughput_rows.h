// SPDX-License-Identifier: Apache-2.0
// The speed of each loop as a row to the trainer's loggers when the loop ends, by Optimum's names (throughput.h):
//
//   fit         train_runtime, train_samples_per_second, train_steps_per_second, train_tokens_per_second
//   validate    eval_...      test    test_...      predict    predict_...
//
// TrainerOptions::throughput_warmup_steps are left out of the speeds, but not in a validation of fit(), which is warm;
// adjust_throughput leaves out what fit() takes for logging, validation and checkpoints.
#pragma once
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

}  // namespace fp8::trainer
