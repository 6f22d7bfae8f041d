// SPDX-License-Identifier: Apache-2.0
// validate(), test() and predict(): loops without gradients, in eval mode. Ranks take the batches in turn, each once,
// so their mean has the bits of one process'.
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "fp8/runtime/trainer/loggers.h"
#include "fp8/runtime/trainer/trainer_run.h"

namespace fp8::trainer {
namespace {

// The common part of validation, test and prediction: no gradients, eval mode, the batches that are this rank's, and
// what all ranks know of them at the end. Not for users.
//
//   QuietLoop loop({"test", "limit_test_batches", options.limit_test_batches}, options, network, source);
//   while (const Batch* batch = loop.next()) loop.done(loss of *batch);
//   loop.merge();                                                         loop.loss(), loop.speed("test")

/// eval() while it lives, whatever ends it. A part that its owner keeps in eval mode stays so.
class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& network) {
    before_.emplace_back(&network, network.is_training());
    for (const auto& part : network.modules(/*include_self=*/false))
      before_.emplace_back(part.get(), part->is_training());
    network.eval();
  }
  ~EvalMode() {
    for (const auto& [part, training] : before_) part->train(training);  // outer ones first: train() goes down
  }
  EvalMode& operator=(EvalMode&&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> before_;
};

class QuietLoop {
 public:
  struct Kind {
    const char *name, *limit_name;  ///< in messages
    BatchLimit limit;
    std::int64_t warmup_steps = 0;  ///< left out of the speed
  };

  /// Throws std::invalid_argument for data without batches, and for a limit that leaves none.
  QuietLoop(const Kind& kind, const TrainerOptions& options, torch::nn::Module& network, BatchSource& source)
      : kind_(kind), eval_mode_(network), source_(source), group_(group_of_several(options)) {
    if (batches_ < 1)
      io::fail<std::invalid_argument>("[trainer] {} data: found no batch, allowed: 1 or more", kind.name);
    if (group_ != nullptr && options.strategy.use_distributed_sampler) share_ = {group_->rank(), group_->size()};
    index_ = share_.rank - share_.size;
    parts_.resize(static_cast<std::size_t>(kColumns * batches_));
    source.seek(0, 0);
    speed_.start = now();
  }

  std::int64_t batches() const { return batches_; }  ///< of all ranks that share a source
  std::int64_t index() const { return index_; }      ///< of the batch at hand

  /// This rank's next batch; null: it has had all. Throws std::invalid_argument for one that is empty or missing.
  const Batch* next() {
    if (index_ + share_.size >= batches_) return nullptr;
    index_ += share_.size;
    if (share_.size > 1) source_.seek(0, index_);
    batch_ = take(source_, index_, batches_, kind_.name);
    return &*batch_;
  }

  /// The batch at hand is done.
  void done(double loss = 0) {
    const auto at = parts_.begin() + kColumns * index_;
    at[0] = loss;
    at[1] = static_cast<double>(weight_of(*batch_));
    at[2] = static_cast<double>(batch_->samples);
    if (++speed_.steps == kind_.warmup_steps) speed_.start_after_warmup = now();
  }

  /// All ranks call it once, after their last batch.
  void merge() {
    speed_.end = now();
    if (share_.size > 1) {
      runtime::distributed::merge(parts_, *group_);
    } else if (group_ != nullptr) {
      parts_ = runtime::distributed::all_gather(parts_, *group_);
    }
  }

  /// After merge(). Mean, in the order of the batches, on whatever rank: the bits of one process.
  double loss() const {
    double sum = 0, weight = 0;
    for (std::size_t i = 0; i < parts_.size(); i += kColumns) {
      sum += parts_[i] * parts_[i + 1];
      weight += parts_[i + 1];
    }
    return sum / weight;
  }
  std::int64_t samples() const { return sums(false).samples; }
  io::Json speed(const std::string& split) const {
    SpeedInput in = speed_;
    const auto all = sums(false), warmup = sums(true);
    in.samples = all.samples;
    in.tokens = all.tokens;
    in.warmup_steps = kind_.warmup_steps;
    in.warmup_samples = warmup.samples;
    in.warmup_tokens = warmup.tokens;
    return speed_metrics(split, in);
  }

 private:
  static constexpr std::int64_t kColumns = 3;
  struct Sums {
    std::int64_t samples = 0, tokens = 0;
  };
  /// Of all batches, or of the warm-up's.
  Sums sums(bool warmup) const {
    Sums sums;
    for (std::int64_t i = 0; kColumns * i < std::ssize(parts_); ++i) {
      const auto step = share_.size > 1 ? i / share_.size : i % batches_;  // of the rank that had it
      if (warmup && step >= kind_.warmup_steps) continue;
      const auto at = parts_.begin() + kColumns * i;
      sums.tokens += static_cast<std::int64_t>(at[1]);
      sums.samples += static_cast<std::int64_t>(at[2]);
    }
    return sums;
  }

