// SPDX-License-Identifier: Apache-2.0
// The state of one fit(), and its form in a checkpoint. Not for users.
//
//   trainer_state.json         {"format": 1, "step", "epoch", "batch", "samples", "tokens", "skipped", "recent_losses",
//                               "val_loss", "schedulers": [steps], "grad_scaler" if there is one,
//                               "ranks", "shares": {"size", "offset"} (BatchShare), "optimizer.0": tree,
//                               "seconds": of fit(), with max_time,
//                               "unvalidated": StepReport of "step", whose validation was stopped,
//                               "callbacks": {state_key(): state()}, "metrics": Metrics::state(),
//                               "extra": the module's,
//                               "rank_states": {"1": {"extra", "metrics"}} where rank 1 has it otherwise}
//   trainer_state.safetensors  parameter.NAME, buffer.NAME, rng.cpu, optimizer.N.K, extra.NAME; rank.1.NAME where rank
//                              1 has it otherwise; callback.STATE_KEY.NAME
#pragma once
#include <ATen/Context.h>
#include <c10/util/ScopeExit.h>

#include "fp8/runtime/trainer/graphed_steps.h"

namespace fp8::trainer {

// A batch and its loss, checked: shared by training, validation and test. Not for users.

inline std::int64_t weight_of(const Batch& batch) { return batch.tokens > 0 ? batch.tokens : batch.samples; }

/// The next batch; the source promised it.
inline Batch take(BatchSource& source, std::int64_t index, std::int64_t count, const char* what) {
  auto batch = source.next();
  if (!batch) io::fail<std::invalid_argument>("[trainer] {} data: ended after {} of {} batches", what, index, count);
  if (batch->samples < 1)
    io::fail<std::invalid_argument>("[trainer] {} data: batch {} is empty, allowed: 1 sample or more", what, index);
  return std::move(*batch);
}

inline at::Tensor check_loss(at::Tensor loss, const char* step) {
  if (!loss.defined() || loss.numel() != 1 || !at::isFloatingType(loss.scalar_type()))
    io::fail<std::invalid_argument>("[trainer] {}: found {}, allowed: a loss of one floating point element", step,
                                    loss.defined() ? "a tensor of " + std::to_string(loss.numel()) + " elements of " +
                                                         c10::toString(loss.scalar_type())
                                                   : "no tensor");
  return loss;
}

// TrainerOptions::deterministic. Not for users.

/// LibTorch's switch is as `mode` has it until the result goes; none: as it was.
inline auto deterministic_scope(std::optional<Deterministic> mode) {
  auto& context = at::globalContext();
  auto as_before = c10::make_scope_exit(
      [&context, on = context.deterministicAlgorithms(), warns = context.deterministicAlgorithmsWarnOnly()] {
        context.setDeterministicAlgorithms(on, warns);
      });
  if (mode)
    context.setDeterministicAlgorithms(*mode != Deterministic::no, *mode == Deterministic::warn);
  else
    as_before.release();
  return as_before;
}

// TrainerOptions::detect_anomaly: which operation of a step made the first NaN and the first infinity, forward and
// backward, on any device.
//
//   aten::log made the first infinite value (forward, behind 'hidden'); aten::sub made the first NaN (forward, ...)
//
// An operation makes a value that its operands do not have; one that gets it from outside of what can be seen (a batch)
// is said to have met it. Infinities that were asked for (a mask filled with one) do not count. It sees what goes
// through LibTorch's dispatcher, an operation and not what it consists of; codes in fp8 are not looked at, but what is
// decoded from them is. Not for users.

/// Watches the thread that made it while it lives. One at a time of each thread.
class AnomalyWatch {
 public:
  /// network: whose parameters say where an operation is.
  explicit AnomalyWatch(torch::nn::Module& network);
  ~AnomalyWatch();
  AnomalyWatch& operator=(AnomalyWatch&&) = delete;

  /// Forgets all records.
  void begin_step();
  /// Since then: what was made or met first, in order; "": everything was finite.
  std::string report() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

struct Trainer::Run {
  Run(TrainingModule& module, BatchSource& train, BatchSource* val, const TrainerOptions& options);

  void find_base_rates();
  void set_learning_rates();
  double learning_rate() const;
  void step_schedulers(ScheduleInterval interval);
  void count(const StepReport& report);
  /// The state of this rank alone: buffers, random numbers, the module's extra state.
  TrainingState own_state() const;
  /// All of it.
  TrainingState state(TrainingState own) const;
  /// Place, network and the module's extra state; then, when callbacks have begun, what those may not disturb:
  /// schedules, optimizers and random numbers.
  void restore(const TrainingState& state);
  void restore_optimizers();
  void find_place(const io::Json& shares);

