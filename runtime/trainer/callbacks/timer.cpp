// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/callbacks/timer.h"

#include <chrono>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Timer::Timer(std::optional<double> duration, ScheduleInterval interval) : duration_(duration), interval_(interval) {
  if (duration && (!(*duration >= 0) || std::isinf(*duration)))
    throw std::invalid_argument("[Timer] duration: found " + io::number_text(*duration) +
                                ", allowed: 0 seconds or more");
}

double Timer::time_elapsed() const { return before_ + (start_ ? seconds_now() - *start_ : 0); }

void Timer::look(Trainer& trainer) const {
  if (duration_ && time_elapsed() >= *duration_)
    trainer.stop("Timer: " + io::number_text(*duration_) + " seconds are over");
}

void Timer::on_fit_start(Trainer& trainer, std::int64_t) {
  start_ = seconds_now();
  look(trainer);
}
void Timer::on_step_end(Trainer& trainer, const StepReport&) {
  if (interval_ == ScheduleInterval::step) look(trainer);
}
void Timer::on_train_epoch_end(Trainer& trainer, std::int64_t) {
  if (interval_ == ScheduleInterval::epoch) look(trainer);
}
void Timer::on_fit_end(Trainer&) {
  before_ = time_elapsed();
  start_.reset();
}

}  // namespace fp8::trainer
