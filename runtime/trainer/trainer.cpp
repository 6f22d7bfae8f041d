// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/trainer.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "fp8/runtime/graph/graph_counter.h"
#include "fp8/runtime/lazy/lazy_mode.h"
#include "fp8/runtime/optim/fused_clip_ema.h"
#include "fp8/runtime/trainer/loggers.h"
#include "fp8/runtime/trainer/trainer_run.h"

namespace fp8::trainer {

std::int64_t Trainer::estimated_stepping_batches() const {
  const Run& run = running("estimated_stepping_batches");
  const auto& o = options_;
  if (o.max_epochs < 0) return o.max_steps;
  std::int64_t steps = run.step;
  if (run.epoch < o.max_epochs)
    steps +=
        steps_of_epoch(o.accumulate_grad_batches, run.epoch, run.train_batches - run.batch) +
        steps_of_epochs(o.accumulate_grad_batches, run.batch_limit, static_cast<double>(o.max_epochs), run.epoch + 1);
  return o.max_steps < 0 ? steps : std::min(steps, std::max(o.max_steps, run.step));
}

void Trainer::fail_non_finite(const Run& run, const StepReport& report) {
  const bool loss = !std::isfinite(report.loss);
  const double found = loss ? report.loss : report.grad_norm;
  io::fail<std::runtime_error>(
      "[trainer] step {}: the {} is {} (batches {} to {} of epoch {}), allowed: a finite number; parameters are those "
      "of step {}{}",
      report.step, loss ? "loss" : "norm of the gradients", std::isnan(found) ? "nan" : std::to_string(found),
      run.batch - report.batches, run.batch - 1, run.epoch, run.step,
      report.anomaly.empty() ? "" : "; detect_anomaly: " + report.anomaly);
}

/// In lazy mode a loss that is read waits for its forward, and ranks meet there.
bool Trainer::reads_loss_later(const Run& run) { return runtime::is_lazy_mode() && run.group == nullptr; }

/// The loss of this rank's batch, and what all ranks say of theirs.
MicroBatch Trainer::forward(Run& run, const Batch& batch, bool counts, const ForwardInfo& info, at::Tensor& loss) {
  if (info.microbatch + 1 == info.microbatches) run.strategy->before_last_forward();
  {
    const auto context = options_.forward_context ? options_.forward_context(info) : nullptr;
    const runtime::PhaseScope phase("forward");
    const runtime::ProfiledAction action(options_.profiler.get(), "training_step");
    loss = check_loss(
        run.graphs.run(run.module, &TrainingModule::training_step, batch, run.batch, /*training=*/true, metrics_),
        "training_step");
  }
  if (options_.context_ended) options_.context_ended();
  const runtime::PhaseScope phase("loss");
  MicroBatch::Part own{reads_loss_later(run) ? 0 : loss.item<double>()};
  if (counts) {
    own.weight = static_cast<double>(weight_of(batch));
    own.samples = batch.samples;
  }
  own.stop = run.group != nullptr && options_.should_stop && options_.should_stop();
  own.end = run.group != nullptr && (!run.wish.empty() || out_of_time(run));
  own.learning = run.learning();
  own.gradients = run.gradients;
  MicroBatch all = exchange(own, run.group.get());
  check_parameters(run, all, info.microbatch + 1 == info.microbatches);
  return all;
}

/// Weights are taken relative to the first batch's (its mean, of several ranks) and as if all were equal;
/// `run.gradient_factor` mends that, since the sizes of the batches to come are not known.
double Trainer::forward_backward(Run& run, std::int64_t count, StepReport& report) {
  double sum = 0, first = 1, weights = 0;
  const auto rank = static_cast<std::size_t>(run.group != nullptr ? run.group->rank() : 0);
  const auto ranks = static_cast<double>(run.group != nullptr ? run.group->size() : 1);
  run.stop_asked = false;
  for (std::int64_t i = 0; i < count; ++i, ++run.batch) {
    const runtime::PhaseScope data("data");
    const auto [batch_, counts] = run.next_batch();
    const Batch& batch = batch_;
    each([&](auto& callback) { callback.on_train_batch_start(*this, batch, run.batch); });
    metrics_.begin(Metrics::Stage::train, counts ? static_cast<double>(weight_of(batch)) : 0);
    at::Tensor loss;
    MicroBatch all = forward(run, batch, counts, {true, report.step, i, count}, loss);
    const at::Tensor unread = reads_loss_later(run) ? loss.detach() : at::Tensor();
    if (options_.lazy.pipelining) runtime::mark_step();
    if (i == 0) first = all.weight() / ranks;
    if (all.finite()) {
      const double weight = all.parts[rank].weight;
      const runtime::PhaseScope phase("loss");
      if (weight != first) loss = loss * (weight / first);
      if (count > 1) loss = loss / static_cast<double>(count);
      if (run.scaler) loss = (loss.element_size() < 4 ? loss.to(at::kFloat) : loss) * run.scaler->scale();
      const runtime::PhaseScope backward("backward");
      const runtime::ProfiledAction action(options_.profiler.get(), "backward");
      run.strategy->backward(loss, i + 1 == count);
      runtime::mark_step();
    }
    if (unread.defined()) all.parts[rank].loss = unread.item<double>();
    for (const auto& part : all.parts) {
      sum += part.loss * (part.weight / first);
      weights += part.weight / first;
    }
    run.stop_asked = run.stop_asked || all.stop();
    if (all.end()) end(run);
    report.batches += 1;
    report.samples += all.samples();
    report.tokens += static_cast<std::int64_t>(all.weight());
    each([&](auto& callback) { callback.on_train_batch_end(*this, batch, run.batch, all.parts[rank].loss); });
  }
  if (std::isfinite(sum)) {
    const runtime::PhaseScope phase("reduce");
    run.strategy->reduce();
  }
  run.gradient_factor = static_cast<double>(count) * ranks / weights;
  return sum / weights;
}

/// Those of parameters that no optimizer has, too: the next step's norm would count them again.
void Trainer::drop_gradients(Run& run) {
  const runtime::PhaseScope phase("zero_grad");
  if (run.strategy->zero_gradients()) return;
  for (const auto& optimizer : run.optimizers.optimizers) optimizer->zero_grad();
  for (const auto& p : run.parameters) p.mutable_grad().reset();
}

/// Gradients as they would be without loss scaling, for any sizes of the batches.
void Trainer::unscale_gradients(Run& run) {
  const double factor = run.gradient_factor / (run.scaler ? run.scaler->scale() : 1.0);
  if (factor == 1) return;
  const runtime::PhaseScope phase("unscale");
  at::NoGradGuard no_grad;
  for (const auto& p : run.parameters)
    if (p.grad().defined()) p.mutable_grad().mul_(factor);
}

void Trainer::apply_gradients(Run& run, StepReport& report) {
  unscale_gradients(run);
  each([&](auto& callback) { callback.on_after_backward(*this); });
  clip_gradients(run, report);
  run.remember_gradients(report.grad_norm);
  const bool finite = std::isfinite(report.loss) && std::isfinite(report.grad_norm);
  if (run.scaler) report.loss_scale = run.scaler->scale();
  if (!finite && run.anomaly) report.anomaly = run.anomaly->report();
  const bool expected = std::isfinite(report.loss) && run.scaler && run.scaler->update(finite);
  if (!finite && !expected && options_.nonfinite == NonFinite::error) fail_non_finite(run, report);
  report.skipped = !finite;
  if (finite) {
    each([&](auto& callback) { callback.on_before_optimizer_step(*this); });
    {
      const runtime::PhaseScope phase("optimizer");
      const runtime::ProfiledAction action(options_.profiler.get(), "optimizer_step");
      for (const auto& optimizer : run.optimizers.optimizers) optimizer->step();
    }
    each([&](auto& callback) { callback.on_after_optimizer_step(*this); });
  }
  drop_gradients(run);
}

StepReport Trainer::train_step(Run& run, std::int64_t count) {
  const runtime::ProfiledAction action(options_.profiler.get(), "run_training_batch");
  const double start = now();
  if (run.anomaly) run.anomaly->begin_step();
  StepReport report;
  report.step = run.step + 1;
  report.epoch = run.epoch;
  run.set_learning_rates();
  report.lr = run.learning_rate();
  report.loss = forward_backward(run, count, report);
  apply_gradients(run, report);
  runtime::mark_step(/*step_done=*/true);
  if (!report.skipped) run.step_schedulers(ScheduleInterval::step);  // Lightning's move on
  report.seconds = now() - start;
  report.tokens_per_second = report.seconds > 0 ? static_cast<double>(report.tokens) / report.seconds : 0;
  return report;
}

/// The norm is wanted without a limit too.
void Trainer::clip_gradients(Run& run, StepReport& report) const {
  const runtime::PhaseScope phase("clip");
  const double limit = options_.gradient_clip_val;
  const bool by_norm = options_.gradient_clip_algorithm == GradientClip::norm && limit > 0;
  const double largest_norm = by_norm ? limit : std::numeric_limits<float>::max();
  report.grad_norm = runtime::optim::FusedClipNorm(run.parameters, largest_norm).clip_norm().item<double>();
  if (by_norm || limit == 0) return;
  const at::NoGradGuard no_grad;
  for (const auto& p : run.parameters)
    if (p.grad().defined()) p.mutable_grad().clamp_(-limit, limit);
}

bool Trainer::finished(const Run& run) const { return options_.max_steps >= 0 && run.step >= options_.max_steps; }

bool Trainer::validation_due(const Run& run) const {
  if (run.val == nullptr || run.val_batches == 0) return false;
  const bool last_epoch = options_.max_epochs >= 0 && run.epoch + 1 >= options_.max_epochs;
  const bool last_step = finished(run) || run.ends() || (last_epoch && run.batch >= run.train_batches);
  if (options_.val_every_n_steps > 0) return last_step || run.step % options_.val_every_n_steps == 0;
  return validates_after(options_, run.val_interval, run.batch_limit, run.epoch, run.batch - run.batch_before,
                         run.batch);
}

void Trainer::after_step(Run& run, StepReport report) {
  const double start = now();
  if (!run.unvalidated) {
    run.step = steps_done_ = report.step;
    run.count(report);
    if (run.group == nullptr && out_of_time(run)) end(run);
  }
  if ((run.unvalidated || validation_due(run)) && !validate_step(run, report)) return;
  end_of_step(run, report);
  run.stopped = run.group != nullptr ? run.stop_asked : options_.should_stop && options_.should_stop();
  const bool last = finished(run) || run.ends();
  if (!options_.checkpoint_root.empty() &&
      (last || (options_.save_every_n_steps > 0 && run.step % options_.save_every_n_steps == 0)))
    save(run);
  const double end = now();
  const auto own_steps = run.step - run.first_step;
  if (own_steps == options_.throughput_warmup_steps && own_steps > 0) {
    run.speed.start_after_warmup = end;
    run.speed.warmup_steps = own_steps;
    run.speed.warmup_samples = run.speed.samples;
    run.speed.warmup_tokens = run.speed.tokens;
    run.speed.log_evaluate_save_seconds = 0;
  } else if (options_.adjust_throughput) {
    run.speed.log_evaluate_save_seconds += end - start;
  }
}

void Trainer::run_epoch(Run& run) {
  const runtime::ProfiledAction action(options_.profiler.get(), "run_training_epoch");
  run.begin_epoch();
  run.train.seek(run.data_epoch(), run.batch);
  each([&](auto& callback) { callback.on_train_epoch_start(*this, run.epoch); });
  while (run.batch < run.train_batches && !finished(run) && !run.ends()) {
    const auto count =
        std::min(batches_of_step(options_.accumulate_grad_batches, run.epoch), run.train_batches - run.batch);
    run.batch_before = count;
    const StepReport report = train_step(run, count);
    run.whole_batch = run.batch;
    after_step(run, report);
    if (options_.profiler) options_.profiler->step();
  }
  if (run.batch < run.train_batches || run.stopped) return;
  run.step_schedulers(ScheduleInterval::epoch);
  log_to_all(*this, metrics_.take_means(Metrics::Stage::train, ranks()), run.step);
  each([&](auto& callback) { callback.on_train_epoch_end(*this, run.epoch); });
  agree_to_stop(run);
  ++run.epoch;
  run.batch = run.whole_batch = 0;
}

namespace {

/// Lazy mode for one fit().
class LazyFit {
 public:
  explicit LazyFit(bool on) : before_(on ? runtime::set_lazy_mode(true) : true) {}
  ~LazyFit() {
    if (before_) return;
    try {
      runtime::set_lazy_mode(false);
    } catch (const std::exception&) {  // of work behind what ended fit()
    }
  }
  LazyFit& operator=(LazyFit&&) = delete;

