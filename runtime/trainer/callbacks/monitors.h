// SPDX-License-Identifier: Apache-2.0
// Callbacks that write rows about the optimizer to the trainer's loggers, by Lightning's names:
//
//   LearningRateMonitor   lr-AdamW; lr-AdamW/pg1, lr-AdamW/pg2 for groups of parameters, lr-AdamW-1 for a second AdamW
//   GradientNorms         grad_2.0_norm/PARAMETER for each parameter with a gradient, grad_2.0_norm_total
#pragma once
#include <cstdint>
#include <optional>

#include "fp8/runtime/trainer/trainer_callback.h"
#include "fp8/runtime/trainer/training_module.h"

namespace fp8::trainer {

/// The rates that a step or an epoch is made with.
class LearningRateMonitor : public TrainerCallback {
 public:
  /// every: a row for each step that is logged (TrainerOptions::log_every_n_steps), or for each epoch.
  explicit LearningRateMonitor(ScheduleInterval every = ScheduleInterval::step) : every_(every) {}

  /// Throws std::invalid_argument where there is no logger.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_train_epoch_start(Trainer& trainer, std::int64_t epoch) override;
  void on_before_optimizer_step(Trainer& trainer) override;

 private:
  ScheduleInterval every_;
};

/// Norms of the gradients as the optimizer gets them: whole, of all ranks, clipped.
class GradientNorms : public TrainerCallback {
 public:
  /// norm_type: above 0, infinity for the largest magnitude; else std::invalid_argument.
  explicit GradientNorms(double norm_type = 2);

  /// Throws std::invalid_argument where there is no logger.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_before_optimizer_step(Trainer& trainer) override;

 private:
  double norm_type_;
};

}  // namespace fp8::trainer
