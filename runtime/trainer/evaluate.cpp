// SPDX-License-Identifier: Apache-2.0
// validate(), test() and predict(): loops without gradients, in eval mode. Ranks take the batches in turn, each once,
// so their mean has the bits of one process'.
#include <utility>
#include <vector>

#include "fp8/runtime/io/json/numbers.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/trainer/logger.h"
#include "fp8/runtime/trainer/one_batch.h"
#include "fp8/runtime/trainer/quiet_loop.h"
#include "fp8/runtime/trainer/trainer_run.h"

namespace fp8::trainer {

/// What validation and test differ in.
struct Trainer::Evaluation {
  const char *stage, *name, *limit_name, *step_name, *loss_name, *split;
  BatchLimit limit;
  at::Tensor (TrainingModule::*step)(const Batch&, std::int64_t);
  void (TrainerCallback::*start)(Trainer&);
  void (TrainerCallback::*batch_start)(Trainer&, const Batch&, std::int64_t);
  void (TrainerCallback::*batch_end)(Trainer&, const Batch&, std::int64_t, double);
  void (TrainerCallback::*end)(Trainer&, double);
};

EvaluationResult Trainer::evaluate(TrainingModule& module, BatchSource& source, const Evaluation& of) {
  const runtime::PhaseScope phase(of.name);
  const Within within(*this, module, run_);
  const bool alone = run_ == nullptr;
  QuietLoop loop({of.name, of.limit_name, of.limit, alone ? options_.throughput_warmup_steps : 0}, options_,
                 module.network(), source);
  const runtime::ProfiledStage stage(options_.profiler.get(), of.stage, loop.batches());
  each([&](auto& callback) { (callback.*of.start)(*this); });
  while (const Batch* batch = loop.next()) {
    each([&](auto& callback) { (callback.*of.batch_start)(*this, *batch, loop.index()); });
    const auto context = options_.forward_context ? options_.forward_context({.training = false}) : nullptr;
    double loss = 0;
    {
      const runtime::ProfiledAction action(options_.profiler.get(), of.step_name);
      metrics_.begin(Metrics::Stage::evaluation, static_cast<double>(weight_of(*batch)));
      loss = check_loss((module.*of.step)(*batch, loop.index()), of.step_name).item<double>();
    }
    loop.done(loss);
    each([&](auto& callback) { (callback.*of.batch_end)(*this, *batch, loop.index(), loss); });
    stage.step();
  }
  loop.merge();
  EvaluationResult result{loop.loss(), {}, loop.speed(of.split)};
  auto row = metrics_.take_means(Metrics::Stage::evaluation);
  for (const auto& [name, value] : row.items()) result.metrics[name] = metrics_.known().at(name);
  if (result.metrics.emplace(of.loss_name, result.loss).second && alone)
    row[of.loss_name] = io::number_or_null(result.loss);
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

EvaluationResult Trainer::test(TrainingModule& module, BatchSource& data) {
  using C = TrainerCallback;
  return evaluate(
      module, data,
      {"test", "test", "limit_test_batches", "test_step", "test_loss", "test", options_.limit_test_batches,
       &TrainingModule::test_step, &C::on_test_start, &C::on_test_batch_start, &C::on_test_batch_end, &C::on_test_end});
}

PredictResult Trainer::predict(TrainingModule& module, BatchSource& data, bool return_predictions) {
  const runtime::PhaseScope phase("prediction");
  const Within within(*this, module, run_);
  const bool alone = run_ == nullptr;
  QuietLoop loop({"prediction", "limit_predict_batches", options_.limit_predict_batches,
                  alone ? options_.throughput_warmup_steps : 0},
                 options_, module.network(), data);
  const runtime::ProfiledStage stage(options_.profiler.get(), "predict", loop.batches());
  PredictResult result;
  each([&](auto& callback) { callback.on_predict_start(*this); });
  while (const Batch* batch = loop.next()) {
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

}  // namespace fp8::trainer
