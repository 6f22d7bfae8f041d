// SPDX-License-Identifier: Apache-2.0
// The device's allocator and its books. Limit per device: FP8_HPU_MEMORY (bytes, or with K, M, G) or
// set_memory_limit().
#pragma once
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace fp8::runtime {

/// The allocator registered for DeviceType::HPU.
c10::DeviceAllocator* hpu_allocator();

/// Books `bytes` at `memory` on hpu:device; throws c10::OutOfMemoryError (and books nothing) when the limit would be
/// passed. 0 bytes are no allocation. LibTorch's profilers hear of it where they profile memory.
/// op: who asks, where no HostAllocationsFor says it.
void account_allocation(c10::DeviceIndex device, std::size_t bytes, void* memory, const char* op = nullptr);
void account_free(c10::DeviceIndex device, std::size_t bytes, void* memory) noexcept;

// Memory of the emulated device: the vendor's ten statistics, the limit, and a printed summary. Where it is:
// memory_report.h.

/// Bytes and counts since start or the last reset.
struct MemoryStats {
  std::int64_t Limit = 0;     ///< bytes that may be in use
  std::int64_t InUse = 0;     ///< bytes
  std::int64_t MaxInUse = 0;  ///< bytes, peak
  std::int64_t NumAllocs = 0;
  std::int64_t NumFrees = 0;
  std::int64_t ActiveAllocs = 0;       ///< NumAllocs - NumFrees
  std::int64_t MaxAllocSize = 0;       ///< bytes, the largest single one
  std::int64_t TotalSystemAllocs = 0;  ///< never reset
  std::int64_t TotalSystemFrees = 0;   ///< never reset
  std::int64_t TotalActiveAllocs = 0;
};

/// Throws c10::Error "Invalid device id" for an index that does not exist.
MemoryStats memory_stats(int device = 0);
/// The ten under their names.
std::array<std::pair<const char*, std::int64_t>, 10> by_name(const MemoryStats& stats);
/// InUse and MaxInUse.
std::int64_t memory_allocated(int device = 0);
std::int64_t max_memory_allocated(int device = 0);
/// The Limit: all of the device's memory is the process'.
std::int64_t memory_reserved(int device = 0);
std::int64_t max_memory_reserved(int device = 0);
/// (Limit - InUse, Limit): free, and in all.
std::pair<std::int64_t, std::int64_t> mem_get_info(int device = 0);
/// New limit in bytes (> 0); what is in use already stays.
void set_memory_limit(std::int64_t bytes, int device = 0);
void reset_peak_memory_stats(int device = 0);
void reset_accumulated_memory_stats(int device = 0);
/// The table the vendor's memory_summary() prints.
std::string memory_summary(int device = 0);

// Host allocations that will be the device's memory: CPU kernels run on hpu tensors allocate their results, and enlarge
// their out= arguments, with the CPU's allocator. Both are held to the device's limit before the host gives anything,
// and undone when the kernel fails.

/// While it lives, a CPU allocation on this thread that hpu:device has no room for throws c10::OutOfMemoryError.
/// Scratch memory of kernels counts too, as it does on a device; each allocation is judged alone. op: lives as long;
/// what is adopted meanwhile is its (memory_report.h).
class HostAllocationsFor {
 public:
  HostAllocationsFor(c10::DeviceIndex device, const char* op);
  ~HostAllocationsFor();
  HostAllocationsFor& operator=(HostAllocationsFor&&) = delete;

 private:
  c10::DeviceIndex previous_;
  const char* previous_op_;
};

/// Instead of adopt_resized_alias(), after an error: what a CPU kernel enlarged goes back to the memory that its Block
/// owns.
void drop_resized_alias(c10::StorageImpl* hpu_storage);

}  // namespace fp8::runtime
