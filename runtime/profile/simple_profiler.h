// SPDX-License-Identifier: Apache-2.0
// Wall clock per action, as Lightning's SimpleProfiler: what to time a run with, since it slows nothing down.
//
//   Action             | Mean duration (s) | Num calls | Total time (s) | Percentage %
//   Total              |                   |         9 |         1.2500 |        100 %
//   training_step      |            0.2000 |         5 |         1.0000 |         80 %
//
// With a filename each stage leaves <stage>-<filename>[-<rank>].txt; without, the table is logged at its end.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "fp8/runtime/profile/profiler.h"

namespace fp8::runtime {

struct SimpleProfilerOptions {
  std::string dirpath = ".", filename = {};
  bool extended = true;                                   ///< also mean and calls; else totals only
  std::function<double()> seconds = nullptr;              ///< a clock; null: the steady one
  std::function<void(const std::string&)> log = nullptr;  ///< where a stage's table goes; null: stderr
  Warn warn = warn_by_torch;
};

class SimpleProfiler final : public Profiler {
 public:
  explicit SimpleProfiler(SimpleProfilerOptions options = {});

  std::string summary() const override;
  /// Seconds of each call so far.
  std::map<std::string, std::vector<double>> durations() const;

 protected:
  void stage_begins(const std::string& stage, std::int64_t steps) override;
  void stage_ends() override;
  void action_begins(const std::string& action) override;
  void action_ends(const std::string& action) override;

 private:
  SimpleProfilerOptions options_;
  mutable std::mutex mutex_;
  std::string stage_;
  int process_ = 0;  ///< that began the stage: a forked child writes no report
  double begin_;
  std::map<std::string, double> started_;
  std::map<std::string, std::vector<double>> durations_;
};

}  // namespace fp8::runtime