  /// How many groups of batches the epoch has: train_batches.
  void begin_epoch();
  /// This rank's part of the group that is next, and whether it counts.
  std::pair<Batch, bool> next_batch();
  /// Throws c10::Error on every rank where the ranks are about to do different things.
  void check_ranks(const TrainerOptions& options) const;
  /// Rank 0's parameters and buffers on all ranks.
  void share_parameters();
  /// The strategy over the parameters that learn now.
  void take_strategy(const StrategyOptions& options);
  /// Parameters that the network or an optimizer has now and had not.
  void find_parameters();
  /// Which parameters learn and which the optimizers have, those that have joined since included.
  std::uint64_t learning();
  io::Json learning_by_name() const;
  /// Of the step in progress, which were averaged: the same on all ranks.
  void remember_gradients(double norm);
  /// All ranks call it. Throws c10::Error naming a parameter whose gradient was not averaged.
  void check_gradients() const;
  [[noreturn]] void fail_gradients() const;
  /// Of the source: overfit_batches has one alone.
  std::int64_t data_epoch() const { return overfits ? 0 : epoch; }
  bool ends() const { return stopped || !stop_reason.empty(); }
  bool first() const { return group == nullptr || group->rank() == 0; }
  /// f() on rank 0; the others wait, and fail if it does.
  void on_first(const std::function<void()>& f) const;

  TrainingModule& module;
  BatchSource& train;
  BatchSource* val;
  std::shared_ptr<runtime::distributed::ProcessGroup> group;  ///< null for one rank
  BatchShare share;
  std::unique_ptr<Strategy> strategy = std::make_unique<Strategy>();
  bool overfits;
  std::int64_t batch_limit;  ///< batches of an epoch for one rank, as limit_train_batches leaves them
  std::int64_t train_batches, val_batches = 0, val_interval = 0;
  std::vector<at::Tensor> parameters;  ///< each once
  std::vector<std::string> parameter_names;
  std::unordered_map<const void*, std::size_t> parameter_index;
  std::size_t parameters_shared = 0;            ///< the first ones, that have the same values on all ranks
  std::uint64_t learned = 0;                    ///< learning() as the strategy was made for
  std::uint64_t gradients = 0;                  ///< of the last step, as remembered
  std::vector<bool> had_gradient;               ///< in the last step, by parameter
  std::optional<TrainingState> resumed_from{};  ///< of which restore_optimizers() is still to be called
  Optimizers optimizers;
  std::vector<std::vector<double>> base_rates;  ///< per optimizer and group
  std::vector<std::int64_t> scheduler_steps;
  bool schedules_rest = false;

  std::int64_t step = 0, epoch = 0, batch = 0;  ///< batch: taken of this epoch
  std::int64_t batch_before = 0;                ///< batches of the step in progress
  std::int64_t whole_batch = 0;                 ///< `batch` after the last whole step
  std::int64_t first_step = 0, saved_step = 0;
  std::int64_t samples = 0, tokens = 0, skipped = 0;
  std::deque<double> recent;  ///< the last 20 losses
  std::optional<double> val_loss;
  bool stopped = false, stop_asked = false;       ///< stop_asked: of any rank, during the step in progress
  bool validates = false;                         ///< the step in progress
  std::optional<StepReport> unvalidated;          ///< the last step, whose validation was stopped
  std::string stop_reason;                        ///< "": none. The same moment on all ranks
  std::string wish;                               ///< of this rank's callbacks, until all know of it
  double start = 0, seconds_before = 0;           ///< of fit(), and what it took before a resume
  io::Json callback_states = io::Json::object();  ///< of the checkpoint that was loaded
  std::map<std::string, at::Tensor> callback_tensors;
  std::unique_ptr<AnomalyWatch> anomaly;  ///< null: no checks
  GraphedSteps graphs;
  std::optional<GradScaler> scaler;
  double gradient_factor = 1;  ///< of the step in progress
  SpeedInput speed;
};

bool overfits(const TrainerOptions& options);

/// The group of several ranks; null for one, which sends no messages.
inline const std::shared_ptr<runtime::distributed::ProcessGroup>& group_of_several(const TrainerOptions& options) {
  static const std::shared_ptr<runtime::distributed::ProcessGroup> none;
  return options.group != nullptr && options.group->size() > 1 ? options.group : none;
}

/// The state of LibTorch's default generator of the CPU.
at::Tensor random_state();
void set_random_state(const at::Tensor& state);

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// While it lives the trainer knows the run, and the module the trainer's metrics.
class Trainer::Within {
 public:
  Within(Trainer& trainer, TrainingModule& module, Run* run)
      : trainer_(trainer),
        module_(module),
        run_before_(std::exchange(trainer.run_, run)),
        metrics_before_(std::exchange(module.metrics_, &trainer.metrics_)) {}
  ~Within() {
    trainer_.run_ = run_before_;
    module_.metrics_ = metrics_before_;
  }
  Within& operator=(Within&&) = delete;

 private:
  Trainer& trainer_;
  TrainingModule& module_;
  Run* run_before_;
  Metrics* metrics_before_;
};

template <class F>
void Trainer::each(F&& call) {
  const runtime::PhaseScope phase("callbacks");
  for (const auto& callback : callbacks_) call(*callback);
}

}  // namespace fp8::trainer
