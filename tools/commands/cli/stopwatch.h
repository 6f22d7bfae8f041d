// SPDX-License-Identifier: Apache-2.0
// Wall time of a piece of a command's work.
#pragma once

#include <chrono>

namespace fp8::commands {

/// Runs from when it is made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point start_ = Clock::now();
};

}  // namespace fp8::commands
