// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/callbacks/monitors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <vector>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/callbacks/device_stats_monitor.h"
#include "fp8/runtime/trainer/loggers/logger.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {
namespace {

/// "AdamW" of torch::optim::AdamW.
std::string class_of(const torch::optim::Optimizer& optimizer) {
  const std::string name = c10::demangle(typeid(optimizer).name());
  const auto last = name.rfind(':');
  return last == std::string::npos ? name : name.substr(last + 1);
}

io::Json rates_of(const Trainer& trainer) {
  io::Json row = io::Json::object();
  std::map<std::string, int> seen;
  for (const auto& optimizer : trainer.optimizers()) {
    std::string name = "lr-" + class_of(*optimizer);
    if (const int before = seen[name]++; before > 0) name += "-" + std::to_string(before);
    const auto& groups = optimizer->param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i)
      row[groups.size() > 1 ? name + "/pg" + std::to_string(i + 1) : name] = groups[i].options().get_lr();
  }
  return row;
}

}  // namespace

void LearningRateMonitor::on_fit_start(Trainer& trainer, std::int64_t) {
  check_loggers(trainer, "LearningRateMonitor");
}

void LearningRateMonitor::on_train_epoch_start(Trainer& trainer, std::int64_t) {
  if (every_ == ScheduleInterval::epoch) log_to_all(trainer, rates_of(trainer), trainer.global_step());
}

void LearningRateMonitor::on_before_optimizer_step(Trainer& trainer) {
  if (every_ == ScheduleInterval::step && trainer.logs_this_step())
    log_to_all(trainer, rates_of(trainer), trainer.global_step() + 1);
}

GradientNorms::GradientNorms(double norm_type) : norm_type_(norm_type) {
  if (!(norm_type > 0))
    throw std::invalid_argument("[GradientNorms] norm_type: found " + std::to_string(norm_type) +
                                ", allowed: above 0, or infinity");
}

void GradientNorms::on_fit_start(Trainer& trainer, std::int64_t) { check_loggers(trainer, "GradientNorms"); }

void GradientNorms::on_before_optimizer_step(Trainer& trainer) {
  if (!trainer.logs_this_step() || trainer.loggers().empty()) return;
  const at::NoGradGuard no_grad;
  const std::string prefix = "grad_" + io::number_text(norm_type_) + "_norm";
  io::Json row = io::Json::object();
  double total = 0;
  for (const auto& p : trainer.network().named_parameters()) {
    if (!p.value().grad().defined()) continue;
    const double norm =
        at::linalg_vector_norm(p.value().grad(), norm_type_, {}, /*keepdim=*/false, at::kFloat).item<double>();
    row[prefix + "/" + p.key()] = norm;
    total = std::isinf(norm_type_) ? std::max(total, norm) : total + std::pow(norm, norm_type_);
  }
  row[prefix + "_total"] = std::isinf(norm_type_) ? total : std::pow(total, 1 / norm_type_);
  log_to_all(trainer, row, trainer.global_step() + 1);
}

void DeviceStatsMonitor::log(const Trainer& trainer, const char* hook) const {
  if (trainer.loggers().empty()) return;
  const std::string prefix = std::string("DeviceStatsMonitor.") + hook + "/";
  io::Json row = io::Json::object();
  for (const auto& [key, value] : runtime::by_name(runtime::memory_stats(device_))) row[prefix + key] = value;
  log_to_all(trainer, row, step_);
}

void DeviceStatsMonitor::on_fit_start(Trainer& trainer, std::int64_t step) {
  check_loggers(trainer, "DeviceStatsMonitor");
  step_ = step;
}
void DeviceStatsMonitor::on_validation_start(Trainer& trainer) { check_loggers(trainer, "DeviceStatsMonitor"); }
void DeviceStatsMonitor::on_test_start(Trainer& trainer) { check_loggers(trainer, "DeviceStatsMonitor"); }
void DeviceStatsMonitor::on_predict_start(Trainer& trainer) { check_loggers(trainer, "DeviceStatsMonitor"); }

void DeviceStatsMonitor::on_train_batch_start(Trainer& trainer, const Batch&, std::int64_t) {
  log(trainer, "on_train_batch_start");
}
void DeviceStatsMonitor::on_train_batch_end(Trainer& trainer, const Batch&, std::int64_t, double) {
  log(trainer, "on_train_batch_end");
}
void DeviceStatsMonitor::on_validation_batch_start(Trainer& trainer, const Batch&, std::int64_t) {
  log(trainer, "on_validation_batch_start");
}
void DeviceStatsMonitor::on_validation_batch_end(Trainer& trainer, const Batch&, std::int64_t, double) {
  log(trainer, "on_validation_batch_end");
}
void DeviceStatsMonitor::on_test_batch_start(Trainer& trainer, const Batch&, std::int64_t) {
  log(trainer, "on_test_batch_start");
}
void DeviceStatsMonitor::on_test_batch_end(Trainer& trainer, const Batch&, std::int64_t, double) {
  log(trainer, "on_test_batch_end");
}
void DeviceStatsMonitor::on_predict_batch_start(Trainer& trainer, const Batch&, std::int64_t) {
  log(trainer, "on_predict_batch_start");
}
void DeviceStatsMonitor::on_predict_batch_end(Trainer& trainer, const Batch&, std::int64_t,
                                              const std::vector<at::Tensor>&) {
  log(trainer, "on_predict_batch_end");
}

}  // namespace fp8::trainer
