// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/callbacks/throughput_rows.h"

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

}  // namespace fp8::trainer
