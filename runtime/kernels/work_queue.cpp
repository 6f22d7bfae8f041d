// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/kernels/work_queue.h"

#include <csignal>
#include <utility>

namespace fp8::kernels {

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(at_->mutex);
    ends_ = true;
  }
  at_->pushed.notify_one();
  if (thread_) thread_->join();
}

void WorkQueue::push(std::function<void()> work) {
  const std::lock_guard lock(at_->mutex);
  if (thread_ == nullptr) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // the thread inherits it: handlers run where they did before
    try {
      thread_ = std::make_unique<std::thread>([this] { run(); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  queue_.push_back(std::move(work));
  at_->pushed.notify_one();
}

void WorkQueue::run() {
  std::unique_lock lock(at_->mutex);
  for (;;) {
    at_->pushed.wait(lock, [this] { return !queue_.empty() || ends_; });
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    running_ = false;
    if (queue_.empty()) at_->idle.notify_all();
  }
}

void WorkQueue::wait() {
  std::unique_lock lock(at_->mutex);
  at_->idle.wait(lock, [this] { return queue_.empty() && !running_; });
}

bool WorkQueue::is_idle() const {
  const std::lock_guard lock(at_->mutex);
  return queue_.empty() && !running_;
}

void WorkQueue::forget_thread() {
  (void)thread_.release();  // objects of a thread that is not there can only be left
  (void)at_.release();
  at_ = std::make_unique<Meeting>();
}

}  // namespace fp8::kernels
