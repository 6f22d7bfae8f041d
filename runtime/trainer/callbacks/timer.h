// SPDX-License-Identifier: Apache-2.0
// Lightning's Timer: training ends when fit() has taken so long, what it took before a resume included. It looks after
// each step or each epoch; of several ranks all end, after the step that follows.
#pragma once
#include <cstdint>
#include <optional>

#include "fp8/runtime/trainer/trainer_callback.h"
#include "fp8/runtime/trainer/training_module.h"

namespace fp8::trainer {

class Timer : public TrainerCallback {
 public:
  /// duration: seconds, 0 or more, else std::invalid_argument; none: the time is taken and ends nothing.
  explicit Timer(std::optional<double> duration, ScheduleInterval interval = ScheduleInterval::step);

  std::string state_key() const override { return "Timer"; }
  io::Json state() const override { return {{"time_elapsed", time_elapsed()}}; }
  void load_state(const io::Json& state) override { before_ = state.at("time_elapsed").get<double>(); }
  void begin_anew() override { before_ = 0; }

  /// Of a run that was over: ends it again.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_step_end(Trainer& trainer, const StepReport& report) override;
  void on_train_epoch_end(Trainer& trainer, std::int64_t epoch) override;
  void on_fit_end(Trainer& trainer) override;

  double time_elapsed() const;  ///< seconds of fit()

 private:
  void look(Trainer& trainer) const;

  std::optional<double> duration_;
  ScheduleInterval interval_;
  double before_ = 0;
  std::optional<double> start_;  ///< within fit()
};

}  // namespace fp8::trainer
