// SPDX-License-Identifier: Apache-2.0
// A Trainer's options, checked: values out of range, and options that decide about others. Its functions for callbacks,
// and its messages to loggers.
#include <c10/util/Exception.h>

#include <bit>

#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "fp8/runtime/trainer/loggers.h"
#include "fp8/runtime/trainer/trainer_run.h"

namespace fp8::trainer {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& found, const std::string& allowed) {
  io::fail<std::invalid_argument>("[trainer] {}: found {}, allowed: {}", name, found, allowed);
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
  o.check_val_every_n_epoch = 1;
  o.overfit_batches = 0.0;
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

std::int64_t batches_of_epoch(const TrainerOptions& o, std::int64_t batches) {
  if (overfits(o)) return resolve_limit("overfit_batches", o.overfit_batches, batches);
  return resolve_limit("limit_train_batches", o.limit_train_batches, batches);
}

std::int64_t steps_of_epoch(const GradAccumulation& accumulation, std::int64_t epoch, std::int64_t batches) {
  const auto each = batches_of_step(accumulation, epoch);
  return (batches + each - 1) / each;
}

std::int64_t steps_of_epochs(const GradAccumulation& accumulation, std::int64_t batches, double epochs,
                             std::int64_t first) {
  const auto whole = static_cast<std::int64_t>(epochs);
  std::int64_t steps = 0, epoch = first;
  const auto* schedule = std::get_if<1>(&accumulation);
  if (schedule == nullptr) {  // of one product: 2.1 epochs of 10 steps are 21, though 2.1 - 2 is more than 0.1
    const std::int64_t each = steps_of_epoch(accumulation, first, batches);
    return static_cast<std::int64_t>(std::ceil(epochs * static_cast<double>(each))) - first * each;
  }
  for (const auto last = schedule->rbegin()->first; epoch < whole && epoch < last; ++epoch)
    steps += steps_of_epoch(accumulation, epoch, batches);
  if (epoch < whole) steps += (whole - epoch) * steps_of_epoch(accumulation, epoch, batches);
  const auto part = (epochs - static_cast<double>(whole)) *
                    static_cast<double>(steps_of_epoch(accumulation, std::max(epoch, whole), batches));
  return steps + static_cast<std::int64_t>(std::ceil(part));
}

std::int64_t batches_between_validations(const TrainerOptions& o, std::int64_t batches) {
  if (o.val_every_n_steps > 0) return 0;
  const auto* count = std::get_if<std::int64_t>(&o.val_check_interval);
  const auto interval = count != nullptr ? *count : resolve_limit("val_check_interval", o.val_check_interval, batches);
  const bool goes_on = o.check_val_every_n_epoch == 0;
  if (interval == 0 || (interval == batches && !goes_on)) return interval;
  if (goes_on && count == nullptr)
    refuse("val_check_interval", text_of(o.val_check_interval) + " with check_val_every_n_epoch 0",
           "a count of batches");
  if (!goes_on && interval > batches)
    refuse("val_check_interval", std::to_string(interval),
           "1 to the " + std::to_string(batches) +
               " batches of an epoch; check_val_every_n_epoch null (0) counts on from epoch to epoch");
  const auto check = [&](std::int64_t each) {
    if (each == 1 || (interval % each == 0 && (!goes_on || batches % each == 0))) return;
    refuse("val_check_interval",
           std::to_string(interval) + " batches with accumulate_grad_batches " + std::to_string(each),
           "an interval that ends with a step: the whole epoch, or a multiple of " + std::to_string(each));
  };
  if (const auto* number = std::get_if<0>(&o.accumulate_grad_batches)) check(*number);
  if (const auto* schedule = std::get_if<1>(&o.accumulate_grad_batches))
    for (const auto& [epoch, each] : *schedule)
      if (o.max_epochs < 0 || epoch < o.max_epochs) check(each);
  return interval;
}

bool validates_after(const TrainerOptions& o, std::int64_t interval, std::int64_t batches, std::int64_t epoch,
                     std::int64_t before, std::int64_t batch) {
  if (interval == 0) return false;
  const auto every = o.check_val_every_n_epoch;
  if (every > 0) return (epoch + 1) % every == 0 && batch / interval > before / interval;
  return (epoch * batches + batch) / interval > (epoch * batches + before) / interval;
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
  check_at_least("check_val_every_n_epoch", o.check_val_every_n_epoch, 0);
  check_at_least("log_every_n_steps", o.log_every_n_steps, 1);
  check_at_least("throughput_warmup_steps", o.throughput_warmup_steps, 0);
  check_at_least("save_every_n_steps", o.save_every_n_steps, 0);
  check_at_least("keep_checkpoints", o.keep_checkpoints, 1);
  check_at_least("hpu_graphs.max_graphs", o.hpu_graphs.max_graphs, 1);
  if (o.lazy.pipelining && !o.lazy.on) refuse("lazy.pipelining", "true", "with lazy.on");
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
  std::set<std::string> keys, places;
  for (const auto& callback : callbacks_)
    if (const auto key = callback->state_key(); !key.empty() && !keys.insert(key).second && !callback->is_logger())
      refuse("callbacks", "two whose state is called " + key, "one of each kind and name");
  for (const Logger* logger : loggers())
    if (const auto place = logger->place().lexically_normal().string(); !place.empty() && !places.insert(place).second)
      refuse("loggers", "two that write " + place, "a save_dir, name or version of its own for each");
  const auto is_bar = [](const auto& callback) { return dynamic_cast<ProgressBar*>(callback.get()) != nullptr; };
  if (o.enable_progress_bar && (o.group == nullptr || o.group->rank() == 0) && std::ranges::none_of(callbacks_, is_bar))
    callbacks_.push_back(std::make_shared<ProgressBar>());
}

// The trainer's answers to callbacks, and its messages to loggers.

void TrainingModule::log(const std::string& name, double value, LogWhen when) {
  if (metrics_ == nullptr)
    io::fail<std::logic_error>(
        "[trainer] log(\"{}\"): found no trainer that runs this module, allowed: in training_step, validation_step and "
        "test_step",
        name);
  metrics_->log(name, value, when);
}

std::vector<at::Tensor> TrainingModule::predict_step(const Batch&, std::int64_t) {
  throw std::logic_error("[trainer] predict: the module has no predict_step, allowed: one that does");
}

std::vector<Logger*> Trainer::loggers() const {
  std::vector<Logger*> found;
  for (const auto& callback : callbacks_)
    if (auto* logger = dynamic_cast<Logger*>(callback.get())) found.push_back(logger);
  return found;
}

runtime::distributed::ProcessGroup* Trainer::ranks() const { return group_of_several(options_).get(); }

std::optional<double> Trainer::metric(const std::string& name) const {
  const auto& known = metrics_.known();
  const auto found = known.find(name);
  const auto own = found != known.end() ? std::optional(found->second) : std::nullopt;
  auto* group = ranks();
  if (group == nullptr) return own;
  group->meet("metric " + name);
  const double row[] = {own ? 1.0 : 0.0, own.value_or(0)};
  const auto rows = runtime::distributed::all_gather(row, *group);
  double sum = 0, ranks_with_it = 0, first = 0;
  bool same = true;
  for (std::size_t i = 0; i < rows.size(); i += std::size(row)) {
    if (rows[i] == 0) continue;
    if (ranks_with_it == 0) first = rows[i + 1];
    same = same && std::bit_cast<std::uint64_t>(first) == std::bit_cast<std::uint64_t>(rows[i + 1]);
    sum += rows[i + 1];
    ranks_with_it += 1;
  }
  if (ranks_with_it == 0) return std::nullopt;
  return same ? first : sum / ranks_with_it;
}

/// Every rank comes here after each forward, so what one of them has otherwise ends all.
void Trainer::check_parameters(Run& run, const MicroBatch& all, bool last) const {
  if (run.group != nullptr && !all.same_gradients()) run.fail_gradients();
  if (run.group != nullptr && !all.same_learning()) {
    runtime::distributed::check_same(run.learning_by_name(), *run.group, "trainer, parameters that learn");
    TORCH_CHECK(false, "[trainer] parameters that learn: the ranks' optimizers have them in another order");
  }
  if (all.parts[0].learning == run.learned) return;
  run.take_strategy(options_.strategy);
  if (last) run.strategy->before_last_forward();
}

void Trainer::close_loggers() {
  for (Logger* logger : loggers()) logger->finalize();
}

const Trainer::Run& Trainer::running(const char* call) const {
  if (run_ == nullptr)
    io::fail<std::logic_error>("[trainer] {}: called outside of fit(), allowed: in its callbacks", call);
  return *run_;
}

void Trainer::stop(const std::string& reason) {
  running("stop");
  auto& first = run_->group == nullptr ? run_->stop_reason : run_->wish;
  if (first.empty()) first = reason.empty() ? "asked to" : reason;
}

std::int64_t Trainer::global_step() const { return running("global_step").step; }
bool Trainer::logs_this_step() const { return (running("logs_this_step").step + 1) % options_.log_every_n_steps == 0; }
bool Trainer::validates() const {
  const Run& run = running("validates");
  return run.val != nullptr && run.val_batches > 0;
}
bool Trainer::stopped() const { return running("stopped").stopped; }
const Optimizers& Trainer::configured() const { return running("configured").optimizers; }
void Trainer::rest_schedules() {
  running("rest_schedules");
  run_->schedules_rest = true;
}
bool Trainer::is_first_rank() const { return running("is_first_rank").first(); }
torch::nn::Module& Trainer::network() const { return running("network").module.network(); }
const std::vector<std::shared_ptr<torch::optim::Optimizer>>& Trainer::optimizers() const {
  return running("optimizers").optimizers.optimizers;
}

void Trainer::end_of_step(Run& run, const StepReport& report) {
  metrics_.set("train_loss", report.loss);
  if (report.val_loss) metrics_.set("val_loss", *report.val_loss);
  auto row = metrics_.take_step();
  if (!row.empty() && report.step % options_.log_every_n_steps == 0) {
    row["epoch"] = report.epoch;
    log_to_all(*this, row, report.step);
  }
  each([&](auto& callback) { callback.on_step_end(*this, report); });
  if (report.val_loss) agree_to_stop(run);
}

/// Ends the run on all ranks if one of them asks for it. All ranks call it at the same moment.
void Trainer::agree_to_stop(Run& run) const {
  if (run.group == nullptr) return;
  double asked[] = {run.wish.empty() ? 0.0 : 1.0};
  runtime::distributed::merge(asked, *run.group);
  if (asked[0] > 0) end(run);
}

void Trainer::end(Run& run) const {
  if (!run.stop_reason.empty()) return;
  run.stop_reason = !run.wish.empty() ? run.wish : out_of_time(run) ? "max_time" : "another rank's";
}

bool Trainer::out_of_time(const Run& run) const {
  return options_.max_time > 0 && run.seconds_before + now() - run.start >= options_.max_time;
}

}  // namespace fp8::trainer
