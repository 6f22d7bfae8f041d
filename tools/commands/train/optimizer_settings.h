// SPDX-License-Identifier: Apache-2.0
// What the optimizer of `fp8 train` is asked for. No torch here.
#pragma once
#include <cstdint>

#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/runtime/trainer/lr_schedule.h"

namespace fp8::commands {

struct OptimizerSettings {
  enum class Kind : std::uint8_t { adamw, muon };
  using Schedule = trainer::LrShape;
  enum class EpsMode : std::uint8_t { torch, habana };  ///< where eps is added: optim::EpsMode
  Kind kind = Kind::adamw;
  double lr = 1e-3, min_lr = 0;  ///< at the end of the schedule
  Schedule schedule = Schedule::cosine;
  std::int64_t warmup = 0, warmup_from = 1, steps = 0;  ///< warmup_from: what the first step counts as, 0 or 1
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  EpsMode eps_mode = EpsMode::torch;
};
constexpr auto names_of(OptimizerSettings::Kind) {
  using enum OptimizerSettings::Kind;
  return std::to_array<EnumName<OptimizerSettings::Kind>>({{adamw, "adamw"}, {muon, "muon"}});
}
constexpr auto names_of(OptimizerSettings::EpsMode) {
  using enum OptimizerSettings::EpsMode;
  return std::to_array<EnumName<OptimizerSettings::EpsMode>>({{torch, "torch"}, {habana, "habana"}});
}

}  // namespace fp8::commands
