// SPDX-License-Identifier: Apache-2.0
// The order of an epoch's samples, and which of them a rank has in a batch. No torch here.
//
//   position in the order   0 1 2 3 | 4 5 6 7 | 8 9        batches of 4: 0, 1, 2 (smaller, or left out: drop_last)
//   two ranks, batch 0      0 1 0 1   0 1 0 1              the samples of as many batches as there are ranks in turn
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace fp8::data {

/// 0 to count - 1: as they are, or a permutation that is a function of (count, seed, epoch) alone. It is the one of
/// std::mt19937_64 from std::seed_seq{seed, seed >> 32, epoch}, the same with every standard library.
std::vector<std::int64_t> epoch_order(std::int64_t count, bool shuffle, std::uint64_t seed, std::int64_t epoch);

/// `count` positions of an order: first, first + step, ...
struct Share {
  std::int64_t first = 0, step = 1, count = 0;
};

class BatchPlan {
 public:
  BatchPlan(std::int64_t samples, std::int64_t batch_size, bool drop_last)
      : batch_size_(batch_size),
        batches_((samples + (drop_last ? 0 : batch_size - 1)) / batch_size),
        samples_(drop_last ? batches_ * batch_size : samples) {}

  std::int64_t batches() const { return batches_; }
  /// Of the `ranks` batches from number `batch` on, what `rank` has; count 0 where nothing is left for it.
  Share share(std::int64_t batch, int rank = 0, int ranks = 1) const;

 private:
  std::int64_t batch_size_, batches_, samples_;
};

// Threads that make batches. Who waits sleeps; results are taken in any order that the owner likes. No torch here.
//
// A thread can't be ended from outside. What must not wait for one for ever lets go of it: the thread then keeps what
// it uses (the pool's state, its job, and through that the dataset), and ends where it comes back.
//
// A process that forks has none of the threads in its child. The child's calls throw, and its destructor leaves
// everything as it is: mutexes and threads of the parent must not be touched there.

struct PoolState;

/// One piece of work. `work` stores its result itself; what it throws is in `error`. Both may be read once the job is
/// done (WorkerPool::wait).
struct Job {
  std::function<void(Job&)> work;
  std::atomic<std::int64_t> at{-1};  ///< how far it is, for messages; the work sets it
  std::exception_ptr error;

 private:
  friend struct PoolState;
  friend class WorkerPool;
  enum class State : std::uint8_t { waiting, running, done } state = State::waiting;
};

class WorkerPool {
 public:
  /// Throws std::runtime_error where the system gives no more threads.
  explicit WorkerPool(int threads);
  /// stop(5).
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Jobs begin in the order in which they are added.
  void add(const std::shared_ptr<Job>& job);
  /// Takes back one that has not begun; another runs on, and nobody hears of it.
  void drop(const std::shared_ptr<Job>& job);
  /// Whether the job is done, after `seconds` at most (0: without limit).
  bool wait(const Job& job, double seconds);
  /// Nothing more begins. Whether all threads have ended, within `seconds`; those that have not are let go. Jobs that
  /// they are at: unfinished().
  bool stop(double seconds);
  std::vector<std::shared_ptr<Job>> unfinished() const { return unfinished_; }
  /// Throws std::logic_error in a process that was forked from the pool's.
  void check_process() const;

 private:
  bool is_forked() const;

  std::shared_ptr<PoolState> state_;
  std::vector<std::thread> threads_;
  std::vector<std::shared_ptr<Job>> unfinished_;
  pid_t process_;
};

}  // namespace fp8::data
