// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>

#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

TEST(Scratch, KeepsItsMemoryUntilItGrowsOrShrinks) {
  Scratch scratch;
  std::uint8_t* first = scratch.get(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
  std::memset(first, 1, 100);
  EXPECT_EQ(scratch.get(50), first);
  scratch.shrink(100);
  EXPECT_EQ(scratch.get(100), first);
  std::memset(scratch.get(5000), 2, 5000);
  scratch.shrink(4999);
  std::memset(scratch.get(10), 3, 10);  // memory of its own again
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scratch.get(10)) % 64, 0u);
}

}  // namespace
}  // namespace fp8::kernels
