// SPDX-License-Identifier: Apache-2.0
// The parts of a run that its user writes: sources of batches, modules of data, the module that is trained, callbacks.
#pragma once

#include "fp8/runtime/trainer/checkpoint_io.h"
#include "fp8/runtime/trainer/metrics.h"

namespace torch::optim {
class LRScheduler;
}

namespace fp8::trainer {

// The sources of the trainer's batches. An epoch is a sequence of batches that is a function of (source, epoch) alone;
// a place in it is (epoch, number of batches taken), which the trainer saves and comes back to.

struct Batch {
  std::vector<at::Tensor> tensors;  ///< the inputs that the module's steps expect, on the device where they expect them
  std::int64_t samples = 0;         ///< at least 1: an empty batch is an error
  std::int64_t tokens = 0;          ///< the count that losses are averaged over; 0: the samples
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Batches of every epoch, the last of which may be smaller.
  virtual std::int64_t batches() const = 0;
  /// The next batch will be number `batch` of `epoch`, both counted from 0.
  virtual void seek(std::int64_t epoch, std::int64_t batch) = 0;
  /// Empty past the last batch of the epoch.
  virtual std::optional<Batch> next() = 0;

  /// Of the `ranks` batches from number `batch` of `epoch` on, the samples of one rank: the first for rank 0, the next
  /// for rank 1 and so on, as DistributedSampler deals them; samples 0 where none is left for it. A source that has
  /// whole batches only returns nothing, and each rank takes one of them.
  virtual std::optional<Batch> deal(std::int64_t /*epoch*/, std::int64_t /*batch*/, int /*rank*/, int /*ranks*/) {
    return std::nullopt;
  }
};

// Which batches of a source are whose. A group has one batch for each rank, so W ranks train with batches W times as
// large, of the samples that one process would take next:
//
//   batches of an epoch     0 1 2 | 3 4 5 | 6 7 _      3 ranks, 3 groups; the last rank has no third batch: it runs the
//   rank 1                    1       4       7        epoch's first once more, as DistributedSampler has it, but with
//                                                      weight 0, since one process would not take it either
//
// A source that can deals the samples of a group out one by one (BatchSource::deal).
//
// A run that is resumed on another number of ranks takes the next batch: what is done of that epoch is its offset, less
// whole groups. No torch here.

struct BatchShare {
  int rank = 0, size = 1;
  std::int64_t offset_epoch = -1, offset = 0;  ///< batches before the first group of that epoch; fewer than size

  std::int64_t offset_of(std::int64_t epoch) const { return epoch == offset_epoch ? offset : 0; }
  /// Of an epoch of `batches`.
  std::int64_t groups(std::int64_t epoch, std::int64_t batches) const {
    return (batches - offset_of(epoch) + size - 1) / size;
  }
  /// This rank's batch of a group; past the last for a rank that has none.
  std::int64_t index(std::int64_t epoch, std::int64_t group) const { return taken(epoch, group) + rank; }
  /// Batches that all ranks have taken before a group.
  std::int64_t taken(std::int64_t epoch, std::int64_t group) const { return offset_of(epoch) + group * size; }

  /// The group that begins with batch number `taken` of `epoch`, which has `batches`.
  std::int64_t go_to(std::int64_t epoch, std::int64_t taken, std::int64_t batches) {
    offset_epoch = epoch;
    offset = taken < batches ? taken % size : 0;
    return taken < batches ? taken / size : groups(epoch, batches);
  }
};

// The data of a run, all loops of it. The names are those of Lightning's LightningDataModule.

class DataModule {
 public:
  virtual ~DataModule() = default;
  /// Called by one process of a machine, before the others go on: downloads and conversions.
  virtual void prepare_data() {}
  /// Called once before the first of the four below.
  virtual void setup() {}
  /// Null: there is none. A batch's tensors may lie on the CPU: the loop moves them to the network's device.
  virtual std::unique_ptr<BatchSource> train_dataloader() { return nullptr; }
  virtual std::unique_ptr<BatchSource> val_dataloader() { return nullptr; }
  virtual std::unique_ptr<BatchSource> test_dataloader() { return nullptr; }
  virtual std::unique_ptr<BatchSource> predict_dataloader() { return nullptr; }
};

// The subject of training: a network, its loss, its optimizers and schedules. The names are those of
// Lightning's modules.

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

/// Linear warm-up over `warmup` steps, then a cosine to `min_factor` at step `steps` (registry.h).
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

// The events of fit(), validate(), test() and predict(), for observers: loggers, progress bars,
// tests. All functions run on the caller's thread; what they throw ends the call.

class Trainer;

/// One optimizer step.
struct StepReport {
  std::int64_t step = 0;                              ///< from 1
  std::int64_t epoch = 0;                             ///< from 0
  std::int64_t batches = 0, samples = 0, tokens = 0;  ///< of this step
  double loss = 0;                                    ///< mean over the step's tokens; NaN or infinite only if skipped
  double lr = 0;                                      ///< of the first group of the first optimizer
  double grad_norm = 0;                               ///< L2 of all gradients, before clipping
  double seconds = 0;                                 ///< of this step, without validation, logging and saving
  double tokens_per_second = 0;
  bool skipped = false;                   ///< loss or gradients were not finite, parameters are as before
  std::optional<double> loss_scale = {};  ///< that of this step's gradients, if they were scaled
  std::optional<double> val_loss = {};    ///< if the step was followed by a validation
  std::string anomaly = {};               ///< of a skipped step, with detect_anomaly: where it came from
};

/// The loops of a Trainer.
enum class Loop : std::uint8_t { fit, validation, test, prediction };

class TrainerCallback {
 public:
  virtual ~TrainerCallback() = default;

