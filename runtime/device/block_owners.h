// SPDX-License-Identifier: Apache-2.0
// Who made which live Block, by the address of its memory:
//
//   address -> {bytes, device, module, op, phase}
//
// Of large ones always: what an entry costs (some 0.2 us) is nothing beside filling them. Of all of them while a
// MemoryHistory lives (memory_snapshot.h). A small one is otherwise two comparisons. A child of fork() must not
// allocate on the device where other threads of its parent did: their lock is not taken over.
#pragma once
#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/runtime/device/memory_snapshot.h"

namespace fp8::runtime {

/// From so many bytes on a Block's maker is always known.
inline constexpr std::size_t kOwnedFrom = std::size_t{1} << 20;

namespace detail {
extern std::atomic<int> g_histories;
}

/// Whether a Block of that size may have an entry.
inline bool has_owner(std::size_t bytes) {
  return bytes >= kOwnedFrom || detail::g_histories.load(std::memory_order_relaxed) != 0;
}

/// `op` made it, if it is known, in what this thread is about (leaf/leaf.h): op "" or null: not known.
void remember_block(const void* memory, std::size_t bytes, c10::DeviceIndex device, const char* op);
void forget_block(const void* memory) noexcept;

/// The blocks of hpu:device that have an entry, the largest first.
std::vector<MemoryBlock> owned_blocks(c10::DeviceIndex device);

}  // namespace fp8::runtime
