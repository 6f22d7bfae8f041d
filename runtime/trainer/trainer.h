// SPDX-License-Identifier: Apache-2.0
// The training loop. One optimizer step is
//
//   for each of accumulate_grad_batches batches (fewer at the end of an epoch):
//     loss = training_step(batch)  in forward_context();  (loss * tokens / tokens of all of them).backward()
//   gradients of all ranks become one (strategy.h), callbacks, clip, optimizers step, gradients dropped, schedules
//   step, validation if due, callbacks, checkpoint if due
//
// (samples where a batch has no tokens), so batches of any sizes are to a step what one large batch would be,
// and everything that the next step depends on is in the checkpoint: parameters, buffers, optimizers, schedules, place
// in the data, the random generator, the module's extra state. A run that is killed and resumed ends with the bits of
// one that was not. Backward runs on the calling thread, so that set_num_threads() and thread-local state count for it.
//
// Several ranks (TrainerOptions::group) each have the module, the sources and the options; a step takes one batch for
// each of them (BatchShare), and is to them what it would be to one process with batches of all. Losses, tokens and
// speeds that are reported are those of all ranks, on every rank; all of them skip, stop and end together. Rank 0's
// parameters and buffers are those of all ranks at the start. Rank 0 writes the checkpoints, and what another rank has
// otherwise (buffers, random numbers, extra state) is in them; a run resumed on another number of ranks continues
// with the next batch. Callbacks are called on every rank: give loggers to rank 0 alone.
#pragma once
#include <deque>

#include "fp8/runtime/graph/module_cacher.h"
#include "fp8/runtime/profile/profiler.h"
#include "fp8/runtime/trainer/strategy.h"
#include "fp8/runtime/trainer/training_module.h"

namespace fp8::trainer {

// Loss scaling for f16: gradients below 6e-8 would be 0. The loss is multiplied by a scale before backward, gradients
// are divided by it before clipping, and the scale follows the results (torch's GradScaler):
//
//   a gradient was not finite:                 the step is left out, scale *= backoff_factor, the count begins anew
//   growth_interval steps in a row were:       scale *= growth_factor

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
};

class GradScaler {
 public:
  /// Below this no scale is the reason for a gradient that is not finite.
  static constexpr double kLeast = 1;

  /// init_scale: 1 to 2^60; growth_factor: above 1; backoff_factor: above 0 and below 1; growth_interval: 1 or more.
  /// Throws std::invalid_argument naming the option, the value and what is allowed.
  explicit GradScaler(GradScalerOptions options = {});

  double scale() const { return scale_; }
  /// After a step. Returns false if gradients were not finite and the scale, at kLeast already, cannot be why; nothing
  /// changes then.
  bool update(bool finite);

  /// {"scale", "growth_tracker"}, as torch names them.
  io::Json state() const;
  /// Throws io::Error naming the key.
  void load(const io::Json& state);

 private:
  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
};

/// A number of batches, or a fraction of those there are (0.0 to 1.0).
using BatchLimit = std::variant<std::int64_t, double>;

/// Batches that `limit` leaves of `batches`, rounded down. Throws std::invalid_argument naming `name`, the value and
/// what is allowed: a negative count, a fraction outside [0, 1], or one above 0 that leaves nothing.
std::int64_t resolve_limit(const std::string& name, const BatchLimit& limit, std::int64_t batches);

/// Batches of an optimizer step: a number, or {epoch: number}, each from its epoch on and 1 before the first.
using GradAccumulation = std::variant<std::int64_t, std::map<std::int64_t, std::int64_t>>;
std::int64_t batches_of_step(const GradAccumulation& batches, std::int64_t epoch);

/// The forward that a context is asked for.
struct ForwardInfo {
  bool training = true;                           ///< false: validation, test, prediction
  std::int64_t step = 0;                          ///< optimizer step, from 1
  std::int64_t microbatch = 0, microbatches = 1;  ///< number within the step, and how many it has
};

enum class Deterministic : std::uint8_t { no, yes, warn };

/// Which steps are captured and replayed on hpu, with equal bits (graphed_steps.h).
struct GraphUse {
  bool training = false, inference = false;  ///< training steps; those of validation and test
  std::int64_t max_graphs = 10;              ///< kinds of steps; further ones run as they are
};

/// Lazy mode on hpu, with equal bits (runtime/lazy): operations run while the program continues.
struct LazyUse {
  bool on = false;
  bool pipelining = false;  ///< forward runs from its end on, not from that of backward
};

enum class GradientClip : std::uint8_t { norm, value };

