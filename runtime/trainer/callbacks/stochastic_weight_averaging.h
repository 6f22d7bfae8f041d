// SPDX-License-Identifier: Apache-2.0
// Lightning's StochasticWeightAveraging: from an epoch on the learning rate goes to a constant one, and the parameters
// at the start of each epoch from there on are averaged. The network gets the average when training ends.
//
//   epochs           0 1 2 3 | 4 5 6 7        max_epochs 8, swa_epoch_start 5 (counted from 1) or 0.7
//   averaged                   ^ ^ ^ ^        an equal mean: average + (parameter - average) / (n + 1)
//   rate of epoch 4 + k: a rate + (1 - a) swa_lr,   a = (1 + cos(pi t)) / 2 or 1 - t
//                                                   t = k / annealing_epochs, 1 at most
//
// `rate` is what each group has as epoch 4 begins; the module's own schedules rest from there. Running statistics of
// batch norm layers are not averaged: one more pass over the training data, in training mode and without gradients,
// makes them anew for the averaged parameters.
//
// Checkpoints hold the parameters that are trained, and the average beside them: a resumed run ends with the bits of
// one that was not disturbed. A run that should_stop() ended gets no average, since it will go on; one that ended
// before its last epoch (EarlyStopping, max_steps) does, unlike Lightning's.
#pragma once
#include <variant>

#include "fp8/runtime/trainer/training_module.h"

namespace fp8::runtime::optim {
class FusedEMA;
}

namespace fp8::trainer {

enum class AnnealingStrategy : std::uint8_t { cos, linear };

struct StochasticWeightAveragingOptions {
  std::vector<double> swa_lrs = {};  ///< above 0: one, or one for each group of the optimizer
  /// The first epoch, counted from 1, or the fraction of max_epochs that is over before it.
  std::variant<std::int64_t, double> swa_epoch_start = 0.8;
  std::int64_t annealing_epochs = 10;  ///< >= 0
  AnnealingStrategy annealing_strategy = AnnealingStrategy::cos;
  /// Instead of an equal mean: average = decay * average + (1 - decay) * parameter.
  std::optional<double> ema_decay = {};
};

class StochasticWeightAveraging : public TrainerCallback {
 public:
  /// Throws std::invalid_argument naming the option.
  explicit StochasticWeightAveraging(StochasticWeightAveragingOptions options);
  ~StochasticWeightAveraging() override;

  std::string state_key() const override { return "StochasticWeightAveraging"; }
  io::Json state() const override;
  void load_state(const io::Json& state) override;
  void begin_anew() override;
  std::map<std::string, at::Tensor> state_tensors() const override;
  void load_state_tensors(const std::map<std::string, at::Tensor>& tensors) override;

  /// Throws std::invalid_argument for another number of optimizers than 1, more than one scheduler, rates that do not
  /// fit its groups, a fraction without max_epochs, and a checkpoint's average of other parameters.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_train_epoch_start(Trainer& trainer, std::int64_t epoch) override;
  void on_fit_end(Trainer& trainer) override;

  std::int64_t n_averaged() const { return averaged_; }  ///< epochs in the average

 private:
  void begin(const Trainer& trainer, std::int64_t epoch);
  void set_rates(Trainer& trainer, std::int64_t epoch) const;
  void average();

  StochasticWeightAveragingOptions options_;
  std::int64_t start_ = 0;    ///< the first epoch, from 0
  std::int64_t begun_ = -1;   ///< the epoch that it began with; -1: not yet
  std::int64_t latest_ = -1;  ///< the last epoch that was averaged
  std::int64_t averaged_ = 0;
  std::vector<double> rates_;  ///< of each group, as it began
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<runtime::optim::FusedEMA> average_;
  std::map<std::string, at::Tensor> loaded_;  ///< of a checkpoint, until on_fit_start()
};

}  // namespace fp8::trainer
