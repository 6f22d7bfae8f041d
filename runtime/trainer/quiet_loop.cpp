// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/quiet_loop.h"

#include <torch/nn/module.h>

#include <stdexcept>
#include <string>

#include "fp8/runtime/distributed/exchange.h"
#include "fp8/runtime/trainer/trainer_run.h"

namespace fp8::trainer {
namespace {

constexpr std::int64_t kColumns = 3;

}  // namespace

EvalMode::EvalMode(torch::nn::Module& network) {
  before_.emplace_back(&network, network.is_training());
  for (const auto& part : network.modules(/*include_self=*/false))
    before_.emplace_back(part.get(), part->is_training());
  network.eval();
}

EvalMode::~EvalMode() {
  for (const auto& [part, training] : before_) part->train(training);  // outer ones first: train() goes down
}

QuietLoop::QuietLoop(const Kind& kind, const TrainerOptions& options, torch::nn::Module& network, BatchSource& source)
    : kind_(kind),
      eval_mode_(network),
      source_(source),
      group_(options.group != nullptr && options.group->size() > 1 ? options.group : nullptr),
      batches_(resolve_limit(kind.limit_name, kind.limit, source.batches())) {
  if (batches_ < 1)
    throw std::invalid_argument("[trainer] " + std::string(kind.name) + " data: found no batch, allowed: 1 or more");
  if (group_ != nullptr && options.strategy.use_distributed_sampler) share_ = {group_->rank(), group_->size()};
  index_ = share_.rank - share_.size;
  parts_.resize(static_cast<std::size_t>(kColumns * batches_));
  source.seek(0, 0);
  speed_.start = now();
}

const Batch* QuietLoop::next() {
  if (index_ + share_.size >= batches_) return nullptr;
  index_ += share_.size;
  if (share_.size > 1) source_.seek(0, index_);
  batch_ = take(source_, index_, batches_, kind_.name);
  return &*batch_;
}

void QuietLoop::done(double loss) {
  const auto at = parts_.begin() + kColumns * index_;
  at[0] = loss;
  at[1] = static_cast<double>(weight_of(*batch_));
  at[2] = static_cast<double>(batch_->samples);
  if (++speed_.steps == kind_.warmup_steps) speed_.start_after_warmup = now();
}

void QuietLoop::merge() {
  speed_.end = now();
  if (share_.size > 1) {
    runtime::distributed::merge(parts_, *group_);
  } else if (group_ != nullptr) {
    parts_ = runtime::distributed::all_gather(parts_, *group_);
  }
}

double QuietLoop::loss() const {
  double sum = 0, weight = 0;
  for (std::size_t i = 0; i < parts_.size(); i += kColumns) {
    sum += parts_[i] * parts_[i + 1];
    weight += parts_[i + 1];
  }
  return sum / weight;
}

QuietLoop::Sums QuietLoop::sums(bool warmup) const {
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

std::int64_t QuietLoop::samples() const { return sums(false).samples; }

io::Json QuietLoop::speed(const std::string& split) const {
  SpeedInput in = speed_;
  const auto all = sums(false), warmup = sums(true);
  in.samples = all.samples;
  in.tokens = all.tokens;
  in.warmup_steps = kind_.warmup_steps;
  in.warmup_samples = warmup.samples;
  in.warmup_tokens = warmup.tokens;
  return speed_metrics(split, in);
}

}  // namespace fp8::trainer
