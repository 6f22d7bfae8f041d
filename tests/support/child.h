// SPDX-License-Identifier: Apache-2.0
// Processes that a test forks to run a function of its own.
#pragma once
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

namespace fp8::test {

/// Runs f() and exits with its number, 0 without one; with 126 and its message on stderr where it throws.
template <class F>
pid_t start_child(F&& f) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int status = 0;
  try {
    if constexpr (std::is_void_v<decltype(f())>)
      f();
    else
      status = f();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    status = 126;
  }
  ::_exit(status);
}

/// The exit status of a child once it has ended; -1 where a signal ended it.
inline int status_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

template <class F>
int status_of_child(F&& f) {
  return status_of(start_child(f));
}

// The most memory that was resident so far, in bytes: it never goes down, so tests compare it before and after.

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
