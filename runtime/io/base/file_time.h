// SPDX-License-Identifier: Apache-2.0
// The times that stat() and clock_gettime() tell, as one number. No torch here.
#pragma once
#include <sys/stat.h>

#include <cstdint>
#include <ctime>

namespace fp8::io {

/// Nanoseconds since the epoch of its clock.
inline std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// When a file was last written.
inline std::int64_t modified(const struct stat& status) { return nanoseconds(status.st_mtim); }

}  // namespace fp8::io
