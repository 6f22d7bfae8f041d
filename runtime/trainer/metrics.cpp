// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/metrics.h"

#include <stdexcept>
#include <utility>

#include "fp8/runtime/io/json/numbers.h"

namespace fp8::trainer {
namespace {

io::Json state_of(const std::map<std::string, double>& numbers) {
  io::Json state = io::Json::object();
  for (const auto& [name, value] : numbers) state[name] = io::number_or_null(value);
  return state;
}

std::map<std::string, double> numbers_of(const io::Json& state) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : state.items()) numbers[name] = io::number_or_nan(value);
  return numbers;
}

}  // namespace

void Metrics::begin(Stage stage, double weight) {
  stage_ = stage;
  weight_ = weight;
}

void Metrics::log(const std::string& name, double value, LogWhen when) {
  if (stage_ == Stage::none)
    throw std::logic_error("[trainer] log(\"" + name +
                           "\"): called outside of a step, allowed: in training_step, "
                           "validation_step and test_step");
  const bool training = stage_ == Stage::train;
  const bool on_step = when.on_step.value_or(training && !when.on_epoch.value_or(false));
  const bool on_epoch = when.on_epoch.value_or(!training && !when.on_step.value_or(false));
  if (name.empty() || name == "epoch" || name == "step")
    throw std::invalid_argument("[trainer] log: found the name \"" + name + "\", allowed: another, not empty");
  if (!on_step && !on_epoch)
    throw std::invalid_argument("[trainer] log(\"" + name + "\"): found neither on_step nor on_epoch, allowed: one");
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
  return state_of(std::exchange(step_, {}));
}

io::Json Metrics::take_means(Stage stage) {
  std::map<std::string, double> row;
  for (const auto& [name, mean] : std::exchange(means_of(stage), {})) row[name] = known_[name] = mean.sum / mean.weight;
  stage_ = Stage::none;
  return state_of(row);
}

io::Json Metrics::state() const {
  io::Json means = io::Json::object();
  for (const auto& [name, mean] : train_) means[name] = {io::number_or_null(mean.sum), mean.weight};
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
