// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/callbacks/early_stopping.h"

#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {
namespace {

const char* mode_name(MonitorMode mode) { return mode == MonitorMode::min ? "min" : "max"; }

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double monitored(const Trainer& trainer, const std::string& name, const char* who, const char* key) {
  if (const auto found = trainer.metric(name)) return *found;
  std::string allowed;
  for (const auto& [other, value] : trainer.callback_metrics()) allowed += (allowed.empty() ? "" : ", ") + other;
  io::fail<std::invalid_argument>("[{}] {}: found '{}', allowed: {}", who, key, name,
                                  allowed.empty() ? "what a step has logged, which is nothing yet" : allowed);
}

EarlyStopping::EarlyStopping(EarlyStoppingOptions options) : options_(std::move(options)) {
  const auto refuse = [](const char* name, const std::string& found, const char* allowed) {
    io::fail<std::invalid_argument>("[EarlyStopping] {}: found {}, allowed: {}", name, found, allowed);
  };
  if (options_.monitor.empty()) refuse("monitor", "none", "the name of a number that a step logs");
  if (options_.patience < 0) refuse("patience", std::to_string(options_.patience), "0 or more");
  if (!(options_.min_delta >= 0) || std::isinf(options_.min_delta))
    refuse("min_delta", io::number_text(options_.min_delta), "0 or more");
  for (const auto& [name, threshold] : {std::pair("stopping_threshold", options_.stopping_threshold),
                                        std::pair("divergence_threshold", options_.divergence_threshold)})
    if (threshold && std::isnan(*threshold)) refuse(name, "nan", "a number");
}

/// Several may watch several numbers.
std::string EarlyStopping::state_key() const {
  return "EarlyStopping." + options_.monitor + "." + mode_name(options_.mode);
}

io::Json EarlyStopping::state() const {
  return {{"best_score", best_ ? io::number_or_text(*best_) : io::Json(nullptr)},
          {"wait_count", wait_},
          {"reason", reason_}};
}

void EarlyStopping::load_state(const io::Json& state) {
  const auto& best = state.at("best_score");
  best_ = best.is_null() ? std::nullopt : std::optional(io::number_or_nan(best));
  wait_ = state.at("wait_count").get<std::int64_t>();
  reason_ = state.at("reason").get<std::string>();
}

void EarlyStopping::begin_anew() {
  best_.reset();
  wait_ = 0;
  reason_.clear();
}

void EarlyStopping::on_fit_start(Trainer& trainer, std::int64_t) {
  if (!reason_.empty()) trainer.stop(reason_);
}

void EarlyStopping::on_step_end(Trainer& trainer, const StepReport& report) {
  if (report.val_loss) look(trainer);
}

void EarlyStopping::on_train_epoch_end(Trainer& trainer, std::int64_t) {
  if (!trainer.validates()) look(trainer);
}

bool EarlyStopping::better(double value, double than, double by) const {
  return options_.mode == MonitorMode::min ? value + by < than : value - by > than;
}

std::string EarlyStopping::judge(double value) {
  const std::string what = "'" + options_.monitor + "' is " + io::number_text(value);
  if (options_.check_finite && !std::isfinite(value)) return what + ", which is not finite";
  if (options_.stopping_threshold && better(value, *options_.stopping_threshold, 0))
    return what + ", past stopping_threshold " + io::number_text(*options_.stopping_threshold);
  // The other way round: worse than the threshold.
  if (options_.divergence_threshold && better(-value, -*options_.divergence_threshold, 0))
    return what + ", past divergence_threshold " + io::number_text(*options_.divergence_threshold);
  if (!best_ || better(value, *best_, options_.min_delta)) {
    best_ = value;
    wait_ = 0;
    return "";
  }
  if (++wait_ < options_.patience) return "";
  return io::message("'{}' was not better than {} for {} looks in a row", options_.monitor, io::number_text(*best_),
                     wait_);
}

void EarlyStopping::look(Trainer& trainer) {
  if (!options_.strict && !trainer.metric(options_.monitor)) return;
  reason_ = judge(monitored(trainer, options_.monitor, "EarlyStopping"));
  if (!reason_.empty()) trainer.stop(reason_);
}

Timer::Timer(std::optional<double> duration, ScheduleInterval interval) : duration_(duration), interval_(interval) {
  if (duration && (!(*duration >= 0) || std::isinf(*duration)))
    io::fail<std::invalid_argument>("[Timer] duration: found {}, allowed: 0 seconds or more",
                                    io::number_text(*duration));
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
