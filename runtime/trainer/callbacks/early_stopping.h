// SPDX-License-Identifier: Apache-2.0
// Lightning's EarlyStopping: after each validation, or each epoch of training where there is none,
//
//   mode min   better = monitor + min_delta < best          mode max   better = monitor - min_delta > best
//
// and training ends when `patience` looks in a row were not better, when the number is NaN or infinite, when it is past
// stopping_threshold (good enough) or past divergence_threshold (lost).
#pragma once

#include "fp8/runtime/trainer/training_module.h"

namespace fp8::trainer {

enum class MonitorMode : std::uint8_t { min, max };

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";  ///< of Trainer::callback_metrics()
  double min_delta = 0;              ///< >= 0
  std::int64_t patience = 3;         ///< >= 0
  MonitorMode mode = MonitorMode::min;
  bool strict = true;        ///< a monitor that is never logged is an error; else it is passed over
  bool check_finite = true;  ///< end at NaN and infinity
  std::optional<double> stopping_threshold = {}, divergence_threshold = {};
};

class EarlyStopping : public TrainerCallback {
 public:
  /// Throws std::invalid_argument naming the option.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  bool in_fast_dev_run() const override { return false; }
  std::string state_key() const override;
  io::Json state() const override;
  void load_state(const io::Json& state) override;
  void begin_anew() override;

  /// Of a run that it had ended: ends it again.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  /// Both throw std::invalid_argument for a monitor that is not there.
  void on_step_end(Trainer& trainer, const StepReport& report) override;
  void on_train_epoch_end(Trainer& trainer, std::int64_t epoch) override;

  std::optional<double> best_score() const { return best_; }
  std::int64_t wait_count() const { return wait_; }

 private:
  void look(Trainer& trainer);
  bool better(double value, double than, double by) const;
  /// Returns the reason to end training; "": it continues.
  std::string judge(double value);

  EarlyStoppingOptions options_;
  std::optional<double> best_;
  std::int64_t wait_ = 0;
  std::string reason_;
};

/// Trainer::metric(name). Throws std::invalid_argument "[who] monitor: found 'x', allowed: ..." where there is none.
double monitored(const Trainer& trainer, const std::string& name, const char* who, const char* key = "monitor");

// Lightning's Timer: training ends when fit() has taken so long, what it took before a resume included. It looks after
// each step or each epoch; of several ranks all end, after the step that follows.

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
