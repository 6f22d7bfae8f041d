// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/lr_schedule.h"

#include <cmath>
#include <numbers>

namespace fp8::commands {
namespace {

/// share: of the steps after the rise that are done, from 0 to 1.
double after_rise(OptimizerSettings::Schedule schedule, double min_factor, double share) {
  switch (schedule) {
    case OptimizerSettings::Schedule::cosine:
      return min_factor + (1 - min_factor) * 0.5 * (1 + std::cos(std::numbers::pi * share));
    case OptimizerSettings::Schedule::linear:
      return min_factor + (1 - min_factor) * (1 - share);
    case OptimizerSettings::Schedule::constant:
      break;
  }
  return 1;
}

}  // namespace

std::function<double(std::int64_t)> lr_factor(const OptimizerSettings& settings) {
  return [s = settings, min_factor = settings.lr > 0 ? settings.min_lr / settings.lr : 0](std::int64_t step) {
    if (step < s.warmup) return static_cast<double>(step + s.warmup_from) / static_cast<double>(s.warmup);
    const auto of = [&](std::int64_t n) { return static_cast<double>(n - s.warmup); };
    return after_rise(s.schedule, min_factor, step < s.steps ? of(step) / of(s.steps) : 1);
  };
}

}  // namespace fp8::commands
