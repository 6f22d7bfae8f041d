// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/loggers/memory_log.h"

#include <ATen/ops/tensor.h>

#include <array>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/trainer/loggers/logger.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {

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
