// SPDX-License-Identifier: Apache-2.0
// Lightning's DeviceStatsMonitor: the device's ten statistics (device/allocator.h), a row to each logger before and
// after every batch of every loop:
//
//   DeviceStatsMonitor.on_train_batch_start/Limit, .../InUse, ... .../TotalActiveAllocs
//   DeviceStatsMonitor.on_{train,validation,test,predict}_batch_{start,end}/...
//
// A training batch ends after its backward, before the optimizer's step (trainer_callback.h).
#pragma once
#include <cstdint>
#include <vector>

#include "fp8/runtime/trainer/trainer_callback.h"

namespace fp8::trainer {

/// Throws std::invalid_argument where a loop begins without a logger. A fast_dev_run has none,
/// and no rows.
class DeviceStatsMonitor : public TrainerCallback {
 public:
  explicit DeviceStatsMonitor(int device = 0) : device_(device) {}

  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_validation_start(Trainer& trainer) override;
  void on_test_start(Trainer& trainer) override;
  void on_predict_start(Trainer& trainer) override;
  void on_train_batch_start(Trainer& trainer, const Batch&, std::int64_t) override;
  void on_train_batch_end(Trainer& trainer, const Batch&, std::int64_t, double) override;
  void on_validation_batch_start(Trainer& trainer, const Batch&, std::int64_t) override;
  void on_validation_batch_end(Trainer& trainer, const Batch&, std::int64_t, double) override;
  void on_test_batch_start(Trainer& trainer, const Batch&, std::int64_t) override;
  void on_test_batch_end(Trainer& trainer, const Batch&, std::int64_t, double) override;
  void on_predict_batch_start(Trainer& trainer, const Batch&, std::int64_t) override;
  void on_predict_batch_end(Trainer& trainer, const Batch&, std::int64_t, const std::vector<at::Tensor>&) override;
  void on_step_end(Trainer&, const StepReport& report) override { step_ = report.step; }

 private:
  void log(const Trainer& trainer, const char* hook) const;

  int device_;
  std::int64_t step_ = 0;
};

}  // namespace fp8::trainer
