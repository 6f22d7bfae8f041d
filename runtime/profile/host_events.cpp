// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/host_events.h"

#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <atomic>
#include <memory>

namespace fp8::runtime {
namespace {

std::atomic<std::int64_t> g_seen = 0, g_most = 0;
std::atomic<at::CallbackHandle> g_recorder = at::INVALID_CALLBACK_HANDLE;

/// A backward's threads have callbacks of their own: what forward's had as it began.
void stop_recording_here() {
  const auto recorder = g_recorder.load(std::memory_order_relaxed);
  const auto& callbacks = at::get_record_function_tls_().sorted_tls_callbacks_;
  const auto records = [=](const auto& entry) { return entry.handle_ == recorder && entry.enabled_; };
  if (std::ranges::none_of(callbacks, records)) return;
  at::disableCallback(recorder);
  // There is no other switch for allocations.
  if (const auto* state = torch::profiler::impl::ProfilerStateBase::get(/*global=*/false))
    const_cast<torch::profiler::impl::ProfilerConfig&>(state->config()).profile_memory = false;
}

std::unique_ptr<at::ObserverContext> event_begins(const at::RecordFunction&) {
  if (g_seen.fetch_add(1, std::memory_order_relaxed) + 1 >= g_most.load(std::memory_order_relaxed)) [[unlikely]]
    stop_recording_here();
  return nullptr;
}

}  // namespace

HostEvents::HostEvents(std::int64_t most) {
  const auto& callbacks = at::get_record_function_tls_().sorted_tls_callbacks_;
  g_recorder = callbacks.empty() ? at::INVALID_CALLBACK_HANDLE : callbacks.back().handle_;  // the newest
  g_seen = 0, g_most = most;
  counter_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&event_begins));
}

HostEvents::~HostEvents() { at::removeCallback(counter_); }

std::int64_t HostEvents::left_out() const { return std::max<std::int64_t>(0, g_seen - g_most); }

}  // namespace fp8::runtime
