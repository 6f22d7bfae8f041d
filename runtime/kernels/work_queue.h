// SPDX-License-Identifier: Apache-2.0
// One thread that runs what it is given, in order. No torch here.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace fp8::kernels {

/// All functions may be called from any thread, but not from within its work. The thread starts with the first work,
/// takes no signals, and ends with the queue, after what was pushed before.
class WorkQueue {
 public:
  WorkQueue() = default;
  ~WorkQueue();
  WorkQueue& operator=(WorkQueue&&) = delete;

  /// work: must not throw.
  void push(std::function<void()> work);
  /// Returns when all that was pushed before has run, and is gone. What it wrote can be read then.
  void wait();
  bool is_idle() const;

  /// In a child of fork(), which has no such thread: forgets it. Nothing may be queued.
  void forget_thread();

 private:
  /// A child of fork() leaves the parent's to it: conditions that its thread waits for can be waited for no more.
  struct Meeting {
    std::mutex mutex;
    std::condition_variable pushed, idle;
  };
  void run();

  std::unique_ptr<Meeting> at_ = std::make_unique<Meeting>();
  std::deque<std::function<void()>> queue_;
  bool running_ = false, ends_ = false;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace fp8::kernels
