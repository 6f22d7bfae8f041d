// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/callbacks/throughput.h"

#include <stdexcept>
#include <utility>

#include "fp8/runtime/trainer/loggers/logger.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {
namespace {

constexpr char kThroughputRows[] = "ThroughputRows";

void log_speed(const Trainer& trainer) { log_to_all(trainer, trainer.speed(), trainer.steps_done()); }

}  // namespace

void ThroughputRows::on_fit_start(Trainer& trainer, std::int64_t) { check_loggers(trainer, kThroughputRows); }
void ThroughputRows::on_validation_start(Trainer& trainer) { check_loggers(trainer, kThroughputRows); }
void ThroughputRows::on_test_start(Trainer& trainer) { check_loggers(trainer, kThroughputRows); }
void ThroughputRows::on_predict_start(Trainer& trainer) { check_loggers(trainer, kThroughputRows); }
void ThroughputRows::on_fit_end(Trainer& trainer) { log_speed(trainer); }
void ThroughputRows::on_validation_end(Trainer& trainer, double) { log_speed(trainer); }
void ThroughputRows::on_test_end(Trainer& trainer, double) { log_speed(trainer); }
void ThroughputRows::on_predict_end(Trainer& trainer) { log_speed(trainer); }

ThroughputMonitor::ThroughputMonitor(std::int64_t window_size, std::string separator)
    : window_size_(static_cast<std::size_t>(window_size)), separator_(std::move(separator)) {
  if (window_size < 2)
    throw std::invalid_argument("[ThroughputMonitor] window_size: found " + std::to_string(window_size) +
                                ", allowed: 2 or more");
}

void ThroughputMonitor::on_fit_start(Trainer& trainer, std::int64_t) {
  check_loggers(trainer, "ThroughputMonitor");
  window_.clear();
}

void ThroughputMonitor::on_step_end(Trainer& trainer, const StepReport& report) {
  const auto& options = trainer.options();
  const double ranks = options.group != nullptr ? options.group->size() : 1;
  const Sums before = window_.empty() ? Sums{} : window_.back();
  window_.push_back({before.time + report.seconds, before.batches + static_cast<double>(report.batches),
                     before.samples + static_cast<double>(report.samples) / ranks,
                     before.lengths + static_cast<double>(report.tokens) / ranks});
  if (window_.size() > window_size_) window_.pop_front();
  if (report.step % options.log_every_n_steps != 0) return;
  const Sums &first = window_.front(), &last = window_.back();
  const std::string stage = "train" + separator_, device = stage + "device" + separator_;
  io::Json row = {{stage + "time", last.time},
                  {stage + "batches", last.batches},
                  {stage + "samples", last.samples},
                  {stage + "lengths", last.lengths}};
  for (const auto& [name, done] : {std::pair("batches_per_sec", last.batches - first.batches),
                                   std::pair("samples_per_sec", last.samples - first.samples),
                                   std::pair("items_per_sec", last.lengths - first.lengths)}) {
    if (window_.size() < window_size_) continue;
    row[device + name] = done / (last.time - first.time);
    if (ranks > 1) row[stage + name] = ranks * done / (last.time - first.time);
  }
  log_to_all(trainer, row, report.step);
}

}  // namespace fp8::trainer
