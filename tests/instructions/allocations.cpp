// SPDX-License-Identifier: Apache-2.0
#include "instructions/allocations.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>

#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FP8_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#define FP8_COUNTS_ALLOCATIONS (!__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))
#else
#define FP8_COUNTS_ALLOCATIONS 1
#endif

namespace {

std::atomic<long> g_allocations{0};

}  // namespace

#if FP8_COUNTS_ALLOCATIONS
extern "C" {

void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) noexcept {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}

}  // extern "C"
#endif

namespace fp8::test {

bool counts_allocations() { return FP8_COUNTS_ALLOCATIONS != 0; }
long allocations() { return g_allocations.load(std::memory_order_relaxed); }

}  // namespace fp8::test
