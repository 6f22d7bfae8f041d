// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/callbacks/device_stats_monitor.h"

#include <string>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/trainer/loggers/logger.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {
void DeviceStatsMonitor::log(const Trainer& trainer, const char* hook) const {
  if (trainer.loggers().empty()) return;
  const std::string prefix = std::string("DeviceStatsMonitor.") + hook + "/";
  io::Json row = io::Json::object();
  for (const auto& [key, value] : runtime::by_name(runtime::memory_stats(device_))) row[prefix + key] = value;
  log_to_all(trainer, row, step_);
}

void DeviceStatsMonitor::on_fit_start(Trainer& trainer, std::int64_t step) {
  check_loggers(trainer, "DeviceStatsMonitor");
  step_ = step;
}
void DeviceStatsMonitor::on_validation_start(Trainer& trainer) { check_loggers(trainer, "DeviceStatsMonitor"); }
void DeviceStatsMonitor::on_test_start(Trainer& trainer) { check_loggers(trainer, "DeviceStatsMonitor"); }
void DeviceStatsMonitor::on_predict_start(Trainer& trainer) { check_loggers(trainer, "DeviceStatsMonitor"); }

void DeviceStatsMonitor::on_train_batch_start(Trainer& trainer, const Batch&, std::int64_t) {
  log(trainer, "on_train_batch_start");
}
void DeviceStatsMonitor::on_train_batch_end(Trainer& trainer, const Batch&, std::int64_t, double) {
  log(trainer, "on_train_batch_end");
}
void DeviceStatsMonitor::on_validation_batch_start(Trainer& trainer, const Batch&, std::int64_t) {
  log(trainer, "on_validation_batch_start");
}
void DeviceStatsMonitor::on_validation_batch_end(Trainer& trainer, const Batch&, std::int64_t, double) {
  log(trainer, "on_validation_batch_end");
}
void DeviceStatsMonitor::on_test_batch_start(Trainer& trainer, const Batch&, std::int64_t) {
  log(trainer, "on_test_batch_start");
}
void DeviceStatsMonitor::on_test_batch_end(Trainer& trainer, const Batch&, std::int64_t, double) {
  log(trainer, "on_test_batch_end");
}
void DeviceStatsMonitor::on_predict_batch_start(Trainer& trainer, const Batch&, std::int64_t) {
  log(trainer, "on_predict_batch_start");
}
void DeviceStatsMonitor::on_predict_batch_end(Trainer& trainer, const Batch&, std::int64_t,
                                              const std::vector<at::Tensor>&) {
  log(trainer, "on_predict_batch_end");
}

}  // namespace fp8::trainer