 private:
  bool before_;
};

}  // namespace

FitResult Trainer::fit(TrainingModule& module, BatchSource& train, BatchSource* val) {
  auto& autograd = c10::AutogradState::get_tls_state();
  const auto threads_as_before = c10::make_scope_exit(
      [&, before = autograd.get_multithreading_enabled()] { autograd.set_multithreading_enabled(before); });
  autograd.set_multithreading_enabled(false);  // backward runs on this thread
  const LazyFit lazy(options_.lazy.on);
  const auto deterministic = deterministic_scope(options_.deterministic);
  Run run(module, train, val, options_);
  const Within within(*this, module, &run);
  metrics_ = {};
  run.start = now();
  try {
    FitResult result = fit_run(run);
    runtime::finish_work();
    return result;
  } catch (const std::exception& error) {
    report_exception(run, error);
    throw;
  }
}

/// Their exceptions would hide the first one.
void Trainer::report_exception(Run& run, const std::exception& error) {
  run.batch = run.whole_batch;
  for (const auto& callback : callbacks_) {
    try {
      callback->on_exception(*this, error);
    } catch (const std::exception&) {
    }
  }
}

FitResult Trainer::fit_run(Run& run) {
  const bool starts_over = prepare_root(run);
  run.check_ranks(options_);
  if (options_.resume) load_newest(run);
  steps_done_ = run.step;
  run.share_parameters();
  const auto steps = estimated_stepping_batches();
  const runtime::ProfiledStage stage(options_.profiler.get(), "fit",
                                     steps < 0 ? -1 : std::max<std::int64_t>(0, steps - run.step));
  drop_gradients(run);  // of a fit() that an error ended
  run.module.network().train();
  load_callbacks(run);
  if (starts_over) each([](auto& callback) { callback.start_over(); });
  if (run.first_step == 0) sanity_check(run);
  if (options_.detect_anomaly) run.anomaly = std::make_unique<AnomalyWatch>(run.module.network());
  const auto whole_steps = run.step - (run.unvalidated ? 1 : 0);
  each([&](auto& callback) { callback.on_fit_start(*this, whole_steps); });
  run.restore_optimizers();
  run.take_strategy(options_.strategy);
  agree_to_stop(run);
  run.speed.start = now();
  if (run.unvalidated) after_step(run, *run.unvalidated);
  // A checkpoint may end with an epoch, whose own end came after it.
  if (run.first_step > 0 && run.batch == run.train_batches) run_epoch(run);
  while (!finished(run) && !run.ends() && (options_.max_epochs == -1 || run.epoch < options_.max_epochs))
    run_epoch(run);
  runtime::finish_work();
  run.speed.end = now();
  run.check_gradients();
  // Epochs may end training at a step that was not known to be the last.
  if (!options_.checkpoint_root.empty() && run.saved_step != run.step) save(run);
  speed_ = speed_metrics("train", run.speed);
  each([&](auto& callback) { callback.on_fit_end(*this); });
  close_loggers();
  return result_of(run);
}

}  // namespace fp8::trainer
