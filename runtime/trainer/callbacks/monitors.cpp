// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/callbacks/monitors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <unistd.h>

#include <typeinfo>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/trainer/loggers.h"
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

const char* loop_name(Loop loop) {
  constexpr const char* kNames[] = {"fit", "validate", "test", "predict"};
  return kNames[static_cast<std::size_t>(loop)];
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
    io::fail<std::invalid_argument>("[GradientNorms] norm_type: found {}, allowed: above 0, or infinity", norm_type);
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

void DeviceStatsMonitor::log(const Trainer& trainer, Loop loop, const char* moment) const {
  constexpr const char* kNames[] = {"train", "validation", "test", "predict"};
  if (trainer.loggers().empty()) return;
  const std::string prefix =
      std::string("DeviceStatsMonitor.on_") + kNames[static_cast<std::size_t>(loop)] + "_batch_" + moment + "/";
  io::Json row = io::Json::object();
  for (const auto& [key, value] : runtime::by_name(runtime::memory_stats(device_))) row[prefix + key] = value;
  log_to_all(trainer, row, step_);
}

void DeviceStatsMonitor::on_loop_start(Trainer& trainer, Loop) { check_loggers(trainer, "DeviceStatsMonitor"); }

void DeviceStatsMonitor::on_fit_start(Trainer& trainer, std::int64_t step) {
  on_loop_start(trainer, Loop::fit);
  step_ = step;
}

io::Json memory_rows(int device, runtime::distributed::ProcessGroup* group) {
  const auto stats = runtime::memory_stats(device);
  std::array bytes = {stats.InUse, stats.MaxInUse, stats.Limit};
  if (group != nullptr) {
    const at::Tensor all = at::tensor(at::ArrayRef<std::int64_t>(bytes), at::kLong);
    group->all_reduce(all, runtime::distributed::ReduceOp::max);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = all.const_data_ptr<std::int64_t>()[i];
  }
  const auto gb = [](std::int64_t value) {  // numpy's round()
    return std::nearbyint(static_cast<double>(value) / (1024.0 * 1024 * 1024) * 100) / 100;
  };
  return {{"memory_allocated (GB)", gb(bytes[0])},
          {"max_memory_allocated (GB)", gb(bytes[1])},
          {"total_memory_available (GB)", gb(bytes[2])}};
}

bool MemoryLog::first_rank() const {
  return options_.group != nullptr ? options_.group->rank() == 0 : io::is_first_process();
}

MemoryLog::MemoryLog(MemoryLogOptions options) : options_(std::move(options)) {
  if (options_.logging_steps < 1)
    io::fail<std::invalid_argument>("[MemoryLog] logging_steps: found {}, allowed: 1 or more", options_.logging_steps);
  if (options_.gather == Gather::max && options_.group == nullptr)
    throw std::invalid_argument("[MemoryLog] gather: found max without a group, allowed: none, or max with a group");
}

void MemoryLog::on_fit_start(Trainer& trainer, std::int64_t) {
  const bool logs = first_rank() || options_.gather == Gather::max;  // one that ends must not leave others in a message
  if (logs) check_loggers(trainer, "MemoryLog");
}

void MemoryLog::on_step_end(Trainer& trainer, const StepReport& report) {
  if (report.step % options_.logging_steps != 0) return;
  if (!first_rank() && options_.gather == Gather::none) return;
  const auto rows = memory_rows(options_.device, options_.gather == Gather::max ? options_.group.get() : nullptr);
  if (!first_rank()) return;
  log_to_all(trainer, rows, report.step);
}

void ThroughputRows::on_loop_start(Trainer& trainer, Loop) { check_loggers(trainer, "ThroughputRows"); }
void ThroughputRows::on_loop_end(Trainer& trainer, Loop) { log_to_all(trainer, trainer.speed(), trainer.steps_done()); }

ThroughputMonitor::ThroughputMonitor(std::int64_t window_size, std::string separator)
    : window_size_(static_cast<std::size_t>(window_size)), separator_(std::move(separator)) {
  if (window_size < 2)
    io::fail<std::invalid_argument>("[ThroughputMonitor] window_size: found {}, allowed: 2 or more", window_size);
}

void ThroughputMonitor::on_fit_start(Trainer& trainer, std::int64_t) {
  check_loggers(trainer, "ThroughputMonitor");
  window_.clear();
}

void ThroughputMonitor::on_step_end(Trainer& trainer, const StepReport& report) {
  const auto& options = trainer.options();
  const double ranks = options.group != nullptr ? options.group->size() : 1;
  const Sums before = window_.empty() ? Sums{} : window_.back();
  window_.push_back({before.time + report.seconds, before.batches + static_cast<double>(report.batches),
                     before.samples + static_cast<double>(report.samples) / ranks,
                     before.lengths + static_cast<double>(report.tokens) / ranks});
  if (window_.size() > window_size_) window_.pop_front();
  if (report.step % options.log_every_n_steps != 0) return;
  const Sums &first = window_.front(), &last = window_.back();
  const std::string stage = "train" + separator_, device = stage + "device" + separator_;
  io::Json row = {{stage + "time", last.time},
                  {stage + "batches", last.batches},
                  {stage + "samples", last.samples},
                  {stage + "lengths", last.lengths}};
  for (const auto& [name, done] : {std::pair("batches_per_sec", last.batches - first.batches),
                                   std::pair("samples_per_sec", last.samples - first.samples),
                                   std::pair("items_per_sec", last.lengths - first.lengths)}) {
    if (window_.size() < window_size_) continue;
    row[device + name] = done / (last.time - first.time);
    if (ranks > 1) row[stage + name] = ranks * done / (last.time - first.time);
  }
  log_to_all(trainer, row, report.step);
}

ProgressBar::ProgressBar(ProgressBarOptions options) : options_(std::move(options)) {
  if (options_.write || isatty(STDERR_FILENO) == 0) return;
  options_.write = [](const std::string& text) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());  // a lost line does no harm
  };
}

