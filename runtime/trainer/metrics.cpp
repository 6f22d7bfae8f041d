// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/metrics.h"

#include <bit>
#include <sstream>

#include "fp8/runtime/io/base/checksum.h"

namespace fp8::trainer {
namespace {

double rounded(double value, double factor) { return std::round(value * factor) / factor; }

io::Json state_of(const std::map<std::string, double>& numbers) {
  io::Json state = io::Json::object();
  for (const auto& [name, value] : numbers) state[name] = io::number_or_text(value);
  return state;
}

/// A row of numbers: NaN and infinity as they are.
io::Json row_of(const std::map<std::string, double>& numbers) {
  io::Json row = io::Json::object();
  for (const auto& [name, value] : numbers) row[name] = value;
  return row;
}

std::map<std::string, double> numbers_of(const io::Json& state) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : state.items()) numbers[name] = io::number_or_nan(value);
  return numbers;
}

}  // namespace

io::Json speed_metrics(const std::string& split, const SpeedInput& in) {
  io::Json metrics = {{split + "_runtime", rounded(in.end - in.start, 1e4)}};
  const bool warm = in.start_after_warmup.has_value() && in.steps > in.warmup_steps;
  const double seconds = in.end - (warm ? *in.start_after_warmup : in.start) - in.log_evaluate_save_seconds;
  if (!(seconds > 0)) return metrics;
  const auto add = [&](const char* what, std::int64_t all, std::int64_t warmup) {
    metrics[split + what] = rounded(static_cast<double>(all - (warm ? warmup : 0)) / seconds, 1e3);
  };
  add("_samples_per_second", in.samples, in.warmup_samples);
  add("_steps_per_second", in.steps, in.warmup_steps);
  add("_tokens_per_second", in.tokens, in.warmup_tokens);
  return metrics;
}

void Metrics::begin(Stage stage, double weight) {
  stage_ = stage;
  weight_ = weight;
}

void Metrics::log(const std::string& name, double value, LogWhen when) {
  if (stage_ == Stage::none)
    io::fail<std::logic_error>(
        "[trainer] log(\"{}\"): called outside of a step, allowed: in training_step, validation_step and test_step",
        name);
  ++log_calls_;
  const bool training = stage_ == Stage::train;
  const bool on_step = when.on_step.value_or(training && !when.on_epoch.value_or(false));
  const bool on_epoch = when.on_epoch.value_or(!training && !when.on_step.value_or(false));
  if (name.empty() || name == "epoch" || name == "step")
    io::fail<std::invalid_argument>("[trainer] log: found the name \"{}\", allowed: another, not empty", name);
  if (!on_step && !on_epoch)
    io::fail<std::invalid_argument>("[trainer] log(\"{}\"): found neither on_step nor on_epoch, allowed: one", name);
  if (on_step) {
    const auto key = on_epoch ? name + "_step" : name;
    step_[key] = value;
    known_[key] = value;
    logged_.insert(key);
  }
  if (on_epoch) {
    const auto key = on_step ? name + "_epoch" : name;
    auto& mean = means_of(stage_)[key];
    mean.sum += value * weight_;
    mean.weight += weight_;
    logged_.insert(key);
  }
}

void Metrics::set(const std::string& name, double value) {
  if (!logged_.contains(name)) known_[name] = value;
}

io::Json Metrics::take_step() {
  stage_ = Stage::none;
  return row_of(std::exchange(step_, {}));
}

/// Sums and weights of all ranks, in the order of the ranks. A rank whose batches said nothing of a name has it, too.
void Metrics::merge(std::map<std::string, Mean>& means, runtime::distributed::ProcessGroup& group) {
  using namespace runtime::distributed;
  std::string names;
  for (const auto& [name, mean] : means) names += io::Json(name).dump() + "\n";
  const double own = std::bit_cast<double>(io::checksum(names));
  const auto all = all_gather({&own, 1}, group);
  const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
  if (std::ranges::any_of(all, [&](double other) { return bits(other) != bits(all[0]); }))
    for (int rank = 0; rank < group.size(); ++rank) {
      std::istringstream lines(broadcast_text(names, group, rank));
      for (std::string line; std::getline(lines, line);) means[io::parse_json(line, "metrics").get<std::string>()];
    }
  std::vector<double> row;
  for (const auto& [name, mean] : means) row.insert(row.end(), {mean.sum, mean.weight});
  const auto rows = all_gather(row, group);
  for (std::size_t i = 0; auto& [name, mean] : means) {
    mean = {};
    for (std::size_t at = i; at < rows.size(); at += row.size()) {
      mean.sum += rows[at];
      mean.weight += rows[at + 1];
    }
    i += 2;
  }
}

io::Json Metrics::take_means(Stage stage, runtime::distributed::ProcessGroup* group) {
  auto means = std::exchange(means_of(stage), {});
  if (group != nullptr) merge(means, *group);
  std::map<std::string, double> row;
  for (const auto& [name, mean] : means)
    if (mean.weight > 0) row[name] = known_[name] = mean.sum / mean.weight;
  stage_ = Stage::none;
  return row_of(row);
}

io::Json Metrics::state() const {
  io::Json means = io::Json::object();
  for (const auto& [name, mean] : train_) means[name] = {io::number_or_text(mean.sum), mean.weight};
  return {{"train", std::move(means)}, {"known", state_of(known_)}, {"step", state_of(step_)}, {"logged", logged_}};
}

void Metrics::load(const io::Json& state) {
  train_.clear();
  for (const auto& [name, mean] : state.at("train").items())
    train_[name] = {io::number_or_nan(mean.at(0)), mean.at(1).get<double>()};
  known_ = numbers_of(state.at("known"));
  step_ = numbers_of(state.at("step"));
  logged_ = state.at("logged").get<std::set<std::string>>();
}

}  // namespace fp8::trainer
