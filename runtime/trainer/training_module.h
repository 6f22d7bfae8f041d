// SPDX-License-Identifier: Apache-2.0
// The subject of training: a network, its loss, its optimizers and schedules. The names are those of
// Lightning's modules.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fp8/runtime/trainer/batch_source.h"
#include "fp8/runtime/trainer/checkpoint_io.h"
#include "fp8/runtime/trainer/metrics.h"

namespace torch::nn {
class Module;
}

namespace torch::optim {
class Optimizer;
class LRScheduler;
}  // namespace torch::optim

namespace fp8::trainer {

enum class ScheduleInterval : std::uint8_t { step, epoch };

/// One of LibTorch's schedulers. It holds a reference to its optimizer. fit() calls step() once at the start, which
/// sets the first rate, and then after every interval.
struct Scheduler {
  std::shared_ptr<torch::optim::LRScheduler> scheduler;
  ScheduleInterval interval = ScheduleInterval::epoch;
};

struct Optimizers {
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;
  std::vector<Scheduler> schedulers = {};
  /// The learning rate of optimizer step `step` (from 0) as a factor of the rate each group was made with; none:
  /// constant.
  std::function<double(std::int64_t step)> lr_factor = {};
};

class TrainingModule {
 public:
  virtual ~TrainingModule() = default;

  virtual torch::nn::Module& network() = 0;
  /// A number of the step in progress, for loggers and callbacks (metrics.h has the rows that it is in). Throws
  /// std::logic_error outside of training_step, validation_step and test_step.
  void log(const std::string& name, double value, LogWhen when = {});
  /// The mean loss of a batch, a tensor of one element with a gradient. index: the batch within its epoch.
  virtual at::Tensor training_step(const Batch& batch, std::int64_t index) = 0;
  /// The mean loss of a batch; called without gradients, in eval mode.
  virtual at::Tensor validation_step(const Batch& batch, std::int64_t index) { return training_step(batch, index); }
  virtual at::Tensor test_step(const Batch& batch, std::int64_t index) { return validation_step(batch, index); }
  /// Predictions for a batch, any number of tensors; called without gradients, in eval mode. A module that
  /// has none throws std::logic_error.
  virtual std::vector<at::Tensor> predict_step(const Batch& batch, std::int64_t index);
  /// Called once at the start of fit().
  virtual Optimizers configure_optimizers() = 0;

  /// More files for the checkpoint being written into `folder` (a temporary name).
  virtual void save_files(const std::filesystem::path& /*folder*/) {}
  /// State beside parameters, buffers and optimizers: scales and amax histories.
  virtual TrainingState extra_state() { return {}; }
  virtual void load_extra_state(const TrainingState& /*state*/) {}

 private:
  friend class Trainer;
  friend class ModuleAdapter;
  Metrics* metrics_ = nullptr;  ///< the trainer's, while it runs
};

/// Linear warm-up over `warmup` steps, then a cosine to `min_factor` at step `steps` (lr_schedule.h).
std::function<double(std::int64_t)> cosine_with_warmup(std::int64_t warmup, std::int64_t steps, double min_factor);

// Another module with some of its functions replaced: derive and override.

class ModuleAdapter : public TrainingModule {
 public:
  /// The module must outlive this. What it logs is logged by the trainer of this one.
  explicit ModuleAdapter(TrainingModule& inner) : inner_(inner) {}

  torch::nn::Module& network() override { return inner_.network(); }
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    return inner().training_step(batch, index);
  }
  at::Tensor validation_step(const Batch& batch, std::int64_t index) override {
    return inner().validation_step(batch, index);
  }
  at::Tensor test_step(const Batch& batch, std::int64_t index) override { return inner().test_step(batch, index); }
  std::vector<at::Tensor> predict_step(const Batch& batch, std::int64_t index) override {
    return inner().predict_step(batch, index);
  }
  Optimizers configure_optimizers() override { return inner_.configure_optimizers(); }
  void save_files(const std::filesystem::path& folder) override { inner_.save_files(folder); }
  TrainingState extra_state() override { return inner_.extra_state(); }
  void load_extra_state(const TrainingState& state) override { inner_.load_extra_state(state); }

 protected:
  TrainingModule& inner() {
    inner_.metrics_ = metrics_;
    return inner_;
  }

 private:
  TrainingModule& inner_;
};

}  // namespace fp8::trainer