struct TrainerOptions {
  std::int64_t max_steps = -1;   ///< optimizer steps; -1: no limit. One of the three limits must be given
  std::int64_t max_epochs = -1;  ///< -1: no limit
  /// Seconds of fit(), those before a resume included, after which the step in progress is the last; 0: no limit.
  double max_time = 0;
  GradAccumulation accumulate_grad_batches = std::int64_t{1};
  /// Largest L2 norm of all gradients, or with `value` the largest magnitude of one; 0: no clipping.
  double gradient_clip_val = 0;
  GradientClip gradient_clip_algorithm = GradientClip::norm;
  BatchLimit limit_train_batches = 1.0, limit_val_batches = 1.0, limit_test_batches = 1.0, limit_predict_batches = 1.0;
  /// Above 0: limit_train_batches and limit_val_batches are this, and every epoch has epoch 0's batches in its order.
  BatchLimit overfit_batches = 0.0;
  /// N > 0: a trial of N batches of each loop, one epoch, without checkpoints, loggers and early ends.
  std::int64_t fast_dev_run = 0;
  /// Validation after so many batches of an epoch (a count, at most the epoch's), or after each such fraction of it:
  /// what ends with a step, for nothing is validated between the batches of one. 0: never.
  BatchLimit val_check_interval = 1.0;
  /// Validation in each N-th epoch; 0: a val_check_interval that is a count continues from epoch to epoch.
  std::int64_t check_val_every_n_epoch = 1;
  std::int64_t val_every_n_steps = 0;  ///< > 0: validation after every so many optimizer steps and the last, instead
  /// Batches that a run which begins is validated with before its first step, to fail early: -1 all, 0 none (Lightning:
  /// 2). They leave no trace: random numbers and metrics are as before, callbacks and loggers hear nothing.
  std::int64_t num_sanity_val_steps = 0;
  std::int64_t log_every_n_steps = 50;       ///< between rows of what modules log of their steps
  std::int64_t throughput_warmup_steps = 0;  ///< left out of the speed, of loops on their own as well
  bool adjust_throughput = true;             ///< time for logging, validation and checkpoints is left out, too
  NonFinite nonfinite = NonFinite::error;
  /// True reports the operation that made the first NaN or infinity, if a loss or gradient of fit() is not finite
  /// (AnomalyWatch). It looks at all that operations return; off, it costs nothing.
  bool detect_anomaly = false;
  /// LibTorch's switch while a loop runs: operations of its own that depend on the order of threads throw, or warn. The
  /// device's are in one order anyway. None: as it is.
  std::optional<Deterministic> deterministic = {};
  GraphUse hpu_graphs = {};
  /// Of one rank, a loss is read after its backward then: one that is not finite has had its backward. Work that is not
  /// done when fit() ends it waits for.
  LazyUse lazy = {};
  bool enable_progress_bar = false;  ///< a ProgressBar, unless one is among the callbacks
  /// For f16: the loss is scaled. A step whose gradients overflow is left out with either value of `nonfinite`, unless
  /// the scale is at its least already.
  std::optional<GradScalerOptions> grad_scaler = {};

  std::filesystem::path checkpoint_root = {};  ///< empty: no checkpoints
  std::int64_t save_every_n_steps = 0;         ///< 0: at the end only, and when stopped
  std::int64_t keep_checkpoints = 2;           ///< the newest ones
  bool resume = false;                         ///< from the newest checkpoint; from the start if there is none

  /// Entered around every step's forward and left before backward: a precision plugin's context.
  std::function<std::shared_ptr<void>(const ForwardInfo&)> forward_context = {};
  /// Called after the end of a training forward's context, which must not throw: throws what that had to.
  std::function<void()> context_ended = {};
  /// Hears of stages, steps and actions: make_profiler("hpu"). Null: none.
  std::shared_ptr<runtime::Profiler> profiler = {};
  /// Asked after every step; true: write a checkpoint and end. Of one rank, also before each batch of a validation,
  /// which a resumed run makes anew, and of a loop outside of fit().
  std::function<bool()> should_stop = {};

  /// The ranks that train together; null or of size 1: this process alone. Every rank calls fit() with the same options
  /// and as many batches. should_stop of any of them stops all.
  std::shared_ptr<runtime::distributed::ProcessGroup> group = {};
  StrategyOptions strategy = {};
};

