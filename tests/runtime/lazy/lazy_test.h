// SPDX-License-Identifier: Apache-2.0
// Lazy mode for tests, with and without the worker.
#pragma once

#include "fp8/runtime/lazy/lazy_mode.h"
#include "support/hpu_test.h"

namespace fp8::test {

enum class Mode { eager, lazy, worker };

/// On while it lives. The worker is used where the machine has two cores.
class In {
 public:
  explicit In(Mode mode) : before_(runtime::set_lazy_mode(mode != Mode::eager)) {
    runtime::set_lazy_options({.worker = mode == Mode::worker});
  }
  ~In() {
    runtime::set_lazy_mode(before_);
    runtime::set_lazy_options({});
  }
  In& operator=(In&&) = delete;

 private:
  bool before_;
};

/// How many calls of f() were queued, after it ran once.
template <class F>
std::int64_t queued_by(F&& f) {
  f();
  const auto before = runtime::lazy_counts().queued;
  f();
  return runtime::lazy_counts().queued - before;
}

}  // namespace fp8::test
