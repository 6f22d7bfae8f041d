// SPDX-License-Identifier: Apache-2.0
// Memory of the emulated device: the vendor's ten statistics, the limit, and a printed summary. Where it is:
// memory_snapshot.h.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace fp8::runtime {

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

}  // namespace fp8::runtime
