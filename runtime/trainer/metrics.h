// SPDX-License-Identifier: Apache-2.0
// The named numbers of a run: what a module says in its steps, and what callbacks watch and loggers write of it.
//
//   log("acc", a)  in training_step                       "acc" of each step (of the last of its batches)
//                  in validation_step, test_step          "acc" of the whole loop
//   log("acc", a, {.on_step = true, .on_epoch = true})    "acc_step" and "acc_epoch"
//
// The value of a whole epoch or loop is the mean of its batches, weighted as their losses are (Batch::tokens), of
// all ranks. The numbers of a step are this rank's own: Trainer::metric() has one number for all of them.
#pragma once
#include <map>
#include <set>

#include "fp8/runtime/distributed/process_group.h"

// Speed of a run from its clock readings: Optimum Habana's speed_metrics(). Pure arithmetic.

namespace fp8::trainer {

/// Seconds are of any clock with one origin.
struct SpeedInput {
  double start = 0, end = 0;
  std::optional<double> start_after_warmup = {};  ///< when the warm-up steps were done; none: there was no warm-up
  double log_evaluate_save_seconds =
      0;  ///< of [start, end], not to be counted (adjust_throughput); only what lay after the warm-up
  std::int64_t samples = 0, steps = 0, tokens = 0;                       ///< of the whole run
  std::int64_t warmup_samples = 0, warmup_steps = 0, warmup_tokens = 0;  ///< of these, during warm-up
};

/// SPLIT_runtime (the whole run, 4 decimals), SPLIT_samples_per_second, SPLIT_steps_per_second, SPLIT_tokens_per_second
/// (3 decimals, after warm-up). A run that has not passed its warm-up is counted whole. Without time that passed, only
/// SPLIT_runtime.
io::Json speed_metrics(const std::string& split, const SpeedInput& input);

/// Which rows a logged number is in; what is left out is as the stage has it: training_step on_step, others on_epoch.
struct LogWhen {
  std::optional<bool> on_step = {}, on_epoch = {};
};

class Metrics {
 public:
  enum class Stage : std::uint8_t { none, train, evaluation };

  /// The batch that the next numbers are of; `weight` counts in means.
  void begin(Stage stage, double weight);
  /// Throws std::logic_error outside of a step, std::invalid_argument for a name that is empty or that the trainer
  /// has (epoch, step), and for a number that goes nowhere.
  void log(const std::string& name, double value, LogWhen when);
  /// A number of the trainer's own, for callbacks; one of that name that the module logs goes before.
  void set(const std::string& name, double value);
  /// How many numbers log() has been given.
  std::int64_t logged() const { return log_calls_; }

  /// The numbers of the step since the last call. The step ends.
  io::Json take_step();
  /// Means of the stage's epoch or loop, which ends. Every rank of `group` (null: one) calls it, and has the same ones.
  io::Json take_means(Stage stage, runtime::distributed::ProcessGroup* group);

  /// The newest number of each name.
  const std::map<std::string, double>& known() const { return known_; }

  /// The state that a checkpoint in the middle of an epoch needs.
  io::Json state() const;
  /// Throws io::Json::exception for another thing than state() gave.
  void load(const io::Json& state);
  /// Forgets the epoch so far of this rank: another rank has it too.
  void drop_train_means() { train_.clear(); }

 private:
  struct Mean {
    double sum = 0, weight = 0;
  };
  static void merge(std::map<std::string, Mean>& means, runtime::distributed::ProcessGroup& group);
  std::map<std::string, Mean>& means_of(Stage stage) { return stage == Stage::train ? train_ : evaluation_; }

  Stage stage_ = Stage::none;
  double weight_ = 0;
  std::map<std::string, double> step_, known_;
  std::map<std::string, Mean> train_, evaluation_;
  std::set<std::string> logged_;  ///< names that the module has
  std::int64_t log_calls_ = 0;
};

}  // namespace fp8::trainer