  Kind kind_;
  at::NoGradGuard no_grad_;
  EvalMode eval_mode_;
  BatchSource& source_;
  std::shared_ptr<runtime::distributed::ProcessGroup> group_;  ///< null for one rank
  BatchShare share_;
  std::int64_t batches_ = resolve_limit(kind_.limit_name, kind_.limit, source_.batches()), index_;
  std::optional<Batch> batch_;
  std::vector<double> parts_;  ///< loss, weight, samples of each batch: one rank's, else 0
  SpeedInput speed_;
};

/// `value` is `meanwhile` until the result goes.
auto set_meanwhile(std::int64_t& value, std::int64_t meanwhile) {
  return c10::make_scope_exit([&value, before = std::exchange(value, meanwhile)] { value = before; });
}

/// The default generator's numbers go on from here when the result goes.
auto keep_random_numbers() {
  return c10::make_scope_exit([state = random_state()] { set_random_state(state); });
}

}  // namespace

/// The differences between validation and test.
struct Trainer::Evaluation {
  const char *stage, *name, *limit_name, *step_name, *loss_name, *split;
  BatchLimit limit;
  at::Tensor (TrainingModule::*step)(const Batch&, std::int64_t);
  void (TrainerCallback::*start)(Trainer&);
  void (TrainerCallback::*batch_start)(Trainer&, const Batch&, std::int64_t);
  void (TrainerCallback::*batch_end)(Trainer&, const Batch&, std::int64_t, double);
  void (TrainerCallback::*end)(Trainer&, double);
};

bool Trainer::loop_stopped() const {
  return (run_ == nullptr || run_->validates) && ranks() == nullptr && options_.should_stop && options_.should_stop();
}

EvaluationResult Trainer::evaluate(TrainingModule& module, BatchSource& source, const Evaluation& of) {
  const runtime::PhaseScope phase(of.name);
  const auto deterministic = deterministic_scope(options_.deterministic);
  const Within within(*this, module, run_);
  const bool alone = run_ == nullptr;
  GraphedSteps of_this_loop(options_.hpu_graphs);
  GraphedSteps& graphs = alone ? of_this_loop : run_->graphs;
  QuietLoop loop({of.name, of.limit_name, of.limit, alone ? options_.throughput_warmup_steps : 0}, options_,
                 module.network(), source);
  const runtime::ProfiledStage stage(options_.profiler.get(), of.stage, loop.batches());
  const auto batches = set_meanwhile(loop_batches_, loop.batches());
  each([&](auto& callback) { (callback.*of.start)(*this); });
  while (const Batch* batch = loop.next()) {
    if (loop_stopped()) return {.stopped = true};
    each([&](auto& callback) { (callback.*of.batch_start)(*this, *batch, loop.index()); });
    const auto context = options_.forward_context ? options_.forward_context({.training = false}) : nullptr;
    double loss = 0;
    {
      const runtime::ProfiledAction action(options_.profiler.get(), of.step_name);
      metrics_.begin(Metrics::Stage::evaluation, static_cast<double>(weight_of(*batch)));
      loss = check_loss(graphs.run(module, of.step, *batch, loop.index(), /*training=*/false, metrics_), of.step_name)
                 .item<double>();
    }
    loop.done(loss);
    each([&](auto& callback) { (callback.*of.batch_end)(*this, *batch, loop.index(), loss); });
    stage.step();
  }
  loop.merge();
  EvaluationResult result{.loss = loop.loss(),
                          .speed = loop.speed(of.split),
                          .graphs = of_this_loop.counts(),
                          .graph_refusals = of_this_loop.refusals()};
  auto row = metrics_.take_means(Metrics::Stage::evaluation, ranks());
  for (const auto& [name, value] : row.items()) result.metrics[name] = metrics_.known().at(name);
  if (result.metrics.emplace(of.loss_name, result.loss).second && alone) row[of.loss_name] = result.loss;
  if (alone) metrics_.set(of.loss_name, result.loss);
  log_to_all(*this, row, steps_done_);
  speed_ = result.speed;
  each([&](auto& callback) { (callback.*of.end)(*this, result.loss); });
  if (alone) close_loggers();
  return result;
}

EvaluationResult Trainer::validate(TrainingModule& module, BatchSource& val) {
  using C = TrainerCallback;
  return evaluate(module, val,
                  {"validate", "validation", "limit_val_batches", "validation_step", "val_loss", "eval",
                   options_.limit_val_batches, &TrainingModule::validation_step, &C::on_validation_start,
                   &C::on_validation_batch_start, &C::on_validation_batch_end, &C::on_validation_end});
}

