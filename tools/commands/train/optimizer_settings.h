// SPDX-License-Identifier: Apache-2.0
// What the optimizer of `fp8 train` is asked for. No torch here.
#pragma once
#include <cstdint>

#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::commands {

struct OptimizerSettings {
  enum class Kind : std::uint8_t { adamw, muon };
  Kind kind = Kind::adamw;
  double lr = 1e-3, min_lr = 0;  ///< at the end of the cosine
  std::int64_t warmup = 0, steps = 0;
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};
constexpr auto names_of(OptimizerSettings::Kind) {
  using enum OptimizerSettings::Kind;
  return std::to_array<EnumName<OptimizerSettings::Kind>>({{adamw, "adamw"}, {muon, "muon"}});
}

}  // namespace fp8::commands
