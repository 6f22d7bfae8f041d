// SPDX-License-Identifier: Apache-2.0
// memory.h and memory_snapshot.h as operators (intercept/tag_operators.h lists them).
#include <torch/library.h>

#include <memory>
#include <mutex>

#include "fp8/runtime/device/memory.h"
#include "fp8/runtime/device/memory_snapshot.h"
#include "fp8/runtime/device/registration.h"

namespace fp8::runtime {
namespace {

c10::Dict<std::string, std::int64_t> stats_of(std::int64_t device) {
  c10::Dict<std::string, std::int64_t> stats;
  for (const auto& [name, value] : by_name(memory_stats(static_cast<int>(device)))) stats.insert(name, value);
  return stats;
}

std::string summary_of(std::int64_t device) { return memory_summary(static_cast<int>(device)); }
std::string snapshot_of(std::int64_t device) { return memory_snapshot(static_cast<int>(device)).json(); }
void reset_peak(std::int64_t device) { reset_peak_memory_stats(static_cast<int>(device)); }
void reset_accumulated(std::int64_t device) { reset_accumulated_memory_stats(static_cast<int>(device)); }

void set_history(bool on) {
  static auto& mutex = *new std::mutex;
  static auto& history = *new std::unique_ptr<MemoryHistory>;  // not destroyed: tensors may outlive main()
  const std::lock_guard lock(mutex);
  if (on && history == nullptr) history = std::make_unique<MemoryHistory>();
  if (!on) history.reset();
}

}  // namespace

FP8_LIBRARY_FRAGMENT(fp8, m) {
  m.def("memory_stats(int device=0) -> Dict(str, int)", &stats_of);
  m.def("memory_summary(int device=0) -> str", &summary_of);
  m.def("memory_snapshot(int device=0) -> str", &snapshot_of);
  m.def("memory_history(bool on) -> ()", &set_history);
  m.def("reset_peak_memory_stats(int device=0) -> ()", &reset_peak);
  m.def("reset_accumulated_memory_stats(int device=0) -> ()", &reset_accumulated);
}

}  // namespace fp8::runtime
