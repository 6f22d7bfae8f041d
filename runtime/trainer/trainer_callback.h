// SPDX-License-Identifier: Apache-2.0
// The events of fit(), validate(), test() and predict(), for observers: loggers, progress bars,
// tests. All functions run on the caller's thread; what they throw ends the call.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/batch_source.h"

namespace fp8::trainer {

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
  virtual void on_fit_start(Trainer&, std::int64_t /*step*/) {}
  virtual void on_fit_end(Trainer&) {}
  /// Something was thrown within fit(), and will be again when this returns. Parameters and optimizers are those of the
  /// last whole step. What it throws itself is lost.
  virtual void on_exception(Trainer&, const std::exception&) {}
  virtual void on_train_epoch_start(Trainer&, std::int64_t /*epoch*/) {}
  virtual void on_train_epoch_end(Trainer&, std::int64_t /*epoch*/) {}
  virtual void on_train_batch_start(Trainer&, const Batch&, std::int64_t /*index*/) {}
  virtual void on_train_batch_end(Trainer&, const Batch&, std::int64_t /*index*/, double /*loss*/) {}
  /// Gradients are those of the whole step, as they would be without loss scaling; they are neither clipped yet nor
  /// known to be finite. Where ranks share gradients (TrainerOptions::group), these are the mean of all of them.
  virtual void on_after_backward(Trainer&) {}
  /// Gradients are whole, finite and clipped.
  virtual void on_before_optimizer_step(Trainer&) {}
  virtual void on_after_optimizer_step(Trainer&) {}
  virtual void on_validation_start(Trainer&) {}
  virtual void on_validation_batch_start(Trainer&, const Batch&, std::int64_t /*index*/) {}
  virtual void on_validation_batch_end(Trainer&, const Batch&, std::int64_t /*index*/, double /*loss*/) {}
  virtual void on_validation_end(Trainer&, double /*loss*/) {}
  virtual void on_test_start(Trainer&) {}
  virtual void on_test_batch_start(Trainer&, const Batch&, std::int64_t /*index*/) {}
  virtual void on_test_batch_end(Trainer&, const Batch&, std::int64_t /*index*/, double /*loss*/) {}
  virtual void on_test_end(Trainer&, double /*loss*/) {}
  virtual void on_predict_start(Trainer&) {}
  virtual void on_predict_batch_start(Trainer&, const Batch&, std::int64_t /*index*/) {}
  /// outputs: what predict_step() returned.
  virtual void on_predict_batch_end(Trainer&, const Batch&, std::int64_t /*index*/,
                                    const std::vector<at::Tensor>& /*outputs*/) {}
  virtual void on_predict_end(Trainer&) {}
  /// Everything of the step is done, its validation included, but not its checkpoint.
  virtual void on_step_end(Trainer&, const StepReport&) {}
  /// A checkpoint of `step` is about to be written: what it counts on must be on disk first.
  virtual void on_save_checkpoint(Trainer&, std::int64_t /*step*/) {}
};

}  // namespace fp8::trainer
