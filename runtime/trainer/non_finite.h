// SPDX-License-Identifier: Apache-2.0
// What the training loop does about NaN and Inf. No torch here.
#pragma once
#include <cstdint>

#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::trainer {

/// When a loss or a gradient is NaN or infinite: end with an error naming the step, or leave the parameters as they
/// are.
enum class NonFinite : std::uint8_t { error, skip };
constexpr auto names_of(NonFinite) {
  using enum NonFinite;
  return std::to_array<EnumName<NonFinite>>({{error, "error"}, {skip, "skip"}});
}

}  // namespace fp8::trainer
