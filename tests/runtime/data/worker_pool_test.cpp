// SPDX-License-Identifier: Apache-2.0
// Threads: jobs begin in order, errors stay in their job, threads that hang are left behind, a forked process gets an
// error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>

#include "fp8/runtime/data/data_loader.h"
#include "runtime/data/numbered.h"
#include "support/child.h"
#include "support/throws_with.h"

namespace fp8::data {
namespace {

using testing::Door;

std::shared_ptr<Job> job_of(std::function<void(Job&)> work) {
  auto job = std::make_shared<Job>();
  job->work = std::move(work);
  return job;
}

TEST(WorkerPool, BeginsInOrderAndKeepsErrorsApart) {
  std::vector<int> begun;
  WorkerPool pool(1);
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 20; ++i) {
    jobs.push_back(job_of([&begun, i](Job&) {
      begun.push_back(i);
      if (i == 7) throw std::runtime_error("seven");
    }));
    pool.add(jobs.back());
  }
  for (const auto& job : jobs) EXPECT_TRUE(pool.wait(*job, 0));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(begun[static_cast<std::size_t>(i)], i);
    EXPECT_EQ(jobs[static_cast<std::size_t>(i)]->error != nullptr, i == 7) << i;
  }
  EXPECT_TRUE(pool.stop(5));
  EXPECT_TRUE(pool.stop(5));
  EXPECT_TRUE(pool.unfinished().empty());
}

TEST(WorkerPool, WhatHangsIsLetGo) {
  auto door = std::make_shared<Door>();
  std::atomic<bool> second = false;
  {
    WorkerPool pool(2);
    const auto hangs = job_of([door](Job& job) {
      job.at = 42;
      door->wait();
    });
    pool.add(hangs);
    EXPECT_FALSE(pool.wait(*hangs, 0.05));
    const auto other = job_of([&](Job&) { second = true; });
    pool.add(other);
    EXPECT_TRUE(pool.wait(*other, 0));
    EXPECT_FALSE(pool.stop(0.05));
    ASSERT_EQ(pool.unfinished().size(), 1u);
    EXPECT_EQ(pool.unfinished()[0]->at, 42);
  }
  EXPECT_TRUE(second);
  door->open();
}

TEST(WorkerPool, WhatIsDroppedDoesNotBegin) {
  Door door;
  std::atomic<int> done = 0;
  WorkerPool pool(1);
  const auto first = job_of([&](Job&) { door.wait(); });
  const auto dropped = job_of([&](Job&) { ++done; }), last = job_of([&](Job&) { done += 10; });
  for (const auto& job : {first, dropped, last}) pool.add(job);
  pool.drop(dropped);
  door.open();
  EXPECT_TRUE(pool.wait(*last, 0));
  EXPECT_EQ(done, 10);
}

TEST(WorkerPool, AForkedProcessIsToldAndEnds) {
  Door door;
  auto pool = std::make_unique<WorkerPool>(2);
  pool->add(job_of([&](Job&) { door.wait(); }));
  EXPECT_EQ(test::status_of_child([&] {
              const std::string told = test::error_of<std::logic_error>([&] { pool->add(job_of([](Job&) {})); });
              pool.reset();  // must not wait
              return told.find("forked") != std::string::npos ? 0 : 2;
            }),
            0);
  door.open();
}

TEST(WorkerPool, IdleThreadsSleep) {
  WorkerPool pool(4);
  const auto begin = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC / 10);
}

}  // namespace
}  // namespace fp8::data