/// False where it was stopped: all is as before it, but that a resumed run begins with it.
bool Trainer::validate_step(Run& run, StepReport& report) {
  auto random_numbers = keep_random_numbers();
  const Metrics before = metrics_;
  run.validates = true;
  run.unvalidated = report;  // for what is saved if it ends here
  EvaluationResult result;
  try {
    result = validate(run.module, *run.val);
  } catch (...) {
    metrics_ = before;
    throw;
  }
  run.validates = false;
  if (result.stopped) {
    metrics_ = before;
    run.stopped = true;
    return false;
  }
  random_numbers.release();
  run.unvalidated.reset();
  report.val_loss = run.val_loss = result.loss;
  return true;
}

EvaluationResult Trainer::test(TrainingModule& module, BatchSource& data) {
  using C = TrainerCallback;
  return evaluate(
      module, data,
      {"test", "test", "limit_test_batches", "test_step", "test_loss", "test", options_.limit_test_batches,
       &TrainingModule::test_step, &C::on_test_start, &C::on_test_batch_start, &C::on_test_batch_end, &C::on_test_end});
}

PredictResult Trainer::predict(TrainingModule& module, BatchSource& data, bool return_predictions) {
  const runtime::PhaseScope phase("prediction");
  const auto deterministic = deterministic_scope(options_.deterministic);
  const Within within(*this, module, run_);
  const bool alone = run_ == nullptr;
  QuietLoop loop({"prediction", "limit_predict_batches", options_.limit_predict_batches,
                  alone ? options_.throughput_warmup_steps : 0},
                 options_, module.network(), data);
  const runtime::ProfiledStage stage(options_.profiler.get(), "predict", loop.batches());
  PredictResult result;
  const auto batches = set_meanwhile(loop_batches_, loop.batches());
  each([&](auto& callback) { callback.on_predict_start(*this); });
  while (const Batch* batch = loop.next()) {
    if (loop_stopped()) return {.stopped = true};
    each([&](auto& callback) { callback.on_predict_batch_start(*this, *batch, loop.index()); });
    std::vector<at::Tensor> outputs;
    {
      const auto context = options_.forward_context ? options_.forward_context({.training = false}) : nullptr;
      const runtime::ProfiledAction action(options_.profiler.get(), "predict_step");
      outputs = module.predict_step(*batch, loop.index());
    }
    loop.done();
    each([&](auto& callback) { callback.on_predict_batch_end(*this, *batch, loop.index(), outputs); });
    if (return_predictions) result.predictions.push_back({loop.index(), std::move(outputs)});
    stage.step();
  }
  loop.merge();
  result.batches = loop.batches();
  result.samples = loop.samples();
  result.speed = speed_ = loop.speed("predict");
  each([&](auto& callback) { callback.on_predict_end(*this); });
  if (alone) close_loggers();
  return result;
}

void Trainer::sanity_check(Run& run) {
  if (options_.num_sanity_val_steps == 0 || run.val == nullptr || run.val_batches == 0) return;
  const runtime::PhaseScope phase("sanity_check");
  const auto random_numbers = keep_random_numbers();
  const Metrics before = metrics_;
  const auto wanted = options_.num_sanity_val_steps;
  const auto count = wanted < 0 ? run.val_batches : std::min(wanted, run.val_batches);
  QuietLoop loop({"validation", "num_sanity_val_steps", count}, options_, run.module.network(), *run.val);
  while (const Batch* batch = loop.next()) {
    const auto context = options_.forward_context ? options_.forward_context({.training = false}) : nullptr;
    metrics_.begin(Metrics::Stage::evaluation, static_cast<double>(weight_of(*batch)));
    check_loss(run.module.validation_step(*batch, loop.index()), "validation_step");
  }
  metrics_ = before;
}

void Trainer::pass_over_training_data() {
  running("pass_over_training_data");
  Run& run = *run_;
  const runtime::PhaseScope phase("statistics");
  const at::NoGradGuard no_grad;
  const Metrics before = metrics_;
  const auto batch = set_meanwhile(run.batch, 0), batches = set_meanwhile(run.train_batches, 0);
  run.begin_epoch();
  run.train.seek(run.data_epoch(), 0);
  for (; run.batch < run.train_batches; ++run.batch) {
    const auto [data, counts] = run.next_batch();
    const auto context = options_.forward_context ? options_.forward_context({.training = false}) : nullptr;
    metrics_.begin(Metrics::Stage::train, static_cast<double>(weight_of(data)));
    run.module.training_step(data, run.batch);
  }
  metrics_ = before;
}

}  // namespace fp8::trainer