struct FitResult {
  std::int64_t steps = 0, epochs = 0;                       ///< in all, those before a resume included; whole epochs
  std::int64_t resumed_from = 0;                            ///< step, 0: from the start
  std::int64_t samples = 0, tokens = 0, skipped_steps = 0;  ///< in all
  /// Of the last step that was not skipped; mean of the last 20 of them, or fewer; NaN if there was none.
  double last_loss = std::numeric_limits<double>::quiet_NaN(), loss_last20 = last_loss;
  std::optional<double> val_loss = {};           ///< the newest
  bool stopped = false;                          ///< should_stop() said so
  bool unvalidated = false;                      ///< in the validation of the last step
  std::string stop_reason = {};                  ///< of a callback (Trainer::stop) or max_time; "": none
  io::Json speed = io::Json::object();           ///< speed_metrics("train", ...) of this process
  runtime::GraphCounts graphs = {};              ///< of this process, those of validation included
  std::vector<std::string> graph_refusals = {};  ///< why kinds of steps ran as they are
};

/// The result of validate() and test(). A loop outside of fit(), of one rank, ends early if should_stop() says so, and
/// is `stopped` then: without a result, and callbacks get no event of its end.
struct EvaluationResult {
  double loss = 0;  ///< mean over the batches, weighted by their tokens
  /// The values that the module logged of the whole loop, and val_loss or test_loss where it has none of that name.
  std::map<std::string, double> metrics = {};
  io::Json speed = io::Json::object();  ///< speed_metrics("eval" or "test", ...)
  bool stopped = false;
  runtime::GraphCounts graphs = {};  ///< of a loop outside of fit()
  std::vector<std::string> graph_refusals = {};
};

/// The tensors of predict_step() for one batch, on the device where it left them.
struct Prediction {
  std::int64_t batch = 0;
  std::vector<at::Tensor> tensors = {};
};

struct PredictResult {
  std::int64_t batches = 0, samples = 0;     ///< of all ranks
  std::vector<Prediction> predictions = {};  ///< of this rank, in the order of the batches
  io::Json speed = io::Json::object();       ///< speed_metrics("predict", ...)
  bool stopped = false;                      ///< see EvaluationResult
};

class Logger;
struct MicroBatch;

class Trainer {
 public:
  /// Throws std::invalid_argument naming the option, the value and what is allowed.
  explicit Trainer(TrainerOptions options, std::vector<std::shared_ptr<TrainerCallback>> callbacks = {});

  /// val: may be null. Throws std::invalid_argument for data without batches, an empty batch or a loss that is no
  /// number; std::runtime_error for a NaN or infinite loss or gradient; io::Error for a checkpoint that can't be read
  /// or written.
  FitResult fit(TrainingModule& module, BatchSource& train, BatchSource* val = nullptr);
  /// The loss over the validation batches; no gradients, eval mode. Outside of fit() loggers get val_loss too.
  EvaluationResult validate(TrainingModule& module, BatchSource& val);
  /// As validate(), over test data, by test_step(): test_loss.
  EvaluationResult test(TrainingModule& module, BatchSource& data);
  /// predict_step() of each batch; no gradients, eval mode. return_predictions: false where a callback takes them
  /// (PredictionWriter) and memory is not to hold all.
  PredictResult predict(TrainingModule& module, BatchSource& data, bool return_predictions = true);

  const TrainerOptions& options() const { return options_; }
  /// The callbacks that take rows of numbers.
  std::vector<Logger*> loggers() const;
  /// The newest number of each name: what the module logged, train_loss, and val_loss where there is a validation.
  const std::map<std::string, double>& callback_metrics() const { return metrics_.known(); }
  /// One of them as all ranks have it, who call this at the same moment: the mean of those whose own it is (what a step
  /// logs). None: no rank has it. What a callback decides by, where the decision leads into work of all ranks.
  std::optional<double> metric(const std::string& name) const;
  /// speed_metrics() of the loop that ended last; complete when its callbacks hear of the end.
  const io::Json& speed() const { return speed_; }
  std::int64_t steps_done() const { return steps_done_; }  ///< optimizer steps of the newest fit() so far

  // For callbacks, within fit(); std::logic_error elsewhere.

  /// Ends training after the step in progress, as if max_steps had been reached; the first reason counts. Of several
  /// ranks, all end: after the validation or epoch at whose end a callback asks, else after the step that follows.
  void stop(const std::string& reason);
  /// A checkpoint as the trainer's own. Every rank must call it, at the same moment, or all end by name. Throws
  /// io::Error.
  void save_checkpoint(const std::filesystem::path& folder);
  std::int64_t global_step() const;  ///< optimizer steps that are done
  bool logs_this_step() const;       ///< true if the step in progress is one of log_every_n_steps
  bool validates() const;            ///< true if there is validation data
  /// Optimizer steps of the whole run, those that are done included, by max_steps and max_epochs; -1: neither is set.
  std::int64_t estimated_stepping_batches() const;
  bool stopped() const;  ///< should_stop() said so: the run is not over
  bool is_first_rank() const;
  torch::nn::Module& network() const;
  const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers() const;
  const Optimizers& configured() const;  ///< the result of configure_optimizers()
  /// From here on learning rates are the caller's: schedulers and lr_factor rest. Not saved: a resumed run's callback
  /// says it again.
  void rest_schedules();
  /// training_step() of each batch of an epoch in the network's own mode, without gradients or callbacks: for running
  /// statistics. What it logs is dropped.
  void pass_over_training_data();

