// SPDX-License-Identifier: Apache-2.0
// The device's allocator and its books. Limit per device: FP8_HPU_MEMORY (bytes, or with K, M, G) or
// set_memory_limit().
#pragma once
#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>

namespace fp8::runtime {

/// The allocator registered for DeviceType::HPU.
c10::DeviceAllocator* hpu_allocator();

/// Books `bytes` at `memory` on hpu:device; throws c10::OutOfMemoryError (and books nothing) when the limit would be
/// passed. 0 bytes are no allocation. LibTorch's profilers hear of it where they profile memory.
/// op: who asks, where no HostAllocationsFor says it.
void account_allocation(c10::DeviceIndex device, std::size_t bytes, void* memory, const char* op = nullptr);
void account_free(c10::DeviceIndex device, std::size_t bytes, void* memory) noexcept;

}  // namespace fp8::runtime
