// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/loggers/logger.h"

#include <ATen/ops/tensor.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/trainer/loggers/memory_log.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {

void check_loggers(const Trainer& trainer, const char* who) {
  if (trainer.options().fast_dev_run > 0 || !trainer.loggers().empty()) return;
  throw std::invalid_argument(std::string("[") + who +
                              "] loggers: found none among the trainer's callbacks, allowed: 1 or more (JsonlLogger)");
}

void log_to_all(const Trainer& trainer, const io::Json& row, std::int64_t step) {
  if (row.empty()) return;
  for (Logger* logger : trainer.loggers()) logger->log_metrics(row, step);
}

void append_line(LogFile& file, const io::Json& row) {
  file.append(row.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n");
}

void JsonlLogger::log_metrics(const io::Json& metrics, std::int64_t step) {
  if (!file_.writes()) return;
  io::Json row = {{"step", step}};
  row.update(metrics);
  append_line(file_, row);
}

LogFile::LogFile(std::filesystem::path path) : path_(std::move(path)) {
  if (io::is_first_process()) reopen();
}

void LogFile::reopen() {
  file_ = io::Descriptor(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (file_.get() < 0) io::fail_errno(path_, "open", errno);
}

void LogFile::append(std::string_view bytes) {
  if (!writes()) return;
  for (std::size_t done = 0; done < bytes.size();) {
    const auto n = write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io::fail_errno(path_, "write", errno, bytes.size());
    done += static_cast<std::size_t>(n);
  }
}

void LogFile::sync() {
  if (writes() && fsync(file_.get()) != 0) io::fail_errno(path_, "sync", errno);
}

std::uint64_t LogFile::size() const {
  struct stat now {};
  if (!writes()) return 0;
  if (fstat(file_.get(), &now) != 0) io::fail_errno(path_, "stat", errno);
  return static_cast<std::uint64_t>(now.st_size);
}

void LogFile::truncate(std::uint64_t size) {
  if (!writes()) return;
  if (const auto found = this->size(); found < size)
    io::fail(path_, "holds " + std::to_string(found) + " bytes, but had " + std::to_string(size) +
                        " when the checkpoint was written");
  if (ftruncate(file_.get(), static_cast<off_t>(size)) != 0) io::fail_errno(path_, "truncate", errno);
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
    throw std::invalid_argument("[MemoryLog] logging_steps: found " + std::to_string(options_.logging_steps) +
                                ", allowed: 1 or more");
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

}  // namespace fp8::trainer
