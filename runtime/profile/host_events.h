// SPDX-License-Identifier: Apache-2.0
// How many events of the host a recording of LibTorch's keeps. Each takes about a kilobyte until the trace is written,
// and a step may have any number of them: beyond the first `most` LibTorch's callback is turned off on each thread
// that comes by, allocations are no more told of, and events are counted only.
//
//   kineto::enableProfiler(..);
//   const HostEvents events(1 << 18);
//   ..                                    events.left_out()
//   kineto::disableProfiler();
#pragma once
#include <ATen/record_function.h>

#include <cstdint>

namespace fp8::runtime {

class HostEvents {
 public:
  /// On the thread whose profiler LibTorch has just enabled. One at a time in a process, as of Kineto's recordings.
  explicit HostEvents(std::int64_t most);
  ~HostEvents();
  HostEvents(const HostEvents&) = delete;
  HostEvents& operator=(const HostEvents&) = delete;

  /// How many came after the first `most`. Still kept are each thread's first of them, and that of each node of a
  /// backward that was under way, whose threads take forward's callbacks for each.
  std::int64_t left_out() const;

 private:
  at::CallbackHandle counter_;
};

}  // namespace fp8::runtime
