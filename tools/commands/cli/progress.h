// SPDX-License-Identifier: Apache-2.0
// A bar with the time left, on a terminal only; elsewhere it does nothing.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "fp8/tools/commands/cli/context.h"

namespace fp8::commands {

class Progress {
 public:
  /// total: steps until done, >= 1. what: the word before the bar.
  Progress(const Context& context, std::string what, std::int64_t total);
  /// Clears its line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` steps are done; draws at most ten times a second.
  void update(std::int64_t done);

  /// The line as drawn: "evaluate [#######.............]  35% 12/34, 1 min 20 s left".
  static std::string line(const std::string& what, std::int64_t done, std::int64_t total, double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  bool shown_;
  bool drawn_ = false;
  std::string what_;
  std::int64_t total_;
  Clock::time_point start_, last_;
};

}  // namespace fp8::commands
