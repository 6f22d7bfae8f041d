// SPDX-License-Identifier: Apache-2.0
// Host allocations that will be the device's memory: CPU kernels run on hpu tensors allocate their results, and enlarge
// their out= arguments, with the CPU's allocator. Both are held to the device's limit before the host gives anything,
// and undone when the kernel fails.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

namespace fp8::runtime {

/// While it lives, a CPU allocation on this thread that hpu:device has no room for throws c10::OutOfMemoryError.
/// Scratch memory of kernels counts too, as it does on a device; each allocation is judged alone. op: lives as long;
/// what is adopted meanwhile is its (memory_snapshot.h).
class HostAllocationsFor {
 public:
  HostAllocationsFor(c10::DeviceIndex device, const char* op);
  ~HostAllocationsFor();
  HostAllocationsFor(const HostAllocationsFor&) = delete;
  HostAllocationsFor& operator=(const HostAllocationsFor&) = delete;

 private:
  c10::DeviceIndex previous_;
  const char* previous_op_;
};

/// Instead of adopt_resized_alias(), after an error: what a CPU kernel enlarged goes back to the memory that its Block
/// owns.
void drop_resized_alias(c10::StorageImpl* hpu_storage);

}  // namespace fp8::runtime
