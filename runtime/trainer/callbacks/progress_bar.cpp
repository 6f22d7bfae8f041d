// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/callbacks/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {

ProgressBar::ProgressBar(ProgressBarOptions options) : options_(std::move(options)) {
  if (options_.write || isatty(STDERR_FILENO) == 0) return;
  options_.write = [](const std::string& text) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());  // a lost line does no harm
  };
}

std::string ProgressBar::line(const std::string& what, std::int64_t done, std::int64_t total, const std::string& more) {
  constexpr std::int64_t kWidth = 24;
  const auto tail = more.empty() ? "" : ", " + more;
  if (total <= 0) return what + " " + std::to_string(done) + tail;
  done = std::min(done, total);
  const auto filled = static_cast<std::size_t>(done * kWidth / total);
  char share[16];
  std::snprintf(share, sizeof share, "%3d%%", static_cast<int>(done * 100 / total));
  return what + " [" + std::string(filled, '#') + std::string(static_cast<std::size_t>(kWidth) - filled, '.') + "] " +
         share + " " + std::to_string(done) + "/" + std::to_string(total) + tail;
}

void ProgressBar::draw(const std::string& what, std::int64_t done, std::int64_t total, const std::string& more) {
  if (!options_.write) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && now - last_ < std::chrono::duration<double>(options_.seconds)) return;
  last_ = now;
  drawn_ = true;
  options_.write("\r" + line(what, done, total, more) + "\x1b[K");
}

void ProgressBar::clear() {
  if (std::exchange(drawn_, false)) options_.write("\r\x1b[K");
}

void ProgressBar::on_fit_start(Trainer& trainer, std::int64_t step) {
  steps_ = trainer.estimated_stepping_batches();
  draw("fit", step, steps_);
}

void ProgressBar::on_step_end(Trainer&, const StepReport& report) {
  char more[64];
  std::snprintf(more, sizeof more, "epoch %lld, loss %.4f", static_cast<long long>(report.epoch), report.loss);
  draw("fit", report.step, steps_, more);
}

void ProgressBar::on_fit_end(Trainer&) { clear(); }

void ProgressBar::on_validation_start(Trainer& trainer) { draw("validate", 0, trainer.loop_batches()); }
void ProgressBar::on_validation_batch_end(Trainer& trainer, const Batch&, std::int64_t index, double) {
  draw("validate", index + 1, trainer.loop_batches());
}
void ProgressBar::on_validation_end(Trainer&, double) { clear(); }

void ProgressBar::on_test_start(Trainer& trainer) { draw("test", 0, trainer.loop_batches()); }
void ProgressBar::on_test_batch_end(Trainer& trainer, const Batch&, std::int64_t index, double) {
  draw("test", index + 1, trainer.loop_batches());
}
void ProgressBar::on_test_end(Trainer&, double) { clear(); }

void ProgressBar::on_predict_start(Trainer& trainer) { draw("predict", 0, trainer.loop_batches()); }
void ProgressBar::on_predict_batch_end(Trainer& trainer, const Batch&, std::int64_t index,
                                       const std::vector<at::Tensor>&) {
  draw("predict", index + 1, trainer.loop_batches());
}
void ProgressBar::on_predict_end(Trainer&) { clear(); }

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
