// SPDX-License-Identifier: Apache-2.0
// The learning rate of each optimizer step, as a share of the highest. No torch here.
//
//   rise       (step + warmup_from) / warmup                                       step < warmup, steps from 0
//   cosine     min + (1 - min) (1 + cos(pi share)) / 2                             share: of the steps after the rise
//   linear     min + (1 - min) (1 - share)
//   constant   1
//
// transformers' schedules of the same names with warmup_from 0: its first step has rate 0.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::trainer {

enum class LrShape : std::uint8_t { cosine, linear, constant };
constexpr auto names_of(LrShape) {
  using enum LrShape;
  return std::to_array<EnumName<LrShape>>({{cosine, "cosine"}, {linear, "linear"}, {constant, "constant"}});
}

struct LrSchedule {
  LrShape shape = LrShape::cosine;
  std::int64_t warmup = 0, warmup_from = 1;  ///< steps of the rise; what the first of them counts as, 0 or 1
  std::int64_t steps = 0;                    ///< at which the shape has come down to min_factor, there to stay
  double min_factor = 0;

  /// step: from 0.
  double operator()(std::int64_t step) const {
    if (step < warmup) return static_cast<double>(step + warmup_from) / static_cast<double>(warmup);
    const auto after_rise = [this](std::int64_t n) { return static_cast<double>(n - warmup); };
    const double share = step < steps ? after_rise(step) / after_rise(steps) : 1;
    switch (shape) {
      case LrShape::cosine:
        return min_factor + (1 - min_factor) * 0.5 * (1 + std::cos(std::numbers::pi * share));
      case LrShape::linear:
        return min_factor + (1 - min_factor) * (1 - share);
      case LrShape::constant:
        break;
    }
    return 1;
  }
};

}  // namespace fp8::trainer