  /// Batches of the validation, test or prediction that runs, of all ranks; 0 elsewhere.
  std::int64_t loop_batches() const { return loop_batches_; }

 private:
  struct Run;
  struct Evaluation;
  class Within;

  template <class F>
  void each(F&& call);
  MicroBatch forward(Run& run, const Batch& batch, bool counts, const ForwardInfo& info, at::Tensor& loss);
  StepReport train_step(Run& run, std::int64_t count);
  double forward_backward(Run& run, std::int64_t count, StepReport& report);
  static void unscale_gradients(Run& run);
  void apply_gradients(Run& run, StepReport& report);
  static bool reads_loss_later(const Run& run);
  [[noreturn]] static void fail_non_finite(const Run& run, const StepReport& report);
  static void drop_gradients(Run& run);
  void run_epoch(Run& run);
  void sanity_check(Run& run);
  void after_step(Run& run, StepReport report);
  bool validate_step(Run& run, StepReport& report);
  EvaluationResult evaluate(TrainingModule& module, BatchSource& source, const Evaluation& of);
  bool loop_stopped() const;
  void close_loggers();
  bool validation_due(const Run& run) const;
  bool finished(const Run& run) const;
  const Run& running(const char* call) const;
  void clip_gradients(Run& run, StepReport& report) const;
  runtime::distributed::ProcessGroup* ranks() const;
  FitResult fit_run(Run& run);
  void report_exception(Run& run, const std::exception& error);
  void check_parameters(Run& run, const MicroBatch& all, bool last) const;
  void end_of_step(Run& run, const StepReport& report);
  void agree_to_stop(Run& run) const;
  void end(Run& run) const;
  bool out_of_time(const Run& run) const;
  bool prepare_root(const Run& run) const;
  void load_callbacks(const Run& run);
  io::Json callback_states() const;
  std::string key_of(const TrainerCallback& callback) const;
  void write_checkpoint(Run& run, const std::filesystem::path& folder, const std::function<void()>& then);
  void save(Run& run);
  void load_newest(Run& run);
  FitResult result_of(const Run& run) const;

  TrainerOptions options_;
  std::vector<std::shared_ptr<TrainerCallback>> callbacks_;
  Metrics metrics_;
  Run* run_ = nullptr;  ///< within fit()
  io::Json speed_ = io::Json::object();
  std::int64_t steps_done_ = 0, loop_batches_ = 0;
};

// How long a run is and where it validates, by its options alone: the one place that counts, for fit(), for schedules
// and for plans. As Lightning 2.6 counts.
//
//   batches of an epoch    limit_train_batches (overfit_batches) of those that a rank has
//   steps of an epoch      batches / accumulate_grad_batches, rounded up: the last one takes what is left
//   steps of a run         those of max_epochs, at most max_steps

/// batches: that a rank has. Throws as resolve_limit() does.
std::int64_t batches_of_epoch(const TrainerOptions& options, std::int64_t batches);

/// Optimizer steps that `batches` batches of an epoch are.
std::int64_t steps_of_epoch(const GradAccumulation& accumulation, std::int64_t epoch, std::int64_t batches);

/// Of epochs from `first` on, `batches` batches each, to the end of `epochs` epochs; a part of one is rounded up.
std::int64_t steps_of_epochs(const GradAccumulation& accumulation, std::int64_t batches, double epochs,
                             std::int64_t first = 0);

/// val_check_interval in batches; 0: never. batches: of an epoch. Throws std::invalid_argument for one that is longer
/// than the epoch, or that ends within a step.
std::int64_t batches_between_validations(const TrainerOptions& options, std::int64_t batches);

/// True if a validation follows the step that ends with `batch` batches of `epoch` done, `before` of them earlier.
/// interval: batches_between_validations().
bool validates_after(const TrainerOptions& options, std::int64_t interval, std::int64_t batches, std::int64_t epoch,
                     std::int64_t before, std::int64_t batch);

}  // namespace fp8::trainer
