// SPDX-License-Identifier: Apache-2.0
// A small training under a profiler, and the events of the trace that it writes.
#pragma once
#include "fp8/runtime/profile/hpu_profiler.h"
#include "runtime/trainer/toy_task.h"
#include "support/values.h"

namespace fp8::runtime {

inline HPUProfilerOptions in(const std::filesystem::path& folder) {
  return HPUProfilerOptions{.dirpath = folder.string()};
}

/// Trains `steps` steps of the toy on hpu.
inline void fit(std::shared_ptr<Profiler> profiler, std::int64_t steps, at::Device device = test::kHpu) {
  trainer::testing::ToyTask task(1, device);
  trainer::testing::ToyBatches train(2 * steps, 2);
  trainer::Trainer({.max_steps = steps, .gradient_clip_val = 1, .profiler = std::move(profiler)}).fit(task, train);
}

inline std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder) {
  auto files = collected(std::filesystem::directory_iterator(folder), [](const auto& entry) { return entry.path(); });
  std::ranges::sort(files);
  return files;
}

inline io::Json events_of(const std::filesystem::path& path) { return io::read_json(path)["traceEvents"]; }

inline std::vector<io::Json> of_category(const io::Json& events, const std::string& category) {
  std::vector<io::Json> found;
  for (const auto& event : events)
    if (event.value("cat", "") == category && event["ph"] == "X") found.push_back(event);
  return found;
}

inline std::set<std::string> names_of(const std::vector<io::Json>& events) {
  std::set<std::string> names;
  for (const auto& event : events) names.insert(event["name"].get<std::string>());
  return names;
}

}  // namespace fp8::runtime
