// SPDX-License-Identifier: Apache-2.0
// The trainer's answers to callbacks, and its messages to loggers.
#include <c10/util/Exception.h>

#include <bit>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "fp8/runtime/distributed/exchange.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/trainer/loggers/logger.h"
#include "fp8/runtime/trainer/trainer_run.h"

namespace fp8::trainer {

void TrainingModule::log(const std::string& name, double value, LogWhen when) {
  if (metrics_ == nullptr)
    throw std::logic_error("[trainer] log(\"" + name +
                           "\"): found no trainer that runs this module, allowed: in "
                           "training_step, validation_step and test_step");
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

runtime::distributed::ProcessGroup* Trainer::ranks() const {
  return options_.group != nullptr && options_.group->size() > 1 ? options_.group.get() : nullptr;
}

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
void Trainer::meet_parameters(Run& run, const MicroBatch& all, bool last) const {
  if (run.group != nullptr && !all.same_gradients()) run.fail_gradients();
  if (run.group != nullptr && !all.same_learning()) {
    runtime::distributed::check_same(run.who_learns(), *run.group, "trainer, parameters that learn");
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
    throw std::logic_error(std::string("[trainer] ") + call + ": called outside of fit(), allowed: in its callbacks");
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

/// Where all ranks come at the same moment.
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
