// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/data/batch_workers.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace fp8::data {
namespace {

/// A number below n, every one equally likely. std::uniform_int_distribution differs between standard libraries.
std::uint64_t below(std::uint64_t n, std::mt19937_64& generator) {
  const std::uint64_t limit = UINT64_MAX - UINT64_MAX % n;
  std::uint64_t x;
  do x = generator();
  while (x >= limit);
  return x % n;
}

}  // namespace

std::vector<std::int64_t> epoch_order(std::int64_t count, bool shuffle, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle) return order;
  std::seed_seq sequence{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                         static_cast<std::uint32_t>(epoch)};
  std::mt19937_64 generator(sequence);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i, generator)]);
  return order;
}

Share BatchPlan::share(std::int64_t batch, int rank, int ranks) const {
  const std::int64_t begin = std::min(batch, batches_) * batch_size_;
  const std::int64_t left = std::min(batch_size_ * ranks, samples_ - begin) - rank;
  return {begin + rank, ranks, left > 0 ? (left + ranks - 1) / ranks : 0};
}

struct PoolState {
  using JobState = Job::State;

  std::mutex mutex;
  std::condition_variable work, done;  ///< there is something to begin, or nothing more; something has ended
  std::deque<std::shared_ptr<Job>> waiting;
  std::vector<std::shared_ptr<Job>> running;
  int threads = 0;
  bool stopped = false;

  void run() {
    pthread_setname_np(pthread_self(), "fp8-data");
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return stopped || !waiting.empty(); });
      if (stopped) break;
      const std::shared_ptr<Job> job = std::move(waiting.front());
      waiting.pop_front();
      job->state = JobState::running;
      running.push_back(job);
      lock.unlock();
      try {
        job->work(*job);
      } catch (...) {
        job->error = std::current_exception();
      }
      lock.lock();
      job->state = JobState::done;
      std::erase(running, job);
      done.notify_all();
    }
    --threads;
    done.notify_all();
  }
};

WorkerPool::WorkerPool(int threads) : state_(std::make_shared<PoolState>()), process_(::getpid()) {
  try {
    for (int i = 0; i < threads; ++i) {
      {
        const std::lock_guard lock(state_->mutex);
        ++state_->threads;
      }
      try {
        threads_.emplace_back([state = state_] { state->run(); });
      } catch (...) {
        const std::lock_guard lock(state_->mutex);
        --state_->threads;
        throw;
      }
    }
  } catch (const std::system_error& error) {
    const std::size_t started = threads_.size();
    stop(1);
    throw std::runtime_error("[data] num_workers: the system gives " + std::to_string(started) + " threads of " +
                             std::to_string(threads) + " (" + error.what() + ")");
  }
}

WorkerPool::~WorkerPool() {
  if (is_forked()) {  // their destructors would wait for threads that are not here: left to the end of the process
    new std::shared_ptr<PoolState>(std::move(state_));
    new std::vector<std::thread>(std::move(threads_));
    return;
  }
  stop(5);
}

bool WorkerPool::is_forked() const { return ::getpid() != process_; }

void WorkerPool::check_process() const {
  if (is_forked())
    throw std::logic_error("[data] this loader's threads are in process " + std::to_string(process_) +
                           ", from which this one was forked: make another loader here, or use num_workers 0");
}

void WorkerPool::add(const std::shared_ptr<Job>& job) {
  check_process();
  const std::lock_guard lock(state_->mutex);
  state_->waiting.push_back(job);
  state_->work.notify_one();
}

void WorkerPool::drop(const std::shared_ptr<Job>& job) {
  check_process();
  const std::lock_guard lock(state_->mutex);
  std::erase(state_->waiting, job);
}

bool WorkerPool::wait(const Job& job, double seconds) {
  check_process();
  std::unique_lock lock(state_->mutex);
  const auto is_done = [&] { return job.state == Job::State::done; };
  if (seconds > 0) return state_->done.wait_for(lock, std::chrono::duration<double>(seconds), is_done);
  state_->done.wait(lock, is_done);
  return true;
}

bool WorkerPool::stop(double seconds) {
  check_process();
  if (threads_.empty()) return unfinished_.empty();
  bool ended = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->stopped = true;
    state_->waiting.clear();
    state_->work.notify_all();
    ended = state_->done.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return state_->threads == 0; });
    unfinished_ = state_->running;
  }
  for (auto& thread : threads_) ended ? thread.join() : thread.detach();
  threads_.clear();
  return ended;
}

}  // namespace fp8::data
