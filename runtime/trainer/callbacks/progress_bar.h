// SPDX-License-Identifier: Apache-2.0
// A line on the terminal that says how far a loop is; it goes when the loop ends:
//
//   fit [########................]  35% 12/34, epoch 0, loss 2.3108
//   predict [############............]  50% 4/8
//
// A validation within fit() has the line meanwhile. Where standard error is no terminal, nothing is written.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "fp8/runtime/trainer/trainer_callback.h"
#include "fp8/runtime/trainer/training_module.h"

namespace fp8::trainer {

struct ProgressBarOptions {
  double seconds = 0.1;                                ///< between two drawings at least; 0: draws each step
  std::function<void(const std::string&)> write = {};  ///< none: standard error, if that is a terminal
};

class ProgressBar : public TrainerCallback {
 public:
  explicit ProgressBar(ProgressBarOptions options = {});

  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_step_end(Trainer& trainer, const StepReport& report) override;
  void on_fit_end(Trainer& trainer) override;
  void on_validation_start(Trainer& trainer) override;
  void on_validation_batch_end(Trainer& trainer, const Batch& batch, std::int64_t index, double loss) override;
  void on_validation_end(Trainer& trainer, double loss) override;
  void on_test_start(Trainer& trainer) override;
  void on_test_batch_end(Trainer& trainer, const Batch& batch, std::int64_t index, double loss) override;
  void on_test_end(Trainer& trainer, double loss) override;
  void on_predict_start(Trainer& trainer) override;
  void on_predict_batch_end(Trainer& trainer, const Batch& batch, std::int64_t index,
                            const std::vector<at::Tensor>& outputs) override;
  void on_predict_end(Trainer& trainer) override;

  /// total: -1 if it is not known.
  static std::string line(const std::string& what, std::int64_t done, std::int64_t total, const std::string& more = {});

 private:
  void draw(const std::string& what, std::int64_t done, std::int64_t total, const std::string& more = {});
  void clear();

  ProgressBarOptions options_;
  std::int64_t steps_ = -1;  ///< of the run
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_ = {};
};

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
