// SPDX-License-Identifier: Apache-2.0
// The fork-join pool: every index exactly once, nesting, exceptions, several callers.
#include "fp8/runtime/kernels/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

#include "fp8/runtime/kernels/work_queue.h"
#include "support/threads.h"
#include "support/throws_with.h"

namespace fp8::kernels {
namespace {

struct ThreadPool : testing::Test {
  void SetUp() override { before_ = num_threads(); }
  void TearDown() override { set_num_threads(before_); }
  int before_ = 1;
};

TEST_F(ThreadPool, CoversEveryIndexOnceInMultiplesOfTheGrain) {
  for (int threads : {1, 2, 7}) {
    set_num_threads(threads);
    for (std::int64_t n : {0, 1, 5, 64, 65, 1000, 4097})
      for (std::int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<std::size_t>(n));
        parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
          EXPECT_LT(begin, end);
          EXPECT_EQ(begin % grain, 0);
          EXPECT_TRUE(end == n || end % grain == 0);
          for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
        });
        for (const auto& count : seen) ASSERT_EQ(count.load(), 1);
      }
  }
}

TEST_F(ThreadPool, SmallWorkStaysOnTheCaller) {
  set_num_threads(4);
  const auto caller = std::this_thread::get_id();
  int calls = 0;
  parallel_for(100, 100, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 100);
    ++calls;
  });
  EXPECT_EQ(calls, 1);
  parallel_for(-3, 1, [&](std::int64_t, std::int64_t) { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST_F(ThreadPool, UsesMoreThanOneThread) {
  set_num_threads(4);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  // Pieces long enough that sleeping workers wake up in the meantime, also on one core.
  parallel_for(64, 1, [&](std::int64_t, std::int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_GT(ids.size(), 1u);
  EXPECT_LE(ids.size(), 4u);
}

TEST_F(ThreadPool, NestedCallsAreSerial) {
  set_num_threads(4);
  std::atomic<int> total{0};
  parallel_for(16, 1, [&](std::int64_t begin, std::int64_t end) {
    const auto outer = std::this_thread::get_id();
    for (std::int64_t i = begin; i < end; ++i) {
      parallel_for(10, 1, [&](std::int64_t from, std::int64_t to) {
        EXPECT_EQ(std::this_thread::get_id(), outer);
        total += static_cast<int>(to - from);
      });
    }
  });
  EXPECT_EQ(total.load(), 160);
}

TEST_F(ThreadPool, RethrowsAndWorksAfterwards) {
  for (int threads : {1, 4}) {
    set_num_threads(threads);
    for (int round = 0; round < 50; ++round) {
      const auto fails = [](std::int64_t begin, std::int64_t end) {
        if (begin <= 37 && 37 < end) throw std::out_of_range("thirty-seven");
      };
      EXPECT_EQ(error_of<std::out_of_range>([&] { parallel_for(100, 1, fails); }), "thirty-seven");
      std::atomic<std::int64_t> sum{0};
      parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) sum += i;
      });
      EXPECT_EQ(sum.load(), 4950);
    }
  }
}

TEST_F(ThreadPool, SeveralCallersAtOnce) {
  set_num_threads(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int c = 0; c < 6; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 500; ++round) {
        std::atomic<std::int64_t> sum{0};
        parallel_for(1000, 10, [&](std::int64_t begin, std::int64_t end) {
          std::int64_t mine = 0;
          for (std::int64_t i = begin; i < end; ++i) mine += i;
          sum += mine;
        });
        wrong += sum.load() != 499500;
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(ThreadPool, AwakeWorkersDoTheSameWork) {
  set_num_threads(3);
  for (int round = 0; round < 20; ++round) {
    const AwakeWorkers awake;
    const auto twice = round % 2 == 0 ? std::make_unique<AwakeWorkers>() : nullptr;
    for (int gap : {0, 50, 3000}) {  // us: within the short wait, within the long one, beyond both
      std::this_thread::sleep_for(std::chrono::microseconds(gap));
      std::atomic<std::int64_t> sum{0};
      parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) sum += i;
      });
      EXPECT_EQ(sum.load(), 4950);
    }
  }
}

TEST_F(ThreadPool, ThreadCount) {
  EXPECT_GE(num_threads(), 1);
  set_num_threads(2);
  EXPECT_EQ(num_threads(), 2);
  EXPECT_THROW(set_num_threads(0), std::invalid_argument);
  EXPECT_THROW(set_num_threads(-5), std::invalid_argument);
  EXPECT_THROW(set_num_threads(std::numeric_limits<int>::max()), std::invalid_argument);
  EXPECT_EQ(num_threads(), 2);
}

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
