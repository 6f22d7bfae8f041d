// SPDX-License-Identifier: Apache-2.0
// Callbacks that write rows about the optimizer to the trainer's loggers, by Lightning's names:
//
//   LearningRateMonitor   lr-AdamW; lr-AdamW/pg1, lr-AdamW/pg2 for groups of parameters, lr-AdamW-1 for a second AdamW
//   GradientNorms         grad_2.0_norm/PARAMETER for each parameter with a gradient, grad_2.0_norm_total
#pragma once
#include <deque>

#include "fp8/runtime/trainer/training_module.h"

namespace fp8::trainer {

/// The rates that a step or an epoch is made with.
class LearningRateMonitor : public TrainerCallback {
 public:
  /// every: a row for each step that is logged (TrainerOptions::log_every_n_steps), or for each epoch.
  explicit LearningRateMonitor(ScheduleInterval every = ScheduleInterval::step) : every_(every) {}

  /// Throws std::invalid_argument where there is no logger.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_train_epoch_start(Trainer& trainer, std::int64_t epoch) override;
  void on_before_optimizer_step(Trainer& trainer) override;

 private:
  ScheduleInterval every_;
};

/// Norms of the gradients as the optimizer gets them: whole, of all ranks, clipped.
class GradientNorms : public TrainerCallback {
 public:
  /// norm_type: above 0, infinity for the largest magnitude; else std::invalid_argument.
  explicit GradientNorms(double norm_type = 2);

  /// Throws std::invalid_argument where there is no logger.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_before_optimizer_step(Trainer& trainer) override;

 private:
  double norm_type_;
};

// Lightning's DeviceStatsMonitor: the device's ten statistics (device/allocator.h), a row to each logger before and
// after every batch of every loop:
//
//   DeviceStatsMonitor.on_train_batch_start/Limit, .../InUse, ... .../TotalActiveAllocs
//   DeviceStatsMonitor.on_{train,validation,test,predict}_batch_{start,end}/...
//
// A training batch ends after its backward, before the optimizer's step (training_module.h).

/// Throws std::invalid_argument where a loop begins without a logger. A fast_dev_run has none, and no rows.
class DeviceStatsMonitor : public TrainerCallback {
 public:
  explicit DeviceStatsMonitor(int device = 0) : device_(device) {}

  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_loop_start(Trainer& trainer, Loop loop) override;
  void on_loop_batch_start(Trainer& trainer, Loop loop) override { log(trainer, loop, "start"); }
  void on_loop_batch_end(Trainer& trainer, Loop loop, std::int64_t) override { log(trainer, loop, "end"); }
  void on_step_end(Trainer&, const StepReport& report) override { step_ = report.step; }

 private:
  void log(const Trainer& trainer, Loop loop, const char* moment) const;

  int device_;
  std::int64_t step_ = 0;
};

// The speed of each loop as a row to the trainer's loggers when the loop ends, by Optimum's names (metrics.h):
//
//   fit         train_runtime, train_samples_per_second, train_steps_per_second, train_tokens_per_second
//   validate    eval_...      test    test_...      predict    predict_...
//
// TrainerOptions::throughput_warmup_steps are left out of the speeds, but not in a validation of fit(), which is warm;
// adjust_throughput leaves out what fit() takes for logging, validation and checkpoints.

/// Throws std::invalid_argument where a loop begins without a logger. A fast_dev_run has none, and no rows.
class ThroughputRows : public TrainerCallback {
 public:
  void on_loop_start(Trainer& trainer, Loop loop) override;
  void on_loop_end(Trainer& trainer, Loop loop) override;
};

// Lightning's ThroughputMonitor: with each step that is logged, how much training has done so far and how fast it was
// over the last `window_size` steps:
//
//   train/time  train/batches  train/samples  train/lengths               since fit() began, without validation
//   train/device/batches_per_sec  .../samples_per_sec  .../items_per_sec  of a rank, from a full window on
//   train/batches_per_sec  train/samples_per_sec  train/items_per_sec     of all ranks, where there are several
//
// Batches say how many samples and tokens (items) they have. ThroughputRows has the other loops' speed.

class ThroughputMonitor : public TrainerCallback {
 public:
  /// window_size: steps, 2 or more, else std::invalid_argument.
  explicit ThroughputMonitor(std::int64_t window_size = 100, std::string separator = "/");

  /// Throws std::invalid_argument where there is no logger.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_step_end(Trainer& trainer, const StepReport& report) override;

 private:
  struct Sums {
    double time = 0, batches = 0, samples = 0, lengths = 0;
  };
  std::size_t window_size_;
  std::string separator_;
  std::deque<Sums> window_;
};

// Optimum Habana's memory rows, every `logging_steps` optimizer steps: bytes / 1024^3, rounded to 2 decimals.
//
//   memory_allocated (GB)         in use
//   max_memory_allocated (GB)     the most that was
//   total_memory_available (GB)   the device's limit

inline constexpr std::int64_t kLoggingSteps = 500;

/// The three rows of hpu:device. With a group every rank calls it, and they are the largest of all ranks'. Throws
/// c10::Error "Invalid device id", and as ProcessGroup does.
io::Json memory_rows(int device = 0, runtime::distributed::ProcessGroup* group = nullptr);

enum class Gather : std::uint8_t {
  none,  ///< rank 0's own numbers
  max    ///< the largest of all ranks'
};

struct MemoryLogOptions {
  std::int64_t logging_steps = kLoggingSteps;
  std::shared_ptr<runtime::distributed::ProcessGroup> group = {};  ///< none: one process
  Gather gather = Gather::none;
  int device = 0;
};

/// The rows to the trainer's loggers, on rank 0 only; with Gather::max the other ranks take part.
class MemoryLog : public TrainerCallback {
 public:
  /// Throws std::invalid_argument for fewer than 1 logging_steps, and for Gather::max without a group.
  explicit MemoryLog(MemoryLogOptions options = {});
  /// Throws std::invalid_argument without a logger: on rank 0, with Gather::max on each. A fast_dev_run has none, and
  /// no rows.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_step_end(Trainer& trainer, const StepReport& report) override;

 private:
  bool first_rank() const;  ///< of the group, or as the launcher says

  MemoryLogOptions options_;
};

// A line on the terminal that says how far a loop is; it goes when the loop ends:
//
//   fit [########................]  35% 12/34, epoch 0, loss 2.3108
//   predict [############............]  50% 4/8
//
// A validation within fit() has the line meanwhile. Where standard error is no terminal, nothing is written.

struct ProgressBarOptions {
  double seconds = 0.1;                                ///< between two drawings at least; 0: draws each step
  std::function<void(const std::string&)> write = {};  ///< none: standard error, if that is a terminal
};

class ProgressBar : public TrainerCallback {
 public:
  explicit ProgressBar(ProgressBarOptions options = {});

  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_step_end(Trainer& trainer, const StepReport& report) override;
  void on_loop_start(Trainer& trainer, Loop loop) override;
  void on_loop_batch_end(Trainer& trainer, Loop loop, std::int64_t index) override;
  void on_loop_end(Trainer& trainer, Loop loop) override;

  /// total: -1 if it is not known.
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
