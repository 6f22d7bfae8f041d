// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/kernels/work_queue.h"

#include <gtest/gtest.h>

#include <random>

#include "support/threads.h"

namespace fp8::kernels {
namespace {

TEST(WorkQueue, RunsInOrderAndWaits) {
  WorkQueue queue;
  EXPECT_TRUE(queue.is_idle());
  queue.wait();
  std::vector<int> seen;
  for (int i = 0; i < 1000; ++i) queue.push([&seen, i] { seen.push_back(i); });
  queue.wait();
  EXPECT_TRUE(queue.is_idle());
  ASSERT_EQ(seen.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(WorkQueue, RandomWorkOfSeveralThreads) {
  constexpr int kThreads = 3, kWork = 33334;
  WorkQueue queue;
  std::int64_t sum = 0;  // the queue's thread alone writes it, and who waits reads it
  fp8::test::on_threads(kThreads, [&](int t) {
    std::mt19937 random(static_cast<unsigned>(t));
    for (int i = 0; i < kWork; ++i) {
      queue.push([&sum, i] { sum += i; });
      if (random() % 64 == 0) queue.wait();
      if (random() % 64 == 1) std::this_thread::yield();
    }
  });
  queue.wait();
  EXPECT_EQ(sum, std::int64_t{kThreads} * kWork * (kWork - 1) / 2);
}

TEST(WorkQueue, WhatItRanIsGoneWhenItIsIdle) {
  WorkQueue queue;
  const auto held = std::make_shared<int>(1);
  queue.push([held] {});
  queue.wait();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(WorkQueue, EndsAfterItsWork) {
  int seen = 0;
  {
    WorkQueue queue;
    for (int i = 0; i < 100; ++i) queue.push([&seen] { ++seen; });
  }
  EXPECT_EQ(seen, 100);
}

}  // namespace
}  // namespace fp8::kernels
