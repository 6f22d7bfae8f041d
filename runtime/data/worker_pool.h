// SPDX-License-Identifier: Apache-2.0
// Threads that make batches. Who waits sleeps; results are taken in any order that the owner likes. No torch here.
//
// A thread can't be ended from outside. What must not wait for one for ever lets go of it: the thread then keeps what
// it uses (the pool's state, its job, and through that the dataset), and ends where it comes back.
//
// A process that forks has none of the threads in its child. The child's calls throw, and its destructor leaves
// everything as it is: mutexes and threads of the parent must not be touched there.
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