  virtual bool is_logger() const { return false; }
  /// Returns true if a fast_dev_run has it: not what logs, writes checkpoints or ends training early.
  virtual bool in_fast_dev_run() const { return !is_logger(); }

  /// The name of state() in a checkpoint; "": there is none. Two callbacks of a trainer can't share a name, but
  /// loggers: they are numbered.
  virtual std::string state_key() const { return ""; }
  /// Asked when a checkpoint is written, after on_save_checkpoint(); rank 0's is kept.
  virtual io::Json state() const { return nullptr; }
  /// Called before on_fit_start() of a resumed run, if the checkpoint has something under the name.
  virtual void load_state(const io::Json&) {}
  /// Called instead where the checkpoint has nothing of it, and of a run that begins: an earlier fit() is forgotten.
  virtual void begin_anew() {}
  /// Called as well where a run that is to be resumed was killed before its first checkpoint: what it wrote goes.
  virtual void start_over() {}
  /// The tensors of the state, on any device; equal on every rank.
  virtual std::map<std::string, at::Tensor> state_tensors() const { return {}; }
  /// On the CPU, after load_state().
  virtual void load_state_tensors(const std::map<std::string, at::Tensor>&) {}

  /// step: where training starts, above 0 after a resume. Parameters and callbacks are loaded then, optimizers are not
  /// yet: groups that a callback had added to them, it adds again now.
  virtual void on_fit_start(Trainer& trainer, std::int64_t /*step*/) { on_loop_start(trainer, Loop::fit); }
  virtual void on_fit_end(Trainer& trainer) { on_loop_end(trainer, Loop::fit); }
  /// Something was thrown within fit(), and will be again when this returns. Parameters and optimizers are those of the
  /// last whole step. What it throws itself is lost.
  virtual void on_exception(Trainer&, const std::exception&) {}
  virtual void on_train_epoch_start(Trainer&, std::int64_t /*epoch*/) {}
  virtual void on_train_epoch_end(Trainer&, std::int64_t /*epoch*/) {}
  virtual void on_train_batch_start(Trainer& trainer, const Batch&, std::int64_t /*index*/) {
    on_loop_batch_start(trainer, Loop::fit);
  }
  virtual void on_train_batch_end(Trainer& trainer, const Batch&, std::int64_t index, double /*loss*/) {
    on_loop_batch_end(trainer, Loop::fit, index);
  }
  /// Gradients are those of the whole step, as they would be without loss scaling; they are neither clipped yet nor
  /// known to be finite. Where ranks share gradients (TrainerOptions::group), these are the mean of all of them.
  virtual void on_after_backward(Trainer&) {}
  /// Gradients are whole, finite and clipped.
  virtual void on_before_optimizer_step(Trainer&) {}
  virtual void on_after_optimizer_step(Trainer&) {}
  virtual void on_validation_start(Trainer& trainer) { on_loop_start(trainer, Loop::validation); }
  virtual void on_validation_batch_start(Trainer& trainer, const Batch&, std::int64_t /*index*/) {
    on_loop_batch_start(trainer, Loop::validation);
  }
  virtual void on_validation_batch_end(Trainer& trainer, const Batch&, std::int64_t index, double /*loss*/) {
    on_loop_batch_end(trainer, Loop::validation, index);
  }
  virtual void on_validation_end(Trainer& trainer, double /*loss*/) { on_loop_end(trainer, Loop::validation); }
  virtual void on_test_start(Trainer& trainer) { on_loop_start(trainer, Loop::test); }
  virtual void on_test_batch_start(Trainer& trainer, const Batch&, std::int64_t /*index*/) {
    on_loop_batch_start(trainer, Loop::test);
  }
  virtual void on_test_batch_end(Trainer& trainer, const Batch&, std::int64_t index, double /*loss*/) {
    on_loop_batch_end(trainer, Loop::test, index);
  }
  virtual void on_test_end(Trainer& trainer, double /*loss*/) { on_loop_end(trainer, Loop::test); }
  virtual void on_predict_start(Trainer& trainer) { on_loop_start(trainer, Loop::prediction); }
  virtual void on_predict_batch_start(Trainer& trainer, const Batch&, std::int64_t /*index*/) {
    on_loop_batch_start(trainer, Loop::prediction);
  }
  /// outputs: what predict_step() returned.
  virtual void on_predict_batch_end(Trainer& trainer, const Batch&, std::int64_t index,
                                    const std::vector<at::Tensor>& /*outputs*/) {
    on_loop_batch_end(trainer, Loop::prediction, index);
  }
  virtual void on_predict_end(Trainer& trainer) { on_loop_end(trainer, Loop::prediction); }
  /// The events of all loops alike: each is called by the loop's own event above, unless that is overridden.
  virtual void on_loop_start(Trainer&, Loop) {}
  virtual void on_loop_batch_start(Trainer&, Loop) {}
  virtual void on_loop_batch_end(Trainer&, Loop, std::int64_t /*index*/) {}
  virtual void on_loop_end(Trainer&, Loop) {}
  /// Everything of the step is done, its validation included, but not its checkpoint.
  virtual void on_step_end(Trainer&, const StepReport&) {}
  /// A checkpoint of `step` is about to be written: what it counts on must be on disk first.
  virtual void on_save_checkpoint(Trainer&, std::int64_t /*step*/) {}
};

}  // namespace fp8::trainer
