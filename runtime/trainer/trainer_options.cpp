// SPDX-License-Identifier: Apache-2.0
// What a Trainer is made with: what is out of range, what one option makes of others.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "fp8/runtime/trainer/callbacks/progress_bar.h"
#include "fp8/runtime/trainer/loggers/logger.h"
#include "fp8/runtime/trainer/lr_schedule.h"
#include "fp8/runtime/trainer/trainer_run.h"

namespace fp8::trainer {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& found, const std::string& allowed) {
  throw std::invalid_argument("[trainer] " + name + ": found " + found + ", allowed: " + allowed);
}

void check_at_least(const char* name, std::int64_t value, std::int64_t least, bool or_minus_one = false) {
  if (value >= least || (or_minus_one && value == -1)) return;
  refuse(name, std::to_string(value),
         std::to_string(least) + " or more" + (or_minus_one ? ", or -1 for no limit" : ""));
}

std::string text_of(const BatchLimit& limit) {
  return std::holds_alternative<double>(limit) ? io::Json(std::get<double>(limit)).dump()
                                               : std::to_string(std::get<std::int64_t>(limit));
}

void check_accumulation(const GradAccumulation& batches) {
  if (const auto* number = std::get_if<std::int64_t>(&batches))
    return check_at_least("accumulate_grad_batches", *number, 1);
  const auto& schedule = std::get<std::map<std::int64_t, std::int64_t>>(batches);
  if (schedule.empty()) refuse("accumulate_grad_batches", "an empty schedule", "{epoch: batches}, from epoch 0");
  for (const auto& [epoch, number] : schedule) {
    check_at_least("accumulate_grad_batches, an epoch", epoch, 0);
    check_at_least("accumulate_grad_batches", number, 1);
  }
}

/// A trial of a few batches.
void make_trial(TrainerOptions& o) {
  o.limit_train_batches = o.limit_val_batches = o.limit_test_batches = o.limit_predict_batches = o.fast_dev_run;
  o.num_sanity_val_steps = 0;
  o.max_epochs = 1;
  o.max_steps = -1;
  o.val_every_n_steps = 0;
  o.val_check_interval = 1.0;
  o.checkpoint_root.clear();
  o.resume = false;
}

}  // namespace

std::int64_t batches_of_step(const GradAccumulation& batches, std::int64_t epoch) {
  if (const auto* number = std::get_if<std::int64_t>(&batches)) return *number;
  const auto& schedule = std::get<std::map<std::int64_t, std::int64_t>>(batches);
  const auto after = schedule.upper_bound(epoch);
  return after == schedule.begin() ? 1 : std::prev(after)->second;
}

bool overfits(const TrainerOptions& options) {
  const auto& limit = options.overfit_batches;
  return std::holds_alternative<double>(limit) ? std::get<double>(limit) > 0 : std::get<std::int64_t>(limit) > 0;
}

std::function<double(std::int64_t)> cosine_with_warmup(std::int64_t warmup, std::int64_t steps, double min_factor) {
  return LrSchedule{.warmup = warmup, .steps = steps, .min_factor = min_factor};
}

std::int64_t resolve_limit(const std::string& name, const BatchLimit& limit, std::int64_t batches) {
  if (const auto* count = std::get_if<std::int64_t>(&limit)) {
    if (*count < 0) refuse(name, std::to_string(*count), "a count of 0 or more, or a fraction from 0.0 to 1.0");
    return std::min(*count, batches);
  }
  const double fraction = std::get<double>(limit);
  if (!(fraction >= 0 && fraction <= 1))
    refuse(name, text_of(limit), "a count of 0 or more, or a fraction from 0.0 to 1.0");
  const auto count = static_cast<std::int64_t>(fraction * static_cast<double>(batches));
  if (count == 0 && fraction > 0 && batches > 0)
    refuse(name, text_of(limit) + ", which leaves none of " + std::to_string(batches) + " batches",
           "0, or " + io::Json(1.0 / static_cast<double>(batches)).dump() + " or more");
  return count;
}

Trainer::Trainer(TrainerOptions options, std::vector<std::shared_ptr<TrainerCallback>> callbacks)
    : options_(std::move(options)), callbacks_(std::move(callbacks)) {
  auto& o = options_;
  check_at_least("max_steps", o.max_steps, 1, true);
  check_at_least("max_epochs", o.max_epochs, 1, true);
  check_at_least("num_sanity_val_steps", o.num_sanity_val_steps, 0, true);
  check_accumulation(o.accumulate_grad_batches);
  check_at_least("fast_dev_run", o.fast_dev_run, 0);
  check_at_least("val_every_n_steps", o.val_every_n_steps, 0);
  check_at_least("log_every_n_steps", o.log_every_n_steps, 1);
  check_at_least("throughput_warmup_steps", o.throughput_warmup_steps, 0);
  check_at_least("save_every_n_steps", o.save_every_n_steps, 0);
  check_at_least("keep_checkpoints", o.keep_checkpoints, 1);
  if (!(o.gradient_clip_val >= 0) || std::isinf(o.gradient_clip_val))
    refuse("gradient_clip_val", std::to_string(o.gradient_clip_val), "0 (none) or more");
  if (!(o.max_time >= 0) || std::isinf(o.max_time))
    refuse("max_time", std::to_string(o.max_time), "seconds, 0 (no limit) or more");
  for (const auto& [name, limit] :
       {std::pair("limit_train_batches", o.limit_train_batches), std::pair("limit_val_batches", o.limit_val_batches),
        std::pair("limit_test_batches", o.limit_test_batches),
        std::pair("limit_predict_batches", o.limit_predict_batches), std::pair("overfit_batches", o.overfit_batches),
        std::pair("val_check_interval", o.val_check_interval)})
    resolve_limit(name, limit, 0);
  if (overfits(o)) o.limit_train_batches = o.limit_val_batches = o.overfit_batches;
  if (o.fast_dev_run > 0) {
    make_trial(o);
    std::erase_if(callbacks_, [](const auto& callback) { return !callback->in_fast_dev_run(); });
  }
  if (o.grad_scaler) (void)GradScaler(*o.grad_scaler);
  resolve_strategy(o.strategy.kind, o.group != nullptr ? o.group->size() : 1);
  if (o.max_steps == -1 && o.max_epochs == -1 && o.max_time == 0)
    refuse("max_steps, max_epochs and max_time", "none", "one of them");
  std::set<std::string> keys;
  for (const auto& callback : callbacks_)
    if (const auto key = callback->state_key(); !key.empty() && !keys.insert(key).second)
      refuse("callbacks", "two whose state is called " + key, "one of each kind and name");
  const auto is_bar = [](const auto& callback) { return dynamic_cast<ProgressBar*>(callback.get()) != nullptr; };
  if (o.enable_progress_bar && (o.group == nullptr || o.group->rank() == 0) && std::ranges::none_of(callbacks_, is_bar))
    callbacks_.push_back(std::make_shared<ProgressBar>());
}

}  // namespace fp8::trainer
