// SPDX-License-Identifier: Apache-2.0
// The learning rate of each step. No torch here.
//
//   rise       (step + warmup_from) / warmup                                       step < warmup, steps from 0
//   cosine     min + (1 - min) (1 + cos(pi share)) / 2                             share: of the steps after the rise
//   linear     min + (1 - min) (1 - share)
//   constant   1
//
// transformers' schedules of the same names with warmup_from 0: its first step has rate 0.
#pragma once
#include <cstdint>
#include <functional>

#include "fp8/tools/commands/train/optimizer_settings.h"

namespace fp8::commands {

/// Of step n, from 0: the learning rate as a share of settings.lr.
std::function<double(std::int64_t)> lr_factor(const OptimizerSettings& settings);

}  // namespace fp8::commands
