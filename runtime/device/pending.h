// SPDX-License-Identifier: Apache-2.0
// Memory of the device that comes later: of the result of a call that has not run yet (lazy/lazy_mode.h).
//
//   hpu StorageImpl --DataPtr--> PendingMemory { made, failure }     no address: whoever asks for it is told so
//   hpu StorageImpl --DataPtr--> Block                               after settle()
#pragma once
#include <c10/core/Storage.h>

#include <atomic>
#include <functional>
#include <string>
#include <utility>

namespace fp8::runtime {

struct PendingMemory {
  c10::Storage made = {};    ///< once the call has run; only what runs the call, and settle(), may look
  std::string failure = {};  ///< why it will never be made
};

/// Of so many bytes, on hpu:device.
c10::Storage pending_storage(std::size_t bytes, c10::DeviceIndex device);

/// Null: it has its memory, or is none of the device's.
PendingMemory* pending_of(const c10::StorageImpl* storage);

/// Gives the storage what was made. Nobody else may use it meanwhile.
void settle(c10::StorageImpl& storage);

namespace detail {
/// Null: all work has run.
extern std::atomic<void (*)(std::function<void()>)> g_run_in_order;
}  // namespace detail

/// `work` behind what was called before it: now, where that has run. It must not throw.
inline void run_in_order(std::function<void()> work) {
  if (const auto run = detail::g_run_in_order.load(std::memory_order_acquire)) [[unlikely]]
    run(std::move(work));
  else
    work();
}

}  // namespace fp8::runtime
