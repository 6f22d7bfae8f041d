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
#include <string>

#include "fp8/runtime/trainer/trainer_callback.h"

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

  /// total: -1 where nobody knows.
  static std::string line(const std::string& what, std::int64_t done, std::int64_t total, const std::string& more = {});

 private:
  void draw(const std::string& what, std::int64_t done, std::int64_t total, const std::string& more = {});
  void clear();

  ProgressBarOptions options_;
  std::int64_t steps_ = -1;  ///< of the run
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_ = {};
};

}  // namespace fp8::trainer