std::string ProgressBar::line(const std::string& what, std::int64_t done, std::int64_t total, const std::string& more) {
  constexpr std::int64_t kWidth = 24;
  const auto tail = more.empty() ? "" : ", " + more;
  if (total <= 0) return what + " " + std::to_string(done) + tail;
  done = std::min(done, total);
  const auto filled = static_cast<std::size_t>(done * kWidth / total);
  char share[16];
  std::snprintf(share, sizeof share, "%3d%%", static_cast<int>(done * 100 / total));
  return io::message("{} [{}{}] {} {}/{}{}", what, std::string(filled, '#'),
                     std::string(static_cast<std::size_t>(kWidth) - filled, '.'), share, done, total, tail);
}

void ProgressBar::draw(const std::string& what, std::int64_t done, std::int64_t total, const std::string& more) {
  if (!options_.write) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && now - last_ < std::chrono::duration<double>(options_.seconds)) return;
  last_ = now;
  drawn_ = true;
  options_.write("\r" + line(what, done, total, more) + "\x1b[K");
}

void ProgressBar::clear() {
  if (std::exchange(drawn_, false)) options_.write("\r\x1b[K");
}

void ProgressBar::on_fit_start(Trainer& trainer, std::int64_t step) {
  steps_ = trainer.estimated_stepping_batches();
  draw("fit", step, steps_);
}

void ProgressBar::on_step_end(Trainer&, const StepReport& report) {
  char more[64];
  std::snprintf(more, sizeof more, "epoch %lld, loss %.4f", static_cast<long long>(report.epoch), report.loss);
  draw("fit", report.step, steps_, more);
}

void ProgressBar::on_loop_start(Trainer& trainer, Loop loop) { draw(loop_name(loop), 0, trainer.loop_batches()); }
void ProgressBar::on_loop_batch_end(Trainer& trainer, Loop loop, std::int64_t index) {
  if (loop != Loop::fit) draw(loop_name(loop), index + 1, trainer.loop_batches());
}
void ProgressBar::on_loop_end(Trainer&, Loop) { clear(); }

}  // namespace fp8::trainer
