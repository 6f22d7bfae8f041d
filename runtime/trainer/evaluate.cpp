// SPDX-License-Identifier: Apache-2.0
// validate() and test(): one loop without gradients, in eval mode. Ranks take the batches in turn, each once, so their
// mean has the bits of one process'.
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "fp8/runtime/distributed/exchange.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/trainer/logger.h"
#include "fp8/runtime/trainer/one_batch.h"
#include "fp8/runtime/trainer/trainer_run.h"

namespace fp8::trainer {
namespace {

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
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> before_;
};

}  // namespace

/// What the two differ in.
struct Trainer::Evaluation {
  const char *stage, *name, *limit_name, *step_name;
  BatchLimit limit;
  at::Tensor (TrainingModule::*step)(const Batch&, std::int64_t);
  void (TrainerCallback::*start)(Trainer&);
  void (TrainerCallback::*batch_start)(Trainer&, const Batch&, std::int64_t);
  void (TrainerCallback::*batch_end)(Trainer&, const Batch&, std::int64_t, double);
  void (TrainerCallback::*end)(Trainer&, double);
};

double Trainer::evaluate(TrainingModule& module, BatchSource& source, const Evaluation& of) {
  const runtime::PhaseScope phase(of.name);
  const Within within(*this, module, run_);
  at::NoGradGuard no_grad;
  const auto batches = resolve_limit(of.limit_name, of.limit, source.batches());
  if (batches < 1)
    throw std::invalid_argument("[trainer] " + std::string(of.name) + " data: found no batch, allowed: 1 or more");
  auto& network = module.network();
  const EvalMode eval_mode(network);
  const runtime::ProfiledStage stage(options_.profiler.get(), of.stage, batches);
  each([&](auto& callback) { (callback.*of.start)(*this); });
  source.seek(0, 0);
  const bool shared = options_.group != nullptr && options_.group->size() > 1;
  BatchShare share;
  if (shared && options_.strategy.use_distributed_sampler) share = {options_.group->rank(), options_.group->size()};
  std::vector<double> parts(static_cast<std::size_t>(2 * batches));  // loss, weight of each batch: one rank's, else 0
  for (std::int64_t i = share.rank; i < batches; i += share.size) {
    if (share.size > 1) source.seek(0, i);
    const auto batch = take(source, i, batches, of.name);
    each([&](auto& callback) { (callback.*of.batch_start)(*this, batch, i); });
    const auto context = options_.forward_context ? options_.forward_context({.training = false}) : nullptr;
    double loss = 0;
    {
      const runtime::ProfiledAction action(options_.profiler.get(), of.step_name);
      metrics_.begin(Metrics::Stage::evaluation, static_cast<double>(weight_of(batch)));
      loss = check_loss((module.*of.step)(batch, i), of.step_name).item<double>();
    }
    parts[static_cast<std::size_t>(2 * i)] = loss;
    parts[static_cast<std::size_t>(2 * i) + 1] = static_cast<double>(weight_of(batch));
    each([&](auto& callback) { (callback.*of.batch_end)(*this, batch, i, loss); });
    stage.step();
  }
  if (share.size > 1) {
    runtime::distributed::merge(parts, *options_.group);
  } else if (shared) {
    parts = runtime::distributed::all_gather(parts, *options_.group);
  }
  log_to_all(*this, metrics_.take_means(Metrics::Stage::evaluation), run_ != nullptr ? run_->step : 0);
  double sum = 0, weight = 0;  // in the order of the batches, whoever had them
  for (std::size_t i = 0; i < parts.size(); i += 2) {
    sum += parts[i] * parts[i + 1];
    weight += parts[i + 1];
  }
  each([&](auto& callback) { (callback.*of.end)(*this, sum / weight); });
  return sum / weight;
}

double Trainer::validate(TrainingModule& module, BatchSource& val) {
  using C = TrainerCallback;
  return evaluate(module, val,
                  {"validate", "validation", "limit_val_batches", "validation_step", options_.limit_val_batches,
                   &TrainingModule::validation_step, &C::on_validation_start, &C::on_validation_batch_start,
                   &C::on_validation_batch_end, &C::on_validation_end});
}

double Trainer::test(TrainingModule& module, BatchSource& data) {
  using C = TrainerCallback;
  return evaluate(
      module, data,
      {"test", "test", "limit_test_batches", "test_step", options_.limit_test_batches, &TrainingModule::test_step,
       &C::on_test_start, &C::on_test_batch_start, &C::on_test_batch_end, &C::on_test_end});
}

}  // namespace fp8::trainer
