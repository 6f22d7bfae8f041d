// SPDX-License-Identifier: Apache-2.0
// Lightning's ModelCheckpoint: the best states of a run by a number, or the newest, beside those that the trainer goes
// on from. Each is a folder as HPUCheckpointIO writes it:
//
//   DIRPATH/epoch=2-step=300/             filename "{epoch}-{step}"
//   DIRPATH/epoch=2-val_loss=0.123/       filename "{epoch}-{val_loss:.3f}"
//   DIRPATH/last/                         with save_last: the newest
//
// One is written after each validation, after each epoch where nothing is validated, or every so many steps. What a
// killed run wrote beyond the checkpoint that it is resumed from is written again.
#pragma once

#include "fp8/runtime/trainer/callbacks/early_stopping.h"

namespace fp8::trainer {

struct ModelCheckpointOptions {
  std::filesystem::path dirpath;  ///< not the trainer's checkpoint_root
  /// {NAME} or {NAME:.2f} of callback_metrics(), {epoch:02d} and {step}; a / in a number's name becomes _.
  std::string filename = "{epoch}-{step}";
  bool auto_insert_metric_name = true;      ///< "epoch=02" for {epoch:02d}, else "02"
  std::optional<std::string> monitor = {};  ///< none: the newest is the best
  MonitorMode mode = MonitorMode::min;      ///< of monitor
  std::int64_t save_top_k = 1;              ///< how many stay; -1: all, 0: none but last. Without monitor -1, 0, 1
  bool save_last = false;                   ///< DIRPATH/last
  std::int64_t every_n_train_steps = 0;     ///< 0: after validations or epochs
  std::int64_t every_n_epochs = 1;          ///< of those
};

class ModelCheckpoint : public TrainerCallback {
 public:
  /// Throws std::invalid_argument naming the option.
  explicit ModelCheckpoint(ModelCheckpointOptions options);

  bool in_fast_dev_run() const override { return false; }
  std::string state_key() const override;
  io::Json state() const override;
  void load_state(const io::Json& state) override;
  void begin_anew() override;

  /// All three throw io::Error for what can't be written, and std::invalid_argument for a number that is not there.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_step_end(Trainer& trainer, const StepReport& report) override;
  void on_train_epoch_end(Trainer& trainer, std::int64_t epoch) override;

  /// Of the best that stays; empty, and nothing: none yet.
  std::filesystem::path best_model_path() const;
  std::optional<double> best_model_score() const;

 private:
  struct Kept {
    std::string folder;  ///< below dirpath
    double score;
    std::int64_t step;
  };

  void save(Trainer& trainer, std::int64_t epoch, std::int64_t step);
  void keep(Trainer& trainer, std::int64_t epoch, std::int64_t step);
  std::string name_for(const Trainer& trainer, std::int64_t epoch, std::int64_t step) const;
  bool better(const Kept& a, const Kept& b) const;

  ModelCheckpointOptions options_;
  std::vector<Kept> kept_;  ///< best first
  std::int64_t epoch_ = 0;
};

// Lightning's OnExceptionCheckpoint: where something is thrown within fit(), DIRPATH/FILENAME gets the parameters,
// optimizers and place of the last whole step; random numbers and buffers are as the failed step left them. Of one
// rank: ranks write a checkpoint together, and one of them that fails is alone.

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

// The results of predict() as a file: each tensor of each batch by its place, in the order of the batches whatever rank
// had them.
//
//   auto writer = std::make_shared<PredictionWriter>("out/predictions.safetensors");
//   Trainer({.max_steps = 1}, {writer}).predict(module, data, /*return_predictions=*/false);
//
//   batch.00000000.0, batch.00000000.1, batch.00000001.0, ...    predict_step() of two tensors
//   rank.00001.batch.00000000.0                                  where ranks have data of their own
//                                                                (StrategyOptions::use_distributed_sampler false)

/// Every rank has one; rank 0's writes, and needs the memory of all predictions until then.
class PredictionWriter : public TrainerCallback {
 public:
  /// file: the folder it lies in is made. A file that was there is replaced when the last batch is done.
  explicit PredictionWriter(std::filesystem::path file);

  void on_predict_start(Trainer& trainer) override;
  void on_predict_batch_end(Trainer& trainer, const Batch& batch, std::int64_t index,
                            const std::vector<at::Tensor>& outputs) override;
  /// Throws io::Error for what can't be written, on every rank.
  void on_predict_end(Trainer& trainer) override;

 private:
  void write() const;

  std::filesystem::path file_;
  std::map<std::string, at::Tensor> tensors_ = {};  ///< on the CPU
};

}  // namespace fp8::trainer
