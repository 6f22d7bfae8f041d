// SPDX-License-Identifier: Apache-2.0
// The schedule that --schedule, --warmup, --min-lr and --steps ask for. No torch here.
#pragma once
#include "fp8/runtime/trainer/lr_schedule.h"
#include "fp8/tools/commands/train/optimizer_settings.h"

namespace fp8::commands {

/// Of step n, from 0: the learning rate as a share of settings.lr.
inline trainer::LrSchedule lr_factor(const OptimizerSettings& settings) {
  return {.shape = settings.schedule,
          .warmup = settings.warmup,
          .warmup_from = settings.warmup_from,
          .steps = settings.steps,
          .min_factor = settings.lr > 0 ? settings.min_lr / settings.lr : 0};
}

}  // namespace fp8::commands
