// SPDX-License-Identifier: Apache-2.0
// Lightning's OnExceptionCheckpoint: where something is thrown within fit(), DIRPATH/FILENAME gets the parameters,
// optimizers and place of the last whole step; random numbers and buffers are as the failed step left them. Of one
// rank: ranks write a checkpoint together, and one of them that fails is alone.
#pragma once
#include <filesystem>
#include <string>

#include "fp8/runtime/trainer/trainer_callback.h"

namespace fp8::trainer {

class OnExceptionCheckpoint : public TrainerCallback {
 public:
  /// Throws std::invalid_argument for an empty dirpath, and a filename that is none.
  explicit OnExceptionCheckpoint(std::filesystem::path dirpath, const std::string& filename = "on_exception");

  bool in_fast_dev_run() const override { return false; }
  /// Throws std::invalid_argument for several ranks.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_exception(Trainer& trainer, const std::exception& error) override;

 private:
  std::filesystem::path folder_;
};

}  // namespace fp8::trainer
