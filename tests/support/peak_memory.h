// SPDX-License-Identifier: Apache-2.0
// The most memory that was resident so far, in bytes: it never goes down, so tests compare it before and after.
#pragma once
#include <sys/resource.h>

#include <cstdint>

namespace fp8::test {

/// Of this process.
inline std::int64_t peak_memory() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

/// Of the largest child that has ended.
inline std::int64_t peak_memory_of_children() {
  rusage usage = {};
  getrusage(RUSAGE_CHILDREN, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace fp8::test
