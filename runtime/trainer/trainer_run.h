// SPDX-License-Identifier: Apache-2.0
// What changes during one fit(), and its form in a checkpoint. Not for users.
//
//   trainer_state.json         {"format": 1, "step", "epoch", "batch", "samples", "tokens", "skipped", "recent_losses",
//                               "val_loss", "schedulers": [steps], "grad_scaler" if there is one,
//                               "optimizer.0": tree, "extra": the module's}
//   trainer_state.safetensors  parameter.NAME, buffer.NAME, rng.cpu, optimizer.N.K, extra.NAME
#pragma once
#include <deque>
#include <optional>
#include <vector>

#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {

struct Trainer::Run {
  Run(TrainingModule& module, BatchSource& train, BatchSource* val, const TrainerOptions& options);

  void set_learning_rates();
  double learning_rate() const;
  void step_schedulers(ScheduleInterval interval);
  void count(const StepReport& report);
  TrainingState state() const;
  void restore(const TrainingState& state);

  TrainingModule& module;
  BatchSource& train;
  BatchSource* val;
  std::int64_t train_batches, val_batches = 0, val_interval = 0;
  std::vector<at::Tensor> parameters;  ///< each once
  Optimizers optimizers;
  std::vector<std::vector<double>> base_rates;  ///< per optimizer and group
  std::vector<std::int64_t> scheduler_steps;

  std::int64_t step = 0, epoch = 0, batch = 0;  ///< batch: taken of this epoch
  std::int64_t batch_before = 0;                ///< batches of the step in progress
  std::int64_t first_step = 0, saved_step = 0;
  std::int64_t samples = 0, tokens = 0, skipped = 0;
  std::deque<double> recent;  ///< the last 20 losses
  std::optional<double> val_loss;
  bool stopped = false;
  std::optional<GradScaler> scaler;
  double gradient_factor = 1;  ///< of the step in progress
  SpeedInput speed;
};

template <class F>
void Trainer::each(F&& call) {
  const runtime::PhaseScope phase("callbacks");
  for (const auto& callback : callbacks_) call(*callback);
}

}  // namespace fp8::trainer
