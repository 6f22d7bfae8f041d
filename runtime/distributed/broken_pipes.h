// SPDX-License-Identifier: Apache-2.0
// Gloo's writes to a rank that is gone end in SIGPIPE, which by default ends the process. While this lives they are
// errors in this thread, and for good in the threads that it starts.
#pragma once
#include <pthread.h>

#include <csignal>
#include <ctime>

namespace fp8::runtime::distributed {

class NoBrokenPipes {
 public:
  NoBrokenPipes() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoBrokenPipes() {
    const std::timespec now{};
    if (sigismember(&before_, SIGPIPE) == 0) sigtimedwait(&signal_, nullptr, &now);  // what came must not come later
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoBrokenPipes(const NoBrokenPipes&) = delete;
  NoBrokenPipes& operator=(const NoBrokenPipes&) = delete;

 private:
  sigset_t signal_, before_;
};

}  // namespace fp8::runtime::distributed
