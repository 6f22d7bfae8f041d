// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_length.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fp8::commands {
namespace {

std::int64_t whole(double steps) { return static_cast<std::int64_t>(std::ceil(steps)); }

}  // namespace

void count_steps(TrainOptions& o, const std::function<std::int64_t(double)>& steps_of) {
  const std::int64_t epoch = std::max<std::int64_t>(1, steps_of(1));
  if (o.epochs > 0) o.optimizer.steps = std::max<std::int64_t>(1, steps_of(o.epochs));
  if (o.run.trainer.accumulate_grad_batches.size() > 1 && (o.eval_each_epoch || o.save_each_epoch))
    throw UsageError(
        "--eval-each-epoch and --save-each-epoch: found with a schedule of accumulate_grad_batches, whose "
        "epochs have different steps, allowed: val_check_interval, --save-every");
  if (o.warmup_ratio > 0) o.optimizer.warmup = whole(o.warmup_ratio * static_cast<double>(o.optimizer.steps));
  if (o.eval_each_epoch) o.eval_every = epoch;
  if (o.save_each_epoch) o.save_every = epoch;
  check_steps(o);
}

void check_steps(const TrainOptions& o) {
  const std::int64_t steps = o.optimizer.steps;
  const std::string of = o.epochs > 0 ? fmt::format(", which --epochs {} come to", o.epochs) : "";
  if (o.throughput_warmup > 0 && o.throughput_warmup >= steps)
    throw UsageError(
        fmt::format("--throughput-warmup: found {}, allowed: fewer than --steps {}{}", o.throughput_warmup, steps, of));
  if (o.optimizer.warmup > steps)
    throw UsageError(fmt::format("--warmup: found {}, allowed: at most --steps {}{}", o.optimizer.warmup, steps, of));
}

}  // namespace fp8::commands
