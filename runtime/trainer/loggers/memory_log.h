// SPDX-License-Identifier: Apache-2.0
// Optimum Habana's memory rows, every `logging_steps` optimizer steps: bytes / 1024^3, rounded to 2 decimals.
//
//   memory_allocated (GB)         in use
//   max_memory_allocated (GB)     the most that was
//   total_memory_available (GB)   the device's limit
#pragma once
#include <cstdint>
#include <memory>

#include "fp8/runtime/distributed/process_group.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/trainer_callback.h"

namespace fp8::trainer {

inline constexpr std::int64_t kLoggingSteps = 500;

/// The three rows of hpu:device. With a group every rank calls it, and they are the largest of all ranks'. Throws
/// c10::Error "Invalid device id", and as ProcessGroup does.
io::Json memory_rows(int device = 0, runtime::distributed::ProcessGroup* group = nullptr);

enum class Gather : std::uint8_t {
  none,  ///< rank 0's own numbers
  max    ///< the largest of all ranks'
};

struct MemoryLogOptions {
  std::int64_t logging_steps = kLoggingSteps;
  std::shared_ptr<runtime::distributed::ProcessGroup> group = {};  ///< none: one process
  Gather gather = Gather::none;
  int device = 0;
};

/// The rows to the trainer's loggers, on rank 0 only; with Gather::max the other ranks take part.
class MemoryLog : public TrainerCallback {
 public:
  /// Throws std::invalid_argument for fewer than 1 logging_steps, and for Gather::max without a group.
  explicit MemoryLog(MemoryLogOptions options = {});
  /// Throws std::invalid_argument without a logger: on rank 0, with Gather::max on each. A fast_dev_run has none, and
  /// no rows.
  void on_fit_start(Trainer& trainer, std::int64_t step) override;
  void on_step_end(Trainer& trainer, const StepReport& report) override;

 private:
  bool first_rank() const;  ///< of the group, or as the launcher says

  MemoryLogOptions options_;
};

}  // namespace fp8::trainer
